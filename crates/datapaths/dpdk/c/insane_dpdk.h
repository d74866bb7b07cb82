/* What the parts of libinsane_dpdk.so know of each other. */
#ifndef INSANE_DPDK_H
#define INSANE_DPDK_H

#include <insane_datapath.h>

#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

struct rte_flow;

#define TEXT 256
#define STASH 64

/* The most receive queues of a port. */
#define MOST_QUEUES 16u

/* What a port is to be, from its options. */
struct choice {
    char device[512]; /* a virtual device with its arguments, or a PCI address */
    char eal[512];    /* arguments of the EAL; empty: by the kind of device */
    struct rte_ether_addr address;
    bool has_address;
    uint32_t mtu; /* 0: the interface's, or 1500 */
    uint32_t buffers;
    uint32_t ring;
    uint32_t queues;               /* to receive by, up to MOST_QUEUES; 0: as the device offers */
    struct sockaddr_storage steer; /* the IP address and UDP port that its frames are for, if it is known */
    bool interrupts; /* a card's receive interrupts may be relied on */
    bool tagged;     /* frames have a VLAN tag, beside their payload of the MTU */
    bool lend;       /* received frames are to lie in memory that can be shown to others, if that can be */
};

/* How connecting anew stands. While it is under way, the device is the interrupt thread's alone. */
enum { SETTLED, UNDER_WAY, ENDED };

struct insane_datapath_port {
    struct choice choice;
    /* The rest is there while it is open. */
    uint16_t id;
    bool physical, started;
    atomic_bool held; /* by a burst, or by what memif does with its peer's messages */
    insane_datapath_port *next_guarded; /* memif's ports, of guard.c */
    atomic_ulong heard; /* so often memif's peers were heard while this port's bursts were kept out */
    bool memif, client; /* of memif's two ends the one that connects */
    bool joins, gone;   /* virtio-user that connects to a server; that has left it */
    bool gathers;
    char name[RTE_ETH_NAME_MAX_LEN]; /* of the device */
    char driver[64];
    char chosen[4 * TEXT];
    uint16_t queues;               /* by which it receives */
    uint16_t next;                 /* which is asked next */
    uint64_t came[MOST_QUEUES];    /* frames that each has brought */
    char queues_text[TEXT / 2];    /* how many there are, and why */
    struct rte_flow *rule;         /* that steers to them, or NULL */
    char rule_text[TEXT / 2];
    struct rte_ether_addr address;
    uint32_t max_frame;
    int membership; /* a socket by which a kernel's interface lets the station's frames in, or -1 */
    uint32_t channels; /* that the kernel's interface below AF_XDP has: as many queues it may have */
    int ring;       /* AF_PACKET's socket, of the driver's, or -1 */
    int ring_room;  /* as many bytes of frames on their way leave the driver no reason to wait for room in its ring */
    int ring_left;  /* of them, what was left when the kernel was asked last, less the most that has been put on its way since */
    int xdp[MOST_QUEUES]; /* AF_XDP's sockets, of the driver's, or -1 */
    ino_t xdp_socket[MOST_QUEUES]; /* which that is, whatever has its descriptor meanwhile */
    unsigned xdps;
    int wake;       /* -1: it can only be polled */
    int wake_of[MOST_QUEUES]; /* of each queue */
    int gathered;   /* all of those in one, where there are several, or -1 */
    bool wakes, wake_counts, armed;
    bool may_be_busy; /* it did not open, which may be as another socket has its queue */
    struct rte_mempool *rx, *tx, *lend;
    /* The bytes of `rx`'s buffers, if they can be shown to others: a sealed memfd, or -1. What lies around them is not in it. */
    int shown_fd;
    uint8_t *shown;
    uint32_t shown_stride, shown_slots;
    struct rte_mbuf *stash[STASH]; /* received when it was armed */
    uint32_t stashed;
    uint32_t lent; /* pieces of payload that the driver has not let go of */
    bool up;
    atomic_int connecting;
    bool connected; /* its outcome: the device was started */
    uint64_t look, retry; /* when to look at the link again, when to start again, in cycles */
    uint64_t overruns, calls;
};

/* options.c: 0, or an error's text is written. */
int choice_set(struct choice *choice, const char *key, const char *value, char *error, size_t capacity);
int choice_check(const struct choice *choice, char *error, size_t capacity);
/* Whether it is a PCI address, with or without arguments. */
bool is_pci(const char *device);
/* The value of one argument of a device, into `to`. */
bool device_argument(const char *device, const char *key, char *to, size_t capacity);

/* guard.c */
/* Puts itself between memif's driver and DPDK, before the drivers are loaded. */
void guard_prepare(void);
/* Whether that worked. */
bool guard_is_in_place(void);
/* From now on memif's peers are heard only between this port's bursts; and no more. */
void guard_port(insane_datapath_port *port);
void guard_port_no_more(insane_datapath_port *port);
/* Begins a burst; false: not now. */
static inline bool guard_enter(insane_datapath_port *port) { return !atomic_exchange_explicit(&port->held, true, memory_order_acquire); }
static inline void guard_leave(insane_datapath_port *port) { atomic_store_explicit(&port->held, false, memory_order_release); }

/* queues.c */
/* The argument by which a virtual device of this name is told how many queues it has; NULL: there is none. */
const char *queues_argument(const char *name);
/* Why a device has one queue whatever it offers, as frames of one address are to stay in order; NULL: it may have several. */
const char *queues_one(const char *name);
/* Decides by how many queues a port receives, and how frames are spread over them. */
void queues_choose(insane_datapath_port *port, const struct rte_eth_dev_info *info, struct rte_eth_conf *conf);
/* After its driver has refused several that nobody asked for. */
void queues_only_one(insane_datapath_port *port, struct rte_eth_conf *conf);
/* How many queues to send by it is to have. Only the first is used: frames to one address stay in order. */
uint16_t queues_to_send(const insane_datapath_port *port, const struct rte_eth_dev_info *info);
/* Asks a device that is started for a rule that spreads what comes for the port's own UDP port over its queues. */
void queues_steer(insane_datapath_port *port);
/* Takes the rule away. */
void queues_let_go(insane_datapath_port *port);
/* Finds what wakes who waits for any of the queues. */
void queues_find_wake(insane_datapath_port *port);
/* From now on frames wake: false, if they would not. */
bool queues_arm(insane_datapath_port *port);
void queues_disarm(insane_datapath_port *port);

/* eal.c: starts DPDK in this process, once; what it refuses it refuses for good. */
int eal_start(const char *arguments, char *error, size_t capacity);
/* The arguments with which it was started. */
const char *eal_arguments(void);
/* What DPDK has logged last, and since when. */
void eal_log_mark(void);
const char *eal_log_last(void);
/* This thread gets caches of its own; cheap when it has them. */
void eal_thread(void);

/* Does something with a port in the thread that handles its device's events, and waits for it. */
void eal_run(void (*act)(insane_datapath_port *port), insane_datapath_port *port);
/* The same without waiting; false if it cannot be asked. */
bool eal_later(void (*act)(void *port), insane_datapath_port *port);

/* open.c */
int32_t port_open(insane_datapath_port *port, insane_datapath_info *info, char *error, size_t capacity);
void port_close(insane_datapath_port *port);

/* traffic.c */
/* Starts a port, if what it connects to is there. */
bool port_start(insane_datapath_port *port);
int32_t port_reserve(insane_datapath_port *port, insane_datapath_buffer *buffers, uint32_t count);
int32_t port_send(insane_datapath_port *port, const insane_datapath_outgoing *frames, uint32_t count);
int32_t port_receive(insane_datapath_port *port, insane_datapath_incoming *frames, uint32_t count);
void port_release(insane_datapath_port *port, void *const *handles, uint32_t count);
int32_t port_arm(insane_datapath_port *port);
/* Looks at the link, at most every few milliseconds, and has what has to connect anew do so. Waits for nothing. */
void port_look(insane_datapath_port *port);
/* Waits until nobody else has to do with the device. */
void port_settle(insane_datapath_port *port);

#endif
