/* The two spinning floors that every repetition is compared with.
 *
 *   cc -O2 -o floor-method method.c
 *   floor-method rtt    CORE_A CORE_B PAYLOAD COUNT      round trips, nanoseconds
 *   floor-method oneway CORE_A CORE_B PAYLOAD SECONDS    messages per second
 *
 * One JSON line each. It forks its other end and shares anonymous memory with it.
 *
 * rtt: each direction has a flag on its own line pair and a payload. A writes its payload and raises the flag; B reads
 * all of it and answers in the same way; A reads all of the answer.
 * oneway: 1024 slots of a sequence number and a payload. A fills every byte and publishes the number; B reads every
 * byte and tells its progress every 32 messages, which A looks at only when the ring seems full.
 *
 * It is C at -O2 and stays so. The one-way figure depends on how close behind the writer the reader runs: code that is
 * a few instructions longer per message can reach twice the rate, because the reader then steals fewer half-written
 * lines. A floor has to be one thing, so it is this one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 10000
#define SLOTS 1024
#define PROGRESS_EVERY 32
#define CLOCK_EVERY 1024
#define LARGEST 65536

struct flag { _Alignas(128) _Atomic uint64_t value; };
struct direction { struct flag flag; _Alignas(128) unsigned char payload[LARGEST]; };
struct slot { _Alignas(64) _Atomic uint64_t number; unsigned char payload[]; };

static pid_t other;

static void fail(const char *what)
{
    fprintf(stderr, "floor-method: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) fail("clock_gettime");
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* CPU time of both ends. */
static uint64_t cpu_ns(void)
{
    clockid_t theirs;
    if ((errno = clock_getcpuclockid(other, &theirs)) != 0) fail("clock_getcpuclockid");
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID) + clock_ns(theirs);
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("pinning to a core");
}

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    return memory;
}

/* The sum is handed to an empty assembly, so that the compiler has to read every byte. */
static void read_all(const unsigned char *payload, size_t bytes)
{
    uint64_t sum = 0, word;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, payload + at, sizeof word);
        sum += word;
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
}

static void send_message(struct direction *to, uint64_t n, size_t bytes)
{
    memset(to->payload, (int)n, bytes);
    atomic_store_explicit(&to->flag.value, n, memory_order_release);
}

static void await_message(struct direction *from, uint64_t n, size_t bytes)
{
    while (atomic_load_explicit(&from->flag.value, memory_order_acquire) != n) { }
    read_all(from->payload, bytes);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t at_part(const uint64_t *sorted, long count, double part)
{
    long i = (long)((double)count * part);
    return sorted[i < count ? i : count - 1];
}

/* The same points as the other programs print, see harness/src/summary.rs. */
static void print_distribution(const uint64_t *sorted, long count)
{
    static const int points[] = { 0, 1000, 5000, 10000, 15000, 20000, 25000, 30000, 35000, 40000, 45000, 50000, 55000,
        60000, 65000, 70000, 75000, 80000, 85000, 90000, 95000, 98000, 99000, 99500, 99900, 99990, 100000 };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        printf("%s%lu", i ? "," : "", at_part(sorted, count, points[i] / 1e5));
}

static void rtt(int core_a, int core_b, size_t bytes, long count)
{
    struct direction *way = shared(2 * sizeof *way);
    uint64_t *samples = malloc((size_t)count * sizeof *samples), n = 0;
    if (samples == NULL) fail("malloc");
    if ((other = fork()) < 0) fail("fork");
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(core_b);
        for (uint64_t m = 1;; m++) { await_message(&way[0], m, bytes); send_message(&way[1], m, bytes); }
    }
    pin(core_a);
    while (n < WARM_UP) { n++; send_message(&way[0], n, bytes); await_message(&way[1], n, bytes); }
    uint64_t cpu = cpu_ns(), begin = now_ns();
    for (long i = 0; i < count; i++) {
        uint64_t start = now_ns();
        n++;
        send_message(&way[0], n, bytes);
        await_message(&way[1], n, bytes);
        samples[i] = now_ns() - start;
    }
    uint64_t elapsed = now_ns() - begin;
    cpu = cpu_ns() - cpu;
    kill(other, SIGKILL);
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    printf("{\"floor\":\"rtt\",\"cores\":[%d,%d],\"payload_bytes\":%zu,\"samples\":%ld,\"elapsed_ns\":%lu,"
           "\"cpu_ns\":%lu,\"min_ns\":%lu,\"median_ns\":%lu,\"p99_ns\":%lu,\"p999_ns\":%lu,\"max_ns\":%lu,\"cdf_ns\":[",
           core_a, core_b, bytes, count, elapsed, cpu, samples[0], at_part(samples, count, 0.5),
           at_part(samples, count, 0.99), at_part(samples, count, 0.999), samples[count - 1]);
    print_distribution(samples, count);
    printf("]}\n");
}

static void oneway(int core_a, int core_b, size_t bytes, double seconds)
{
    size_t stride = (sizeof(struct slot) + bytes + 63) / 64 * 64;
    unsigned char *ring = shared(stride * SLOTS);
    struct flag *progress = shared(sizeof *progress);
    if ((other = fork()) < 0) fail("fork");
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(core_a);
        for (uint64_t n = 0, seen = 0;; n++) {
            while (n - seen >= SLOTS) seen = atomic_load_explicit(&progress->value, memory_order_acquire);
            struct slot *slot = (struct slot *)(ring + n % SLOTS * stride);
            memset(slot->payload, (int)n, bytes);
            atomic_store_explicit(&slot->number, n + 1, memory_order_release);
        }
    }
    pin(core_b);
    uint64_t limit = (uint64_t)(seconds * 1e9), start = 0, end = 0, cpu = 0, n = 0;
    for (;; n++) {
        struct slot *slot = (struct slot *)(ring + n % SLOTS * stride);
        while (atomic_load_explicit(&slot->number, memory_order_acquire) != n + 1) { }
        read_all(slot->payload, bytes);
        if (n % PROGRESS_EVERY == PROGRESS_EVERY - 1)
            atomic_store_explicit(&progress->value, n + 1, memory_order_release);
        if (n == WARM_UP) { cpu = cpu_ns(); start = now_ns(); }
        if (n > WARM_UP && n % CLOCK_EVERY == 0 && (end = now_ns()) - start >= limit) break;
    }
    cpu = cpu_ns() - cpu;
    kill(other, SIGKILL);
    printf("{\"floor\":\"oneway\",\"cores\":[%d,%d],\"payload_bytes\":%zu,\"samples\":%lu,\"elapsed_ns\":%lu,"
           "\"cpu_ns\":%lu,\"lost\":0,\"msgs_per_s\":%.0f}\n",
           core_a, core_b, bytes, n - WARM_UP, end - start, cpu, (double)(n - WARM_UP) * 1e9 / (double)(end - start));
}

/* A whole number from 'low' to 'high', or the usage text and the end. */
static long number(const char *text, long low, long high, const char *what)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < low || value > high) {
        fprintf(stderr, "floor-method: %s '%s' is not between %ld and %ld\n", what, text, low, high);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc != 6 || (strcmp(argv[1], "rtt") != 0 && strcmp(argv[1], "oneway") != 0)) {
        fprintf(stderr, "usage: floor-method rtt|oneway CORE_A CORE_B PAYLOAD COUNT|SECONDS\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int a = (int)number(argv[2], 0, CPU_SETSIZE - 1, "core"), b = (int)number(argv[3], 0, CPU_SETSIZE - 1, "core");
    size_t bytes = (size_t)number(argv[4], 8, LARGEST, "payload");
    if (strcmp(argv[1], "rtt") == 0) {
        rtt(a, b, bytes, number(argv[5], 1000, 10000000, "count"));
    } else {
        char *end;
        double seconds = strtod(argv[5], &end);
        if (*end != '\0' || !(seconds > 0 && seconds <= 60)) {
            fprintf(stderr, "floor-method: seconds '%s' are not in (0, 60]\n", argv[5]);
            return 2;
        }
        oneway(a, b, bytes, seconds);
    }
    return 0;
}
