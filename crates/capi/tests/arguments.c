/* Every call with arguments that cannot be: a clear error, and nothing else happens. Then what should work. */
#include <insane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int passed, failed;
static void check(int ok, const char *what)
{
    if (ok) { passed++; } else { failed++; printf("failed: %s (last error: %s)\n", what, insane_last_error()); }
}
#define CHECK(e) check((e) ? 1 : 0, #e)

static int called;
static void on_data(const void *data, size_t length, uint64_t sequence, void *user)
{
    called += length == 5 && memcmp(data, "hello", 5) == 0 && sequence > 0 && user == &called;
}

struct many { int count; unsigned char next; };
static void take_many(const void *data, size_t length, uint64_t sequence, void *user)
{
    struct many *many = user;
    if (length == 8 && sequence > 0 && *(const unsigned char *)data == many->next) many->count++;
    many->next++;
}

/* The processor time in seconds that this thread takes while it waits a second for a message that does not come. */
static double time_of_waiting(insane_stream_t *stream, int wait)
{
    insane_sink_t *sink = NULL;
    insane_buffer_t buffer = { 0 };
    struct timespec from, to;
    CHECK(insane_create_sink_named(stream, "nothing comes", wait, NULL, NULL, &sink) == 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 1000, &buffer) == -INSANE_TIMEOUT);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    CHECK(insane_close_sink(sink) == 0);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
}

int main(void)
{
    const int bad = -INSANE_INVALID_ARGUMENT;
    insane_session_t *session = NULL;
    insane_stream_t *stream = NULL;
    insane_source_t *source = NULL;
    insane_sink_t *sink = NULL, *listener = NULL;
    insane_buffer_t buffer = { 0 }, other = { 0 };
    insane_outcome_t outcome;

    CHECK(strcmp(insane_version(), "0.1.0") == 0);
    CHECK(strcmp(insane_error_name(-INSANE_TIMEOUT), "Timeout") == 0 && strlen(insane_error_hint(INSANE_TIMEOUT)) > 0);
    const char *name = insane_error_name(INSANE_TIMEOUT), *hint = insane_error_hint(INSANE_TIMEOUT);
    for (int code = 0; code < 300; code++) CHECK(insane_error_name(code) && insane_error_text(-code) && insane_error_hint(code));
    CHECK(strcmp(name, "Timeout") == 0 && hint == insane_error_hint(-INSANE_TIMEOUT));
    CHECK(strcmp(insane_error_name(12345), "Unknown") == 0 && strlen(insane_error_text(0)) > 0);

    CHECK(insane_init_session(NULL, NULL, NULL, &session) == bad);
    CHECK(insane_init_session("app", NULL, NULL, NULL) == bad);
    CHECK(insane_init_session("", NULL, NULL, &session) == -INSANE_INVALID_NAME);
    CHECK(insane_init_session("app", NULL, "/nonexistent/socket", &session) == -INSANE_RUNTIME_NOT_FOUND);
    CHECK(strstr(insane_last_error(), "/nonexistent/socket") != NULL);
    CHECK(insane_init_session("app", "nowhere", NULL, &session) == -INSANE_NOT_PERMITTED);
    CHECK(insane_create_stream(NULL, NULL, NULL, &stream) == bad);
    CHECK(insane_create_source(NULL, 1, &source) == bad && insane_create_source_named(NULL, "x", &source) == bad);
    CHECK(insane_create_sink(NULL, 1, 0, NULL, NULL, &sink) == bad);
    CHECK(insane_create_sink_named(NULL, "x", 0, NULL, NULL, &sink) == bad);
    CHECK(insane_get_buffer(NULL, 1, 0, &buffer) == bad && insane_emit_data(NULL, &buffer) == bad);
    CHECK(insane_discard_buffer(NULL, &buffer) == bad && insane_check_emit_outcome(NULL, 1, &outcome) == bad);
    CHECK(insane_consume_data(NULL, 0, 0, &buffer) == bad && insane_data_available(NULL, 0) == bad);
    CHECK(insane_release_buffer(NULL, &buffer) == bad && insane_wait_any(NULL, 0, 0, 0) == bad);
    CHECK(insane_wait_sinks(NULL, 1, 0) == bad && insane_effective_qos(NULL, NULL, 0) == bad);
    char words[256] = "";
    insane_event_facts_t facts;
    CHECK(insane_next_event(NULL, words, sizeof words) == bad);
    CHECK(insane_next_event_facts(NULL, &facts, sizeof facts, words, sizeof words) == bad);
    insane_waitset_t *set = NULL;
    size_t key = 0;
    CHECK(insane_create_waitset(NULL) == bad && insane_waitset_add(NULL, sink) == bad && insane_waitset_fd(NULL) == bad);
    CHECK(insane_waitset_remove(NULL, 0) == bad && insane_waitset_arm(NULL) == bad);
    CHECK(insane_waitset_ready(NULL, &key, 1) == bad && insane_waitset_wait(NULL, &key, 1, 0) == bad);
    CHECK(insane_create_waitset(&set) == 0 && insane_waitset_add(set, NULL) == bad);
    CHECK(insane_waitset_ready(set, NULL, 1) == bad && insane_waitset_ready(set, &key, 0) == bad);
    CHECK(insane_waitset_remove(set, -1) == bad && insane_waitset_remove(set, 7) == 0);
    CHECK(insane_waitset_wait(set, &key, 1, UINT64_MAX) == bad && insane_waitset_wait(set, &key, 1, 1) == -INSANE_TIMEOUT);
    CHECK(insane_close_waitset(set) == 0 && insane_close_waitset(NULL) == 0);
    CHECK(insane_close_session(NULL) == 0 && insane_close_stream(NULL) == 0 && insane_close_source(NULL) == 0
          && insane_close_sink(NULL) == 0);

    CHECK(insane_init_session("C arguments", NULL, NULL, &session) == 0);
    insane_options_t odd = { 7, 0, 0, 0, 0 }, timely = { 0, 0, 1, 0, 1 };
    CHECK(insane_next_event(session, NULL, 5) == bad && insane_next_event(session, NULL, 0) == 0);
    CHECK(insane_next_event_facts(session, NULL, sizeof facts, NULL, 0) == bad);
    CHECK(insane_next_event_facts(session, &facts, sizeof facts, NULL, 5) == bad);
    CHECK(insane_next_event_facts(session, &facts, sizeof facts, NULL, 0) == 0);
    CHECK(insane_create_stream(session, NULL, &odd, &stream) == bad);
    CHECK(insane_create_stream(session, NULL, &timely, &stream) == -INSANE_QOS_UNAVAILABLE);
    CHECK(insane_create_stream(session, "a\nb", NULL, &stream) == -INSANE_INVALID_NAME);
    CHECK(insane_create_stream(session, NULL, NULL, NULL) == bad);
    CHECK(insane_create_stream(session, NULL, NULL, &stream) == 0);
    char text[256];
    CHECK(insane_effective_qos(stream, text, sizeof text) == (long)strlen(text) + 1);
    CHECK(strcmp(text, "local: shm/shm") == 0);
    CHECK(insane_effective_qos(stream, NULL, 8) == bad);
    /* Less than was asked for comes with the reason. */
    insane_stream_t *less = NULL;
    timely.strict = 0;
    CHECK(insane_create_stream(session, NULL, &timely, &less) == 0);
    CHECK(insane_effective_qos(less, text, sizeof text) == (long)strlen(text) + 1);
    CHECK(strncmp(text, "local: shm/shm ", 15) == 0 && strstr(text, " timing=sensitive: between sessions of one host ") != NULL);
    CHECK(insane_close_stream(less) == 0);
    CHECK(insane_create_source_named(stream, NULL, &source) == bad);
    CHECK(insane_create_source_named(stream, "c", &source) == 0);
    CHECK(insane_create_sink_named(stream, "c", 9, NULL, NULL, &sink) == bad);
    CHECK(insane_create_sink_named(stream, "c", INSANE_WAIT_SLEEP, NULL, NULL, &sink) == 0);
    CHECK(insane_create_sink_named(stream, "c", INSANE_WAIT_ADAPTIVE, on_data, &called, &listener) == 0);
    CHECK(insane_wait_sinks(source, 2, 5000) == 2);

    CHECK(insane_consume_data(sink, INSANE_NONBLOCKING, 0, &buffer) == -INSANE_WOULD_BLOCK);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 20, &buffer) == -INSANE_TIMEOUT);
    CHECK(insane_consume_data(sink, 5, 0, &buffer) == bad && insane_consume_data(sink, 0, 0, NULL) == bad);
    CHECK(insane_consume_data(listener, 0, 0, &buffer) == bad);
    CHECK(insane_get_buffer(source, (size_t)1 << 40, 0, &buffer) == -INSANE_MESSAGE_TOO_LARGE);
    CHECK(insane_get_buffer(source, 1, 3, &buffer) == bad && insane_get_buffer(source, 1, 0, NULL) == bad);
    CHECK(insane_emit_data(source, &other) == bad && insane_release_buffer(sink, &other) == bad);
    CHECK(insane_get_buffer(source, 100, 0, &buffer) == 0 && buffer.capacity >= 100 && buffer.length == 100);
    buffer.length = buffer.capacity + 1;
    CHECK(insane_emit_data(source, &buffer) == -INSANE_BUFFER_OVERRUN);
    CHECK(insane_emit_data(source, &buffer) == bad);
    CHECK(insane_emit_data(source, NULL) == bad && insane_emit_more(source, NULL) == bad);
    CHECK(insane_discard_buffer(source, NULL) == bad && insane_release_buffer(sink, NULL) == bad);
    CHECK(insane_contiguous(sink, NULL) == bad && insane_consume_data(sink, INSANE_NONBLOCKING, 0, NULL) == bad);
    CHECK(insane_get_buffer(source, 100, 0, &buffer) == 0 && insane_discard_buffer(source, &buffer) == 0);
    CHECK(insane_discard_buffer(source, &buffer) == bad);

    CHECK(insane_get_buffer(source, 5, 0, &buffer) == 0);
    memcpy(buffer.data, "hello", 5);
    int64_t token = insane_emit_data(source, &buffer);
    insane_sink_t *both[1] = { sink };
    CHECK(token > 0 && insane_wait_any(both, 1, 0, 5000) == 0 && insane_data_available(sink, 0) == 1);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && other.length == 5);
    CHECK(memcmp(other.data, "hello", 5) == 0 && other.sequence == (uint64_t)token);
    CHECK(insane_release_buffer(listener, &other) == bad && memcmp(other.data, "hello", 5) == 0);
    CHECK(insane_release_buffer(sink, &other) == 0 && insane_release_buffer(sink, &other) == bad);
    /* A sink that takes messages by pieces; on one host there is one, and nobody has copied it. */
    insane_sink_t *pieces = NULL;
    insane_piece_t piece[2] = { { NULL, 7 }, { NULL, 7 } };
    insane_copies_t copies = { 9, 9, 9, 9 };
    CHECK(insane_create_sink_named(stream, "c", 9 | INSANE_SCATTERED, NULL, NULL, &pieces) == bad);
    CHECK(insane_create_sink_named(stream, "c", INSANE_WAIT_SLEEP | INSANE_SCATTERED, NULL, NULL, &pieces) == 0);
    CHECK(insane_wait_sinks(source, 3, 5000) == 3);
    CHECK(insane_get_buffer(source, 70000, 0, &buffer) == 0);
    memset(buffer.data, 3, 70000);
    CHECK(insane_pieces(pieces, &buffer, piece, 2) == bad && insane_contiguous(pieces, &buffer) == bad);
    int64_t large = insane_emit_data(source, &buffer);
    CHECK(large > 0);
    CHECK(insane_consume_data(pieces, INSANE_BLOCKING, 5000, &other) == 0 && other.length == 70000 && other.data != NULL);
    CHECK(insane_pieces(sink, &other, piece, 2) == bad && insane_pieces(pieces, &other, NULL, 2) == bad);
    CHECK(insane_pieces(NULL, &other, piece, 2) == bad && insane_pieces(pieces, NULL, piece, 2) == bad);
    CHECK(insane_pieces(pieces, &other, NULL, 0) == 1 && piece[0].length == 7);
    CHECK(insane_pieces(pieces, &other, piece, 2) == 1 && piece[0].length == 70000 && piece[1].length == 7);
    CHECK(piece[0].data == other.data && ((const unsigned char *)piece[0].data)[69999] == 3);
    void *before = other.data;
    CHECK(insane_contiguous(sink, &other) == bad && insane_contiguous(pieces, &other) == 0 && other.data == before);
    CHECK(insane_check_copies(NULL, &copies) == bad && insane_check_copies(pieces, NULL) == bad);
    CHECK(insane_check_copies(pieces, &copies) == 0 && copies.scattered + copies.pieces + copies.runtime + copies.here == 0);
    CHECK(insane_release_buffer(pieces, &other) == 0 && insane_pieces(pieces, &other, piece, 2) == bad);
    CHECK(insane_close_sink(pieces) == 0);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && insane_release_buffer(sink, &other) == 0);
    insane_source_t *second = NULL;
    CHECK(insane_create_source_named(stream, "elsewhere", &second) == 0);
    CHECK(insane_get_buffer(second, 100, 0, &buffer) == 0);
    CHECK(insane_emit_data(source, &buffer) == bad && insane_emit_more(source, &buffer) == bad);
    CHECK(insane_discard_buffer(source, &buffer) == bad && buffer.data != NULL && buffer.length == 100);
    CHECK(insane_emit_data(second, &buffer) > 0 && insane_close_source(second) == 0);
    CHECK(insane_wait_any(both, 1, 0, 20) == -INSANE_TIMEOUT);
    for (int i = 0; i < 1000 && (insane_check_emit_outcome(source, token, &outcome) != 0 || outcome.pending > 0); i++) usleep(1000);
    CHECK(outcome.intended == 2 && outcome.delivered == 2 && called == 1);
    for (int i = 0; i < 1000 && (insane_check_emit_outcome(source, large, &outcome) != 0 || outcome.pending > 0); i++) usleep(1000);
    CHECK(outcome.intended == 3 && outcome.delivered == 3 && called == 1);
    CHECK(insane_check_emit_outcome(source, 999, &outcome) == -INSANE_UNKNOWN_TOKEN);
    CHECK(insane_check_emit_outcome(source, -1, &outcome) == -INSANE_UNKNOWN_TOKEN);
    CHECK(insane_check_emit_outcome(source, token, NULL) == bad);

    /* A batch: some wait for each other, the last one sends them all, or a flush does. */
    CHECK(insane_emit_more(NULL, &buffer) == bad && insane_emit_more(source, &other) == bad && insane_flush(NULL) == bad);
    for (int n = 0; n < 200; n++) {
        CHECK(insane_get_buffer(source, 8, 0, &buffer) == 0);
        memset(buffer.data, n, 8);
        CHECK((n % 10 == 9 && n % 20 < 10 ? insane_emit_data : insane_emit_more)(source, &buffer) > 0);
        if (n % 20 == 19) CHECK(insane_flush(source) == 0);
        if (n % 10 < 9) continue;
        if (n % 40 >= 30) {
            struct many many = {0, (unsigned char)(n - 9)};
            while (many.count < 10) {
                size_t most = n % 3 == 0 ? 3 : 64;
                CHECK(insane_consume_each(sink, n & 1, 5000, most, take_many, &many) > 0);
            }
            CHECK(many.count == 10 && many.next == (unsigned char)(n + 1));
            CHECK(insane_consume_each(sink, INSANE_NONBLOCKING, 0, 1, take_many, &many) == -INSANE_WOULD_BLOCK);
            CHECK(insane_consume_each(sink, INSANE_BLOCKING, 1, 1, take_many, &many) == -INSANE_TIMEOUT);
            continue;
        }
        for (int m = n - 9; m <= n; m++) {
            CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && other.length == 8);
            CHECK(((unsigned char *)other.data)[7] == (unsigned char)m);
            CHECK(insane_release_buffer(sink, &other) == 0);
        }
    }

    CHECK(insane_consume_each(NULL, INSANE_BLOCKING, 1, 1, take_many, NULL) == bad);
    CHECK(insane_consume_each(sink, 2, 1, 1, take_many, NULL) == bad);
    CHECK(insane_consume_each(sink, INSANE_BLOCKING, 1, 0, take_many, NULL) == bad);
    CHECK(insane_consume_each(sink, INSANE_BLOCKING, 1, 1, NULL, NULL) == bad);

    for (size_t size = 0; size <= 1 << 20; size = size * 3 + 1) {
        CHECK(insane_get_buffer(source, size, 0, &buffer) == 0);
        memset(buffer.data, (int)size, size);
        CHECK(insane_emit_data(source, &buffer) > 0);
        CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && other.length == size);
        CHECK(size == 0 || (((unsigned char *)other.data)[0] == (unsigned char)size
                            && ((unsigned char *)other.data)[size - 1] == (unsigned char)size));
        CHECK(insane_release_buffer(sink, &other) == 0);
    }

    /* `data` only says where to write: without it the message goes from where it was written. */
    CHECK(insane_get_buffer(source, 5, 0, &buffer) == 0);
    memcpy(buffer.data, "howdy", 5);
    buffer.data = NULL;
    CHECK(insane_emit_data(source, &buffer) > 0);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && other.length == 5);
    CHECK(memcmp(other.data, "howdy", 5) == 0 && insane_release_buffer(sink, &other) == 0);

    /* Compared with each other only: how much of a core there is depends on who else is on the machine. */
    double spin = time_of_waiting(stream, INSANE_WAIT_SPIN), sleep = time_of_waiting(stream, INSANE_WAIT_SLEEP);
    double adaptive = time_of_waiting(stream, INSANE_WAIT_ADAPTIVE);
    CHECK(spin >= 10 * sleep && spin >= 10 * adaptive);

    /* A child has none of its parent's memory and threads, and says so with every call. */
    insane_buffer_t lent = { 0 };
    CHECK(insane_create_waitset(&set) == 0 && insane_waitset_add(set, sink) >= 0);
    CHECK(insane_get_buffer(source, 70000, 0, &buffer) == 0 && insane_emit_data(source, &buffer) > 0);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 5000, &other) == 0 && other.length == 70000);
    CHECK(insane_get_buffer(source, 70000, 0, &lent) == 0 && insane_get_buffer(source, 70000, 0, &buffer) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        const int forked = -INSANE_FORKED;
        insane_sink_t *none = NULL;
        struct many many = { 0, 0 };
        failed = 0;
        CHECK(insane_create_stream(session, NULL, NULL, &stream) == forked && insane_next_event(session, NULL, 0) == forked);
        CHECK(insane_effective_qos(stream, text, sizeof text) == forked);
        CHECK(insane_create_source(stream, 7, &second) == forked && insane_create_sink(stream, 7, 0, NULL, NULL, &none) == forked);
        CHECK(insane_wait_sinks(source, 1, 20) == forked && insane_flush(source) == forked);
        CHECK(insane_check_emit_outcome(source, token, &outcome) == forked);
        CHECK(insane_emit_data(source, &buffer) == forked && insane_get_buffer(source, 8, 0, &buffer) == forked);
        CHECK(insane_discard_buffer(source, &lent) == 0);
        CHECK(insane_pieces(sink, &other, piece, 2) == forked && insane_contiguous(sink, &other) == forked);
        CHECK(insane_check_copies(sink, &copies) == forked && insane_release_buffer(sink, &other) == 0);
        CHECK(insane_consume_data(sink, INSANE_NONBLOCKING, 0, &other) == forked && insane_data_available(sink, 0) == forked);
        CHECK(insane_consume_each(sink, INSANE_NONBLOCKING, 0, 1, take_many, &many) == forked);
        CHECK(insane_wait_any(both, 1, 0, 20) == forked);
        CHECK(insane_waitset_add(set, sink) == forked && insane_waitset_remove(set, 0) == forked);
        CHECK(insane_waitset_fd(set) == forked && insane_waitset_arm(set) == forked);
        CHECK(insane_waitset_ready(set, &key, 1) == forked && insane_waitset_wait(set, &key, 1, 20) == forked);
        CHECK(insane_close_waitset(set) == 0 && insane_close_sink(listener) == 0 && insane_close_sink(sink) == 0);
        CHECK(insane_close_source(source) == 0 && insane_close_stream(stream) == 0 && insane_close_session(session) == 0);
        fflush(stdout);
        _exit(failed ? 1 : 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The parent has it all. */
    CHECK(insane_release_buffer(sink, &other) == 0 && insane_close_waitset(set) == 0);
    CHECK(insane_discard_buffer(source, &lent) == 0 && insane_emit_data(source, &buffer) > 0);

    CHECK(insane_close_sink(listener) == 0 && insane_close_sink(sink) == 0 && insane_close_source(source) == 0);
    CHECK(insane_close_stream(stream) == 0 && insane_close_session(session) == 0);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
