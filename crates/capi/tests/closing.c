/* A sink with a callback is closed while its last call is still to return, and another sink opens meanwhile. */
#include <insane.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int failed;
#define CHECK(e) do { if (!(e)) { failed++; printf("failed: %s (last error: %s)\n", #e, insane_last_error()); } } while (0)

static atomic_int called, go;
static void hold(const void *data, size_t length, uint64_t sequence, void *user)
{
    (void)data; (void)length; (void)sequence; (void)user;
    called = 1;
    while (!go) usleep(1000);
}

static void *close_sink(void *sink)
{
    CHECK(insane_close_sink(sink) == 0);
    return NULL;
}

static void emit(insane_source_t *source, const char *text)
{
    insane_buffer_t buffer = { 0 };
    CHECK(insane_get_buffer(source, strlen(text), 0, &buffer) == 0);
    memcpy(buffer.data, text, strlen(text));
    CHECK(insane_emit_data(source, &buffer) > 0);
}

int main(void)
{
    insane_session_t *session = NULL;
    insane_stream_t *stream = NULL;
    insane_source_t *one = NULL, *two = NULL;
    insane_sink_t *first = NULL, *second = NULL;
    insane_buffer_t buffer = { 0 };
    pthread_t closer;

    CHECK(insane_init_session("C closing", NULL, NULL, &session) == 0);
    CHECK(insane_create_stream(session, NULL, NULL, &stream) == 0);
    CHECK(insane_create_source_named(stream, "one", &one) == 0 && insane_create_source_named(stream, "two", &two) == 0);
    CHECK(insane_create_sink_named(stream, "one", INSANE_WAIT_ADAPTIVE, hold, NULL, &first) == 0);
    CHECK(insane_wait_sinks(one, 1, 5000) == 1);
    emit(one, "1");
    while (!called) usleep(1000);
    CHECK(pthread_create(&closer, NULL, close_sink, first) == 0);
    while (insane_wait_sinks(one, 0, 0) > 0) usleep(1000);
    usleep(50000);
    CHECK(insane_create_sink_named(stream, "two", INSANE_WAIT_ADAPTIVE, NULL, NULL, &second) == 0);
    CHECK(insane_wait_sinks(two, 1, 5000) == 1);
    go = 1;
    CHECK(pthread_join(closer, NULL) == 0);
    emit(two, "2");
    CHECK(insane_consume_data(second, INSANE_BLOCKING, 5000, &buffer) == 0 && buffer.length == 1);
    CHECK(insane_release_buffer(second, &buffer) == 0 && insane_close_sink(second) == 0);
    CHECK(insane_close_source(one) == 0 && insane_close_source(two) == 0);
    CHECK(insane_close_stream(stream) == 0 && insane_close_session(session) == 0);
    return failed != 0;
}
