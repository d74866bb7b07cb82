/* What a stream gets towards another host: asked for, and told by an event. Takes the sockets of two runtimes, `near` and `far`. */
#include <insane.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int failed;
#define CHECK(e) do { if (!(e)) { failed++; printf("failed: %s (last error: %s)\n", #e, insane_last_error()); } } while (0)

int main(int count, char **sockets)
{
    insane_session_t *near = NULL, *far = NULL;
    insane_stream_t *stream = NULL, *other = NULL;
    insane_source_t *source = NULL;
    insane_sink_t *sink = NULL;
    insane_buffer_t buffer = { 0 };
    insane_options_t fast = { 1, 0, 0, 1, 0 };
    const char *is = "far: udp/reliable reliability=reliable", *why = "acceleration=preferred: near and far have no accelerated datapath in common: ";
    char text[1024] = "", told[1024] = "";
    insane_event_facts_t facts;
    memset(&facts, 'x', sizeof facts);

    CHECK(count == 3 && insane_init_session("near", NULL, sockets[1], &near) == 0);
    CHECK(insane_init_session("far", NULL, sockets[2], &far) == 0);
    CHECK(insane_create_stream(near, "fast", &fast, &stream) == 0 && insane_create_stream(far, "fast", &fast, &other) == 0);
    CHECK(insane_create_sink_named(other, "c", INSANE_WAIT_SLEEP, NULL, NULL, &sink) == 0);
    CHECK(insane_create_source_named(stream, "c", &source) == 0 && insane_wait_sinks(source, 1, 20000) == 1);
    CHECK(insane_get_buffer(source, 5, 0, &buffer) == 0);
    memcpy(buffer.data, "hello", 5);
    CHECK(insane_emit_data(source, &buffer) > 0);
    CHECK(insane_consume_data(sink, INSANE_BLOCKING, 20000, &buffer) == 0 && buffer.length == 5);
    CHECK(insane_release_buffer(sink, &buffer) == 0);

    CHECK(insane_effective_qos(stream, text, sizeof text) == (long)strlen(text) + 1);
    CHECK(strstr(text, is) != NULL && strstr(text, why) != NULL);
    int event = 0;
    for (int i = 0; i < 2000 && event != INSANE_EVENT_QOS_CHANGED; i++) {
        event = insane_next_event_facts(near, &facts, sizeof facts - 1, told, sizeof told);
        if (event == 0) usleep(10000);
    }
    CHECK(event == INSANE_EVENT_QOS_CHANGED && strncmp(told, "stream `fast` towards far: ", 27) == 0);
    CHECK(strstr(told, is) != NULL && strstr(told, why) != NULL);
    /* Of what the caller has not room for nothing is written. */
    CHECK(facts.moved_us == -1 && strcmp(facts.stream, "fast") == 0 && strcmp(facts.peer, "far") == 0);
    CHECK(((char *)&facts)[sizeof facts - 1] == 'x');

    CHECK(insane_close_source(source) == 0 && insane_close_sink(sink) == 0);
    CHECK(insane_close_stream(stream) == 0 && insane_close_stream(other) == 0);
    CHECK(insane_close_session(near) == 0 && insane_close_session(far) == 0);
    if (failed) printf("asked for: %s\ntold: %s\n", text, told);
    return failed != 0;
}
