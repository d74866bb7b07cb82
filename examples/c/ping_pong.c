/* A round trip between two sessions of one program: the answer is the question. */
#include <insane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call) do { if ((call) < 0) { fprintf(stderr, #call ": %s\n", insane_last_error()); exit(1); } } while (0)

struct end { insane_session_t *session; insane_stream_t *stream; insane_source_t *source; insane_sink_t *sink; };

static struct end open_end(const char *app, const char *out, const char *in)
{
    struct end e;
    CHECK(insane_init_session(app, NULL, NULL, &e.session));
    CHECK(insane_create_stream(e.session, NULL, NULL, &e.stream));
    CHECK(insane_create_sink_named(e.stream, in, INSANE_WAIT_ADAPTIVE, NULL, NULL, &e.sink));
    CHECK(insane_create_source_named(e.stream, out, &e.source));
    if (insane_wait_sinks(e.source, 1, 10000) < 1) { fprintf(stderr, "no peer\n"); exit(1); }
    return e;
}

static void close_end(struct end e)
{
    insane_close_source(e.source);
    insane_close_sink(e.sink);
    insane_close_stream(e.stream);
    insane_close_session(e.session);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    enum { MAX = 100000 };
    int rounds = argc > 1 ? atoi(argv[1]) : 10000;
    if (rounds < 1 || rounds > MAX) { fprintf(stderr, "usage: ping_pong [ROUNDS up to %d]\n", MAX); return 2; }
    pid_t child = fork();
    if (child == 0) {
        struct end e = open_end("pong in C", "c/pong", "c/ping");
        for (int i = 0; i < rounds; i++) {
            insane_buffer_t in, out;
            CHECK(insane_consume_data(e.sink, INSANE_BLOCKING, 10000, &in));
            CHECK(insane_get_buffer(e.source, in.length, 0, &out));
            memcpy(out.data, in.data, in.length);
            CHECK(insane_emit_data(e.source, &out));
            CHECK(insane_release_buffer(e.sink, &in));
        }
        usleep(100000); /* the last answer lies in this process's memory */
        close_end(e);
        _exit(0);
    }
    static double times[MAX];
    struct end e = open_end("ping in C", "c/ping", "c/pong");
    for (int i = 0; i < rounds; i++) {
        struct timespec from, to;
        insane_buffer_t out, in;
        clock_gettime(CLOCK_MONOTONIC, &from);
        CHECK(insane_get_buffer(e.source, 64, 0, &out));
        memset(out.data, i, 64);
        CHECK(insane_emit_data(e.source, &out));
        CHECK(insane_consume_data(e.sink, INSANE_BLOCKING, 10000, &in));
        clock_gettime(CLOCK_MONOTONIC, &to);
        if (in.length != 64 || ((unsigned char *)in.data)[63] != (unsigned char)i) { fprintf(stderr, "wrong answer\n"); return 1; }
        CHECK(insane_release_buffer(e.sink, &in));
        times[i] = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
    }
    qsort(times, (size_t)rounds, sizeof times[0], by_value);
    printf("%d round trips of 64 bytes: median %.2f us, p99 %.2f us\n", rounds, times[rounds / 2], times[rounds - 1 - rounds / 100]);
    close_end(e);
    waitpid(child, NULL, 0);
    return 0;
}
