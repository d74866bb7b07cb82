/* Prints ten messages of the channel "hello". */
#include <insane.h>
#include <stdio.h>

int main(void)
{
    insane_session_t *session;
    insane_stream_t *stream;
    insane_sink_t *sink;
    if (insane_init_session("hello sink in C", NULL, NULL, &session) != 0
        || insane_create_stream(session, NULL, NULL, &stream) != 0
        || insane_create_sink_named(stream, "hello", INSANE_WAIT_ADAPTIVE, NULL, NULL, &sink) != 0) {
        fprintf(stderr, "%s\n", insane_last_error());
        return 1;
    }
    for (int i = 0; i < 10; i++) {
        insane_buffer_t buffer;
        if (insane_consume_data(sink, INSANE_BLOCKING, 10000, &buffer) != 0) {
            fprintf(stderr, "%s\n", insane_last_error());
            return 1;
        }
        printf("%.*s\n", (int)buffer.length, (const char *)buffer.data);
        insane_release_buffer(sink, &buffer);
    }
    insane_close_sink(sink);
    insane_close_stream(stream);
    insane_close_session(session);
    return 0;
}
