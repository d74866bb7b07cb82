/* The demo's second xApp: listens to the indications and counts, until told to stop. */
#include <insane.h>
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t stop;
static void on_term(int signal) { (void)signal; stop = 1; }

int main(void)
{
    insane_session_t *session;
    insane_stream_t *stream;
    insane_sink_t *sink;
    signal(SIGTERM, on_term);
    if (insane_init_session("xApp in C", NULL, NULL, &session) != 0
        || insane_create_stream(session, "e2", NULL, &stream) != 0
        || insane_create_sink_named(stream, "indication", INSANE_WAIT_ADAPTIVE, NULL, NULL, &sink) != 0) {
        fprintf(stderr, "%s\n", insane_last_error());
        return 1;
    }
    unsigned long seen = 0, gaps = 0, other = 0, last = 0;
    for (;;) {
        insane_buffer_t in;
        int rc = insane_consume_data(sink, INSANE_BLOCKING, 100, &in);
        if (rc == -INSANE_TIMEOUT) { if (stop) break; continue; }
        if (rc != 0) { fprintf(stderr, "%s\n", insane_last_error()); return 1; }
        const unsigned char *pdu = in.data;
        other += !(in.length > 2 && pdu[0] == 0x00 && pdu[1] == 5); /* an initiating RICindication */
        if (last != 0 && in.sequence != last + 1) gaps += in.sequence - last - 1;
        last = in.sequence;
        seen++;
        insane_release_buffer(sink, &in);
    }
    printf("{\"seen\": %lu, \"gaps\": %lu, \"not_indications\": %lu}\n", seen, gaps, other);
    insane_close_sink(sink);
    insane_close_stream(stream);
    insane_close_session(session);
    return 0;
}
