/* Emits ten greetings to every sink of the channel "hello". */
#include <insane.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    insane_session_t *session;
    insane_stream_t *stream;
    insane_source_t *source;
    if (insane_init_session("hello source in C", NULL, NULL, &session) != 0
        || insane_create_stream(session, NULL, NULL, &stream) != 0
        || insane_create_source_named(stream, "hello", &source) != 0) {
        fprintf(stderr, "%s\n", insane_last_error());
        return 1;
    }
    if (insane_wait_sinks(source, 1, 10000) < 1) { fprintf(stderr, "no sink within ten seconds\n"); return 1; }
    int64_t token = 0;
    for (int i = 0; i < 10; i++) {
        insane_buffer_t buffer;
        if (insane_get_buffer(source, 64, 0, &buffer) != 0) { fprintf(stderr, "%s\n", insane_last_error()); return 1; }
        buffer.length = (size_t)snprintf(buffer.data, buffer.capacity, "hello %d from C", i);
        token = insane_emit_data(source, &buffer);
        if (token < 0) { fprintf(stderr, "%s\n", insane_last_error()); return 1; }
    }
    insane_outcome_t outcome = { 0 };
    for (int i = 0; i < 1000 && insane_check_emit_outcome(source, token, &outcome) == 0 && outcome.pending > 0; i++) {
        insane_wait_sinks(source, 1000, 5); /* a pause */
    }
    printf("emitted 10, the last one delivered to %u\n", outcome.delivered);
    insane_close_source(source);
    insane_close_stream(stream);
    insane_close_session(session);
    return 0;
}
