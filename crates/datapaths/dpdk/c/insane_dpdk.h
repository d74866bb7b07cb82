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
#include <sys/types.h>

#define TEXT 256
#define STASH 64

/* What a port is to be, from its options. */
struct choice {
    char device[512]; /* a virtual device with its arguments, or a PCI address */
    char eal[512];    /* arguments of the EAL; empty: by the kind of device */
    struct rte_ether_addr address;
    bool has_address;
    uint32_t mtu; /* 0: the interface's, or 1500 */
    uint32_t buffers;
    uint32_t ring;
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
    bool memif, client; /* of memif's two ends the one that connects */
    bool joins, gone;   /* virtio-user that connects to a server; that has left it */
    bool gathers;
    char name[RTE_ETH_NAME_MAX_LEN]; /* of the device */
    char driver[64];
    char chosen[TEXT + 64];
    struct rte_ether_addr address;
    uint32_t max_frame;
    int membership; /* a socket by which a kernel's interface lets the station's frames in, or -1 */
    int ring;       /* AF_PACKET's socket, of the driver's, or -1 */
    int ring_room;  /* as many bytes of frames on their way leave the driver no reason to wait for room in its ring */
    int ring_left;  /* of them, what was left when the kernel was asked last, less the most that has been put on its way since */
    int xdp;        /* AF_XDP's socket, of the driver's, or -1 */
    ino_t xdp_socket; /* which that is, whatever has its descriptor meanwhile */
    int wake;       /* -1: it can only be polled */
    bool wakes, wake_counts, armed;
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

/* eal.c: starts DPDK in this process, once. */
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
