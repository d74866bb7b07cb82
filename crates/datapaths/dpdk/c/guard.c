/* memif's control messages, handled only between bursts.
 *
 * memif's driver handles what its peer says, and that it is gone, in DPDK's interrupt thread, and unmaps the peer's memory there whether
 * or not a burst is reading it. It asks DPDK for that by rte_intr_callback_register, and finds that function where the dynamic linker
 * looks first: here, since this object's symbols are everybody's before DPDK loads its drivers. What memif registers is called with all
 * bursts of memif's ports kept out; what others register goes to DPDK as it is. */
#define _GNU_SOURCE
#include "insane_dpdk.h"

#include <rte_eal.h>
#include <rte_interrupts.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What memif has registered. */
struct guarded {
    struct guarded *next;
    rte_intr_callback_fn call;
    rte_intr_unregister_callback_fn end;
    void *argument;
    int fd;
    ino_t socket; /* which that is, whatever has the descriptor meanwhile */
    const struct rte_intr_handle *handle;
};

/* What is registered by what is being called goes to DPDK after that: when memif's server does not reach a client that has left already, it
 * closes the connection and leaves it registered, of which DPDK's thread ends the process. */
static __thread bool calling;
static __thread struct guarded *fresh;

/* Of `all`. Nothing is called with it, as DPDK has a lock when it ends what is registered. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct guarded *all;
static pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;
static insane_datapath_port *ports; /* memif's */
static bool in_place;

static int (*real_register)(const struct rte_intr_handle *handle, rte_intr_callback_fn call, void *argument);
static int (*real_unregister)(const struct rte_intr_handle *handle, rte_intr_callback_fn call, void *argument);
static int (*real_unregister_pending)(const struct rte_intr_handle *handle, rte_intr_callback_fn call, void *argument,
                                      rte_intr_unregister_callback_fn end);

static void find_real(void)
{
    Dl_info eal;
    void *library = dladdr((void *)(uintptr_t)rte_eal_init, &eal) != 0 ? dlopen(eal.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (library == NULL)
        return;
    *(void **)&real_register = dlsym(library, "rte_intr_callback_register");
    *(void **)&real_unregister = dlsym(library, "rte_intr_callback_unregister");
    *(void **)&real_unregister_pending = dlsym(library, "rte_intr_callback_unregister_pending");
}

static pthread_once_t real_once = PTHREAD_ONCE_INIT;

static bool is_memif(rte_intr_callback_fn call)
{
    Dl_info of;
    return dladdr((void *)(uintptr_t)call, &of) != 0 && of.dli_fname != NULL && strstr(of.dli_fname, "librte_net_memif") != NULL;
}

static struct guarded *find(rte_intr_callback_fn call, void *argument)
{
    pthread_mutex_lock(&lock);
    struct guarded *one = all;
    while (one != NULL && (one->call != call || one->argument != argument))
        one = one->next;
    pthread_mutex_unlock(&lock);
    return one;
}

static void forget(struct guarded *one)
{
    pthread_mutex_lock(&lock);
    for (struct guarded **at = &all; *at != NULL; at = &(*at)->next) {
        if (*at == one) {
            *at = one->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    free(one);
}

static void call_between_bursts(void *context);

/* If what it is about is open still. */
static int register_now(struct guarded *one)
{
    struct stat is;
    int result = fstat(one->fd, &is) == 0 && is.st_ino == one->socket ? 0 : -ENOENT;
    if (result == 0) {
        pthread_mutex_lock(&lock);
        one->next = all;
        all = one;
        pthread_mutex_unlock(&lock);
        result = real_register(one->handle, call_between_bursts, one);
        /* From now on it is gone when DPDK says so. */
        if (result == 0)
            return 0;
    }
    forget(one);
    return result;
}

static void call_between_bursts(void *context)
{
    struct guarded *one = context;
    /* An event may be that of an earlier connection, which had the same descriptor: the driver would wait for a message. */
    struct pollfd some = { .fd = one->fd, .events = POLLIN };
    if (poll(&some, 1, 0) < 1)
        return;
    pthread_mutex_lock(&ports_lock);
    for (insane_datapath_port *port = ports; port != NULL; port = port->next_guarded)
        while (!guard_enter(port))
            sched_yield();
    calling = true;
    one->call(one->argument);
    calling = false;
    while (fresh != NULL) {
        struct guarded *next = fresh;
        fresh = next->next;
        register_now(next);
    }
    for (insane_datapath_port *port = ports; port != NULL; port = port->next_guarded) {
        atomic_fetch_add_explicit(&port->heard, 1, memory_order_relaxed);
        guard_leave(port);
    }
    pthread_mutex_unlock(&ports_lock);
}

__attribute__((visibility("default"))) int rte_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn call,
                                                                      void *argument)
{
    pthread_once(&real_once, find_real);
    struct guarded *one = is_memif(call) ? calloc(1, sizeof *one) : NULL;
    if (one == NULL)
        return real_register(handle, call, argument);
    struct stat is = { 0 };
    *one = (struct guarded){ .call = call, .argument = argument, .fd = rte_intr_fd_get(handle), .handle = handle };
    (void)fstat(one->fd, &is);
    one->socket = is.st_ino;
    if (!calling)
        return register_now(one);
    one->next = fresh;
    fresh = one;
    return 0;
}

__attribute__((visibility("default"))) int rte_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn call,
                                                                        void *argument)
{
    pthread_once(&real_once, find_real);
    struct guarded *one = find(call, argument);
    int result = one != NULL ? real_unregister(handle, call_between_bursts, one) : real_unregister(handle, call, argument);
    if (one != NULL && result > 0)
        forget(one);
    return result;
}

static void end(struct rte_intr_handle *handle, void *context)
{
    struct guarded *one = context;
    if (one->end != NULL)
        one->end(handle, one->argument);
    forget(one);
}

__attribute__((visibility("default"))) int rte_intr_callback_unregister_pending(const struct rte_intr_handle *handle,
                                                                                rte_intr_callback_fn call, void *argument,
                                                                                rte_intr_unregister_callback_fn at_end)
{
    pthread_once(&real_once, find_real);
    struct guarded *one = find(call, argument);
    if (one != NULL)
        one->end = at_end;
    return one != NULL ? real_unregister_pending(handle, call_between_bursts, one, end)
                       : real_unregister_pending(handle, call, argument, at_end);
}

void guard_prepare(void)
{
    Dl_info own;
    pthread_once(&real_once, find_real);
    /* Its host has loaded this object for itself alone. Nothing is loaded here: from now on it is everybody's. */
    if (real_register != NULL && real_unregister != NULL && real_unregister_pending != NULL
        && dladdr((void *)(uintptr_t)guard_prepare, &own) != 0 && dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != NULL)
        in_place = dlsym(RTLD_DEFAULT, "rte_intr_callback_register") == (void *)(uintptr_t)rte_intr_callback_register;
}

bool guard_is_in_place(void) { return in_place; }

void guard_port(insane_datapath_port *port)
{
    pthread_mutex_lock(&ports_lock);
    port->next_guarded = ports;
    ports = port;
    pthread_mutex_unlock(&ports_lock);
}

void guard_port_no_more(insane_datapath_port *port)
{
    pthread_mutex_lock(&ports_lock);
    insane_datapath_port **at = &ports;
    while (*at != NULL && *at != port)
        at = &(*at)->next_guarded;
    if (*at != NULL)
        *at = port->next_guarded;
    pthread_mutex_unlock(&ports_lock);
}
