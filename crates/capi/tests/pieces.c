/* Messages of another host that are taken in the frames in which they came. Takes the sockets of two runtimes with AF_XDP between them,
 * `near` and `far`. */
#include <insane.h>
#include <stdio.h>
#include <string.h>

static int failed;
#define CHECK(e) do { if (!(e)) { failed++; printf("failed: %s (last error: %s)\n", #e, insane_last_error()); } } while (0)

#define LARGE 65536
#define MOST 256

static insane_source_t *source;
static insane_sink_t *sink;

static unsigned char byte_of(int number, size_t at)
{
    return (unsigned char)(at * 31 + at / 251 + (size_t)number * 7);
}

/* Sends message `number` and takes it. */
static int pass(int number, size_t length, insane_buffer_t *taken)
{
    insane_buffer_t buffer = { 0 };
    CHECK(insane_get_buffer(source, length, 0, &buffer) == 0);
    for (size_t at = 0; at < length; at++) ((unsigned char *)buffer.data)[at] = byte_of(number, at);
    CHECK(insane_emit_data(source, &buffer) > 0);
    int code = insane_consume_data(sink, INSANE_BLOCKING, 20000, taken);
    CHECK(code == 0 && taken->length == length);
    return code == 0;
}

/* Whether the pieces are all of message `number`, in order, and nothing else. */
static int is_whole(int number, size_t length, const insane_piece_t *pieces, long count)
{
    size_t at = 0;
    for (long n = 0; n < count; n++)
        for (size_t i = 0; i < pieces[n].length; i++, at++)
            if (((const unsigned char *)pieces[n].data)[i] != byte_of(number, at)) return 0;
    return at == length;
}

int main(int count, char **sockets)
{
    insane_session_t *near = NULL, *far = NULL;
    insane_stream_t *stream = NULL, *other = NULL;
    insane_options_t fast = { 1, 0, 0, 1, 0 };
    insane_copies_t before, after;
    insane_piece_t pieces[MOST];
    insane_buffer_t taken = { 0 };
    int large = 0, small = 0, number = 0;

    CHECK(count == 3 && insane_init_session("near", NULL, sockets[1], &near) == 0);
    CHECK(insane_init_session("far", NULL, sockets[2], &far) == 0);
    CHECK(insane_create_stream(near, NULL, &fast, &stream) == 0 && insane_create_stream(far, NULL, &fast, &other) == 0);
    CHECK(insane_create_sink_named(other, "c", INSANE_WAIT_SLEEP | INSANE_SCATTERED, NULL, NULL, &sink) == 0);
    CHECK(insane_create_source_named(stream, "c", &source) == 0 && insane_wait_sinks(source, 1, 20000) == 1);

    /* The first come before the session knows the interface's memory, and on a busy machine some go over UDP for a while. */
    for (; number < 2000 && large < 20 && !failed; number++) {
        CHECK(insane_check_copies(sink, &before) == 0);
        if (!pass(number, LARGE, &taken)) break;
        long there = insane_pieces(sink, &taken, pieces, MOST);
        CHECK(there >= 1 && there <= MOST && is_whole(number, LARGE, pieces, there));
        CHECK(insane_check_copies(sink, &after) == 0 && after.here == 0);
        if (there == 1) {
            CHECK(taken.data == pieces[0].data);
        } else {
            large++;
            CHECK(there >= 44 && taken.data == NULL && after.runtime == before.runtime);
            CHECK(after.scattered == before.scattered + 1 && after.pieces == before.pieces + (uint64_t)there);
        }
        CHECK(insane_release_buffer(sink, &taken) == 0);
    }
    /* One that goes in one frame is one piece, and has an address as any other. */
    for (; number < 4000 && small < 20 && !failed; number++) {
        CHECK(insane_check_copies(sink, &before) == 0);
        if (!pass(number, 1400, &taken)) break;
        CHECK(insane_pieces(sink, &taken, pieces, MOST) == 1 && is_whole(number, 1400, pieces, 1));
        CHECK(taken.data == pieces[0].data && insane_contiguous(sink, &taken) == 0 && taken.data == pieces[0].data);
        CHECK(insane_check_copies(sink, &after) == 0 && after.here == 0);
        small += after.scattered == before.scattered + 1 && after.runtime == before.runtime;
        CHECK(insane_release_buffer(sink, &taken) == 0);
    }
    CHECK(large == 20 && small == 20);
    /* Who asks for one place pays for it, once. */
    for (; number < 6000 && !failed; number++) {
        if (!pass(number, LARGE, &taken)) break;
        long there = insane_pieces(sink, &taken, pieces, MOST);
        CHECK(insane_contiguous(sink, &taken) == 0 && insane_contiguous(sink, &taken) == 0 && taken.data != NULL);
        pieces[0] = (insane_piece_t){ taken.data, taken.length };
        CHECK(is_whole(number, LARGE, pieces, 1) && insane_check_copies(sink, &after) == 0);
        CHECK(after.here == (there > 1) && insane_release_buffer(sink, &taken) == 0);
        if (there > 1) break;
    }
    CHECK(after.here == 1);

    if (failed) {
        char text[1024] = "";
        insane_effective_qos(stream, text, sizeof text);
        printf("message %d, %d and %d in frames: %s\n", number, large, small, text);
    }
    CHECK(insane_close_source(source) == 0 && insane_close_sink(sink) == 0);
    CHECK(insane_close_stream(stream) == 0 && insane_close_stream(other) == 0);
    CHECK(insane_close_session(near) == 0 && insane_close_session(far) == 0);
    return failed != 0;
}
