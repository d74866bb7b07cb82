/* Many channels in one event loop: a wait set's descriptor beside a timer's, in poll(2). event_loop [MESSAGES] */
#include <insane.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHANNELS = 8 };

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, insane_last_error());
    exit(1);
}

/* Emits to the channels in turns, with pauses, so that the loop sleeps between. */
static void emit(long messages)
{
    insane_session_t *session;
    insane_stream_t *stream;
    insane_source_t *sources[CHANNELS];
    char name[16];
    if (insane_init_session("events in C", NULL, NULL, &session) != 0) fail("opening a session");
    if (insane_create_stream(session, NULL, NULL, &stream) != 0) fail("opening a stream");
    for (int i = 0; i < CHANNELS; i++) {
        snprintf(name, sizeof name, "event/%d", i);
        if (insane_create_source_named(stream, name, &sources[i]) != 0) fail("opening a source");
        if (insane_wait_sinks(sources[i], 1, 10000) < 1) fail("waiting for a sink");
    }
    for (long n = 0; n < messages; n++) {
        insane_buffer_t buffer;
        insane_source_t *source = sources[n * 5 % CHANNELS];
        if (insane_get_buffer(source, sizeof n, 0, &buffer) != 0) fail("getting a buffer");
        memcpy(buffer.data, &n, sizeof n);
        if (insane_emit_data(source, &buffer) < 0) fail("emitting");
        usleep((useconds_t)(n % 3 * 100));
    }
    for (int i = 0; i < CHANNELS; i++) insane_close_source(sources[i]);
    insane_close_stream(stream);
    insane_close_session(session);
}

int main(int argc, char **argv)
{
    long messages = argc > 1 ? atol(argv[1]) : 1000, seen = 0, ticks = 0, slept = 0;
    insane_session_t *session;
    insane_stream_t *stream;
    insane_sink_t *sinks[CHANNELS];
    insane_waitset_t *set;
    char name[16];
    pid_t child = fork();
    if (child == 0) {
        emit(messages);
        return 0;
    }
    if (insane_init_session("event loop in C", NULL, NULL, &session) != 0) fail("opening a session");
    if (insane_create_stream(session, NULL, NULL, &stream) != 0) fail("opening a stream");
    if (insane_create_waitset(&set) != 0) fail("making a wait set");
    for (int i = 0; i < CHANNELS; i++) {
        snprintf(name, sizeof name, "event/%d", i);
        if (insane_create_sink_named(stream, name, INSANE_WAIT_SLEEP, NULL, NULL, &sinks[i]) != 0) fail("opening a sink");
        if (insane_waitset_add(set, sinks[i]) != i) fail("adding a sink");
    }
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec every = { { 0, 10000000 }, { 0, 10000000 } };
    timerfd_settime(timer, 0, &every, NULL);
    while (seen < messages) {
        size_t keys[CHANNELS];
        long ready = insane_waitset_ready(set, keys, CHANNELS);
        if (ready < 0) fail("looking");
        for (long k = 0; k < ready; k++) {
            insane_buffer_t buffer;
            while (insane_consume_data(sinks[keys[k]], INSANE_NONBLOCKING, 0, &buffer) == 0) {
                seen++;
                insane_release_buffer(sinks[keys[k]], &buffer);
            }
        }
        if (ready > 0 || insane_waitset_arm(set) != 1) continue;
        struct pollfd fds[2] = { { insane_waitset_fd(set), POLLIN, 0 }, { timer, POLLIN, 0 } };
        uint64_t expired;
        poll(fds, 2, -1);
        slept++;
        if (read(timer, &expired, sizeof expired) == sizeof expired) ticks++;
    }
    printf("%ld messages of %d channels, %ld sleeps, %s\n", seen, CHANNELS, slept, ticks > 0 ? "a timer beside" : "no tick");
    insane_close_waitset(set);
    for (int i = 0; i < CHANNELS; i++) insane_close_sink(sinks[i]);
    insane_close_stream(stream);
    insane_close_session(session);
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}
