/* DPDK's environment: started once in a process, by a thread of its own, for all ports. */
#define _GNU_SOURCE
#include "insane_dpdk.h"

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_lcore.h>
#include <rte_version.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 48

static char started[512];   /* the arguments */
static bool tried;
static int outcome;         /* of rte_eal_init, as an error number; 0 if it has started */
static char why[512];       /* it has not: said to everybody who asks from then on */

/* The last line that DPDK has logged: the reason of what failed is in none of its return values. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_line[TEXT];
static bool log_fresh;
static __thread char log_copy[TEXT];

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
    (void)cookie;
    size_t end = length;
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' '))
        end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    if (end > begin) {
        pthread_mutex_lock(&log_lock);
        snprintf(log_line, sizeof log_line, "%.*s", (int)(end - begin), text + begin);
        log_fresh = true;
        pthread_mutex_unlock(&log_lock);
    }
    return (ssize_t)length;
}

void eal_log_mark(void)
{
    pthread_mutex_lock(&log_lock);
    log_fresh = false;
    pthread_mutex_unlock(&log_lock);
}

const char *eal_log_last(void)
{
    pthread_mutex_lock(&log_lock);
    snprintf(log_copy, sizeof log_copy, "%s", log_fresh ? log_line : "DPDK says no more");
    pthread_mutex_unlock(&log_lock);
    return log_copy;
}

const char *eal_arguments(void) { return started; }

static bool given(const char *arguments, const char *option)
{
    for (const char *at = strstr(arguments, option); at != NULL; at = strstr(at + 1, option))
        if (at == arguments || at[-1] == ' ')
            return true;
    return false;
}

/* One lcore that may run on every processor that this process may: otherwise the EAL binds threads to processors. */
static void every_processor(char *to, size_t room)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    size_t at = (size_t)snprintf(to, room, "--lcores=0@(");
    for (int cpu = 0, first = 1; cpu < CPU_SETSIZE && at + 8 < room; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            at += (size_t)snprintf(to + at, room - at, "%s%d", first ? "" : ",", cpu);
            first = 0;
        }
    }
    snprintf(to + at, room - at, ")");
}

struct arguments {
    int count;
    char *list[MOST];
};

static void *start(void *context)
{
    struct arguments *arguments = context;
    outcome = rte_eal_init(arguments->count, arguments->list) < 0 ? (rte_errno != 0 ? rte_errno : EINVAL) : 0;
    return NULL;
}

static int start_once(const char *wanted)
{
    static char text[512], lcores[1024];
    struct arguments arguments = { 0 };
    /* The EAL keeps its arguments. */
    snprintf(text, sizeof text, "%s", wanted);
    arguments.list[arguments.count++] = (char *)"insane";
    if (!given(wanted, "-l") && !given(wanted, "-c") && !given(wanted, "--lcores")) {
        every_processor(lcores, sizeof lcores);
        arguments.list[arguments.count++] = lcores;
    }
    arguments.list[arguments.count++] = (char *)"--no-telemetry";
    /* No files that outlive the process, and no second process. */
    if (!given(wanted, "--in-memory") && !given(wanted, "--file-prefix"))
        arguments.list[arguments.count++] = (char *)"--no-shconf";
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word != NULL && arguments.count < MOST - 1; word = strtok_r(NULL, " ", &rest))
        arguments.list[arguments.count++] = word;
    FILE *log = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });
    if (log != NULL) {
        setvbuf(log, NULL, _IOLBF, TEXT);
        rte_openlog_stream(log);
    }
    /* Whoever starts the EAL becomes its main thread, bound to its processors. */
    pthread_t thread;
    int result = pthread_create(&thread, NULL, start, &arguments);
    if (result == 0)
        pthread_join(thread, NULL);
    else
        outcome = result;
    return outcome;
}

/* The caller holds the lock of open.c. Whatever it says is so for as long as the process lives. */
int eal_start(const char *arguments, char *error, size_t capacity)
{
    if (!tried) {
        tried = true;
        snprintf(started, sizeof started, "%s", arguments);
        eal_log_mark();
        guard_prepare();
        /* Cut where they may be long: what is to be done about it stands at the end. */
        if (start_once(arguments) != 0)
            snprintf(why, sizeof why,
                     "%s does not start with \"%.120s\": %s (%.160s): said when DPDK was started in this process; restart the runtime after mending it",
                     rte_version(), started, rte_strerror(outcome), eal_log_last());
    }
    if (outcome != 0) {
        snprintf(error, capacity, "%s", why);
        return -1;
    }
    if (strcmp(started, arguments) != 0) {
        snprintf(error, capacity,
                 "DPDK was started in this process with \"%s\", and it starts once: for \"%s\" the runtime must restart", started,
                 arguments);
        return -1;
    }
    return 0;
}

static pthread_key_t at_end;
static pthread_once_t at_end_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *unused)
{
    (void)unused;
    rte_thread_unregister();
}

static void make_at_end(void) { pthread_key_create(&at_end, thread_ends); }

/* Without it buffers go to and from the pools one by one, past the caches, which are an lcore's. */
void eal_thread(void)
{
    /* Asked with every call: where all of a process's threads have it, so that finding it takes no call. It is one byte. */
    static __thread bool known __attribute__((tls_model("initial-exec")));
    if (likely(known))
        return;
    known = true;
    if (rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0) {
        pthread_once(&at_end_once, make_at_end);
        pthread_setspecific(at_end, &known);
    }
}

struct job {
    void (*act)(insane_datapath_port *port);
    insane_datapath_port *port;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

static void run(void *context)
{
    struct job *job = context;
    job->act(job->port);
    pthread_mutex_lock(&job->lock);
    job->done = true;
    pthread_cond_signal(&job->ended);
    pthread_mutex_unlock(&job->lock);
}

/* Late enough not to run right after an earlier one: the thread may have an event in hand of what that has closed, and would take it
 * for one of what this opens under the same descriptor. */
#define LATER_US 2000

bool eal_later(void (*act)(void *port), insane_datapath_port *port) { return rte_eal_alarm_set(LATER_US, act, port) == 0; }

/* memif's control messages are handled by the EAL's interrupt thread, without a lock against being stopped or closed elsewhere
 * meanwhile; alarms run in the same thread, so nothing is under way then. */
void eal_run(void (*act)(insane_datapath_port *port), insane_datapath_port *port)
{
    struct job job = { act, port, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
    if (rte_eal_alarm_set(LATER_US, run, &job) != 0) {
        act(port);
        return;
    }
    pthread_mutex_lock(&job.lock);
    while (!job.done)
        pthread_cond_wait(&job.ended, &job.lock);
    pthread_mutex_unlock(&job.lock);
}
