/* INSANE through its C interface: round trips, by the contract of bench/README.md. The helper process is that of bench-insane.
 *
 *   cc -O2 -I crates/capi/include main.c -linsane -lpthread
 */
#define _GNU_SOURCE
#include <errno.h>
#include <insane.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 50, MEETING_MS = 20000, MAX_PIDS = 64, GRACE_US = 200000 };

static struct {
    const char *role, *dir;
    size_t payload;
    int wait;
    long count, warmup;
    double seconds;
    cpu_set_t cores;
} args = {.dir = ".", .payload = 64, .wait = INSANE_WAIT_SPIN, .count = 20000, .warmup = 10000, .seconds = 0.5};

static atomic_int stop;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, insane_last_error());
    exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) {
        perror("clock_gettime");
        exit(1);
    }
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Fills a whole message for number n: every byte its low byte, the first eight the number itself. */
static void stamp(unsigned char *message, size_t size, uint64_t n)
{
    memset(message, (int)(n & 0xff), size);
    memcpy(message, &n, sizeof n);
}

/* Reads every byte of a message, checks it and returns its number. */
static uint64_t check(const unsigned char *message, size_t size)
{
    uint64_t sum = 0, word, n;
    if (size != args.payload) {
        fprintf(stderr, "a message of %zu bytes where %zu were sent\n", size, args.payload);
        exit(1);
    }
    for (size_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&word, message + i, 8);
        sum += word;
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
    memcpy(&n, message, sizeof n);
    if (size > 8 && message[size - 1] != (n & 0xff)) {
        fprintf(stderr, "message %llu was damaged\n", (unsigned long long)n);
        exit(1);
    }
    return n;
}

static void *watch(void *unused)
{
    char line[256];
    (void)unused;
    while (fgets(line, sizeof line, stdin) != NULL) { }
    atomic_store(&stop, 1);
    /* The server ends by itself after its next look. */
    usleep(GRACE_US);
    _exit(0);
}

/* Says ready, waits for "go PID…", and from then on watches for the end of standard input. Returns how many pids came. */
static int await_go(clockid_t *clocks)
{
    char line[1024], *word;
    pthread_t thread;
    int count = 0;
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) exit(0);
    if ((word = strtok(line, " \n")) == NULL || strcmp(word, "go") != 0) {
        fprintf(stderr, "expected 'go PID…' on standard input\n");
        exit(1);
    }
    while ((word = strtok(NULL, " \n")) != NULL && count < MAX_PIDS) {
        if (clock_getcpuclockid((pid_t)atol(word), &clocks[count]) != 0) {
            fprintf(stderr, "no CPU clock of process %s\n", word);
            exit(1);
        }
        count++;
    }
    if (pthread_create(&thread, NULL, watch, NULL) != 0) {
        fprintf(stderr, "no thread\n");
        exit(1);
    }
    return count;
}

static uint64_t cpu_ns(const clockid_t *clocks, int count)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum += now_ns(clocks[i]);
    return sum;
}

static insane_stream_t *open_stream(void)
{
    char socket[PATH_MAX];
    insane_session_t *session;
    insane_stream_t *stream;
    snprintf(socket, sizeof socket, "%s/insane.sock", args.dir);
    if (insane_init_session("bench", NULL, socket, &session) != 0) fail("opening a session");
    if (insane_create_stream(session, NULL, NULL, &stream) != 0) fail("opening a stream");
    return stream;
}

static void send_stamped(insane_source_t *source, uint64_t n)
{
    insane_buffer_t buffer;
    if (insane_get_buffer(source, args.payload, 0, &buffer) != 0) fail("getting a buffer");
    stamp(buffer.data, args.payload, n);
    if (insane_emit_data(source, &buffer) < 0) fail("emitting");
}

static void serve(void)
{
    insane_stream_t *stream = open_stream();
    insane_source_t *source = NULL;
    insane_sink_t *sink;
    clockid_t clocks[MAX_PIDS];
    if (insane_create_sink_named(stream, "questions", args.wait, NULL, NULL, &sink) != 0) fail("opening a sink");
    await_go(clocks);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        insane_buffer_t question;
        int rc = insane_consume_data(sink, INSANE_BLOCKING, LOOK_MS, &question);
        if (rc == -INSANE_TIMEOUT) continue;
        if (rc != 0) fail("consuming");
        if (source == NULL && insane_create_source_named(stream, "answers", &source) != 0) fail("opening a source");
        send_stamped(source, check(question.data, question.length));
        if (insane_release_buffer(sink, &question) != 0) fail("releasing");
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t ask_once(insane_source_t *source, insane_sink_t *sink, uint64_t n)
{
    insane_buffer_t answer;
    uint64_t begin = now_ns(CLOCK_MONOTONIC), end;
    send_stamped(source, n);
    if (insane_consume_data(sink, INSANE_BLOCKING, MEETING_MS, &answer) != 0) fail("consuming");
    if (check(answer.data, answer.length) != n) fail("an answer to another question");
    end = now_ns(CLOCK_MONOTONIC);
    if (insane_release_buffer(sink, &answer) != 0) fail("releasing");
    return end - begin;
}

static void ask(void)
{
    insane_stream_t *stream = open_stream();
    insane_source_t *source;
    insane_sink_t *sink;
    clockid_t clocks[MAX_PIDS];
    uint64_t *t = malloc(sizeof *t * (size_t)args.count), n = 0, start, limit, end, cpu;
    long taken = 0;
    int pids;
    if (t == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    if (insane_create_sink_named(stream, "answers", args.wait, NULL, NULL, &sink) != 0) fail("opening a sink");
    if (insane_create_source_named(stream, "questions", &source) != 0) fail("opening a source");
    if (insane_wait_sinks(source, 1, MEETING_MS) < 1) fail("waiting for the other end");
    pids = await_go(clocks);
    while ((long)n < args.warmup) ask_once(source, sink, ++n);
    cpu = cpu_ns(clocks, pids);
    start = end = now_ns(CLOCK_MONOTONIC);
    limit = start + (uint64_t)(args.seconds * 1e9);
    while (taken < args.count && end < limit) {
        t[taken++] = ask_once(source, sink, ++n);
        end = now_ns(CLOCK_MONOTONIC);
    }
    cpu = cpu_ns(clocks, pids) - cpu;
    qsort(t, (size_t)taken, sizeof *t, by_value);
    printf("{\"samples\":%ld,\"elapsed_ns\":%llu,\"cpu_ns\":%llu,\"min_ns\":%llu,\"median_ns\":%llu,\"p99_ns\":%llu,"
           "\"p999_ns\":%llu,\"max_ns\":%llu}\n",
           taken, (unsigned long long)(end - start), (unsigned long long)cpu, (unsigned long long)t[0],
           (unsigned long long)t[taken / 2], (unsigned long long)t[taken * 99 / 100],
           (unsigned long long)t[taken * 999 / 1000], (unsigned long long)t[taken - 1]);
    fflush(stdout);
    while (!atomic_load(&stop)) usleep(2000);
}

static void describe(void)
{
    const char *waiting[] = {"spin", "adaptive", "sleep"};
    printf("{\"system\":\"insane\",\"language\":\"c\",\"version\":\"%s\",\"absent\":[],\"modes\":[", insane_version());
    for (int i = 0; i < 3; i++)
        printf("%s{\"experiment\":\"rtt\",\"waiting\":\"%s\",\"variant\":\"\",\"transport\":\"shm\",\"aux\":true,"
               "\"aux_core\":false}", i ? "," : "", waiting[i]);
    puts("]}");
}

/* The runtime, by the Rust program that lies beside this one. */
static void runtime(char **argv)
{
    char self[PATH_MAX], path[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = 0;
        snprintf(path, sizeof path, "%s/bench-insane", dirname(self));
        execv(path, argv);
    }
    fprintf(stderr, "bench-insane beside this program: %s\n", strerror(errno));
    exit(1);
}

static void parse_cores(char *text)
{
    CPU_ZERO(&args.cores);
    for (char *word = strtok(text, ","); word != NULL; word = strtok(NULL, ",")) CPU_SET(atoi(word), &args.cores);
}

static void parse(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench-insane-c ROLE [--OPTION VALUE]...\n");
        exit(2);
    }
    args.role = argv[1];
    CPU_SET(0, &args.cores);
    for (int i = 2; i + 1 < argc; i += 2) {
        char *value = argv[i + 1];
        if (strcmp(argv[i], "--core") == 0) parse_cores(value);
        else if (strcmp(argv[i], "--dir") == 0) args.dir = value;
        else if (strcmp(argv[i], "--payload") == 0) args.payload = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--count") == 0) args.count = atol(value);
        else if (strcmp(argv[i], "--warmup") == 0) args.warmup = atol(value);
        else if (strcmp(argv[i], "--seconds") == 0) args.seconds = atof(value);
        else if (strcmp(argv[i], "--waiting") == 0) {
            args.wait = value[0] == 'a' ? INSANE_WAIT_ADAPTIVE
                                        : strcmp(value, "sleep") == 0 ? INSANE_WAIT_SLEEP : INSANE_WAIT_SPIN;
        }
    }
    if (args.payload < 8 || args.payload % 8 != 0 || args.count < 1 || args.warmup < 0 || !(args.seconds > 0)) {
        fprintf(stderr, "--payload, --count, --warmup or --seconds is out of range\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    if (strcmp(args.role, "describe") == 0) {
        describe();
        return 0;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(args.role, "aux") == 0) runtime(argv);
    if (sched_setaffinity(0, sizeof args.cores, &args.cores) != 0) {
        perror("sched_setaffinity");
        return 1;
    }
    if (strcmp(args.role, "rtt-server") == 0) serve();
    else if (strcmp(args.role, "rtt-client") == 0) ask();
    else {
        fprintf(stderr, "no role %s\n", args.role);
        return 2;
    }
    return 0;
}
