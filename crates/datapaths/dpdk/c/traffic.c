/* Frames: out of and into buffers of the port's own pools, which no other process can write. */
#include "insane_dpdk.h"

#include <rte_cycles.h>

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The link is looked at every 5 ms; what connects to a server connects anew after 300 ms without one, or 10 ms if it was refused.
 * Connecting takes DPDK's own thread some messages, and being stopped meanwhile does it no good. */
#define LOOK_MS 5
#define REFUSED_MS 10
#define RECONNECT_MS 300

/* What the kernel counts for a frame on its way besides its bytes, at most: a buffer's head, and a page for the frame's. */
#define MOST_BESIDES 8192

static uint64_t cycles(uint64_t ms) { return rte_get_tsc_hz() / 1000 * ms; }

static void start(insane_datapath_port *port) { port->started = rte_eth_dev_start(port->id) == 0; }

static void note_try(insane_datapath_port *port) { port->retry = rte_rdtsc() + cycles(port->started ? RECONNECT_MS : REFUSED_MS); }

bool port_start(insane_datapath_port *port)
{
    if (port->memif)
        eal_run(start, port);
    else
        start(port);
    note_try(port);
    return port->started;
}

static void connect_in_thread(void *context)
{
    insane_datapath_port *port = context;
    port->connected = rte_eth_dev_start(port->id) == 0;
    atomic_store_explicit(&port->connecting, ENDED, memory_order_release);
}

static void disconnect_in_thread(void *context)
{
    insane_datapath_port *port = context;
    rte_eth_dev_stop(port->id);
    /* One after the other: the thread may have an event in hand of the connection that is given up, and would take it for one of the new
     * connection, if that got the same descriptor meanwhile. */
    if (!eal_later(connect_in_thread, port)) {
        port->connected = false;
        atomic_store_explicit(&port->connecting, ENDED, memory_order_release);
    }
}

/* Connecting takes milliseconds, in which whoever polls this port has others to serve. */
static void connect_anew(insane_datapath_port *port)
{
    bool started = port->started;
    port->started = false;
    atomic_store_explicit(&port->connecting, UNDER_WAY, memory_order_relaxed);
    if (!eal_later(started ? disconnect_in_thread : connect_in_thread, port)) {
        atomic_store_explicit(&port->connecting, SETTLED, memory_order_relaxed);
        port->started = started;
        note_try(port);
    }
}

static bool is_settled(insane_datapath_port *port)
{
    int stands = atomic_load_explicit(&port->connecting, memory_order_acquire);
    if (stands == ENDED) {
        port->started = port->connected;
        note_try(port);
        atomic_store_explicit(&port->connecting, SETTLED, memory_order_relaxed);
    }
    return stands != UNDER_WAY;
}

void port_settle(insane_datapath_port *port)
{
    while (!is_settled(port))
        usleep(100);
}

void port_look(insane_datapath_port *port)
{
    uint64_t now = rte_rdtsc();
    if (likely(now < port->look))
        return;
    port->look = now + cycles(LOOK_MS);
    if (!is_settled(port))
        return;
    struct rte_eth_link link = { 0 };
    bool was_up = port->up;
    if (port->started)
        port->up = rte_eth_link_get_nowait(port->id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
    /* virtio-user connects when it comes into being and never again: whoever has the port opens it anew. */
    port->gone = port->gone || (port->joins && was_up && !port->up);
    /* memif's client looks for its server only when it is started. */
    if (port->client && !port->up && now >= port->retry)
        connect_anew(port);
}

int32_t port_reserve(insane_datapath_port *port, insane_datapath_buffer *buffers, uint32_t count)
{
    struct rte_mbuf *found[INSANE_DATAPATH_BURST];
    eal_thread();
    if (count > INSANE_DATAPATH_BURST)
        count = INSANE_DATAPATH_BURST;
    /* All or one: what is short is short for a moment. */
    if (rte_pktmbuf_alloc_bulk(port->tx, found, count) != 0) {
        if (rte_pktmbuf_alloc_bulk(port->tx, found, 1) != 0)
            return 0;
        count = 1;
    }
    for (uint32_t n = 0; n < count; n++)
        buffers[n] = (insane_datapath_buffer){
            .handle = found[n], .data = rte_pktmbuf_mtod(found[n], uint8_t *), .capacity = rte_pktmbuf_tailroom(found[n]) };
    return (int32_t)count;
}

static void come_back(void *address, void *opaque)
{
    (void)address;
    insane_datapath_port *port = opaque;
    port->lent--;
}

/* Puts payload, where it lies, behind a frame's head. */
static bool lend(insane_datapath_port *port, struct rte_mbuf *frame, const uint8_t *payload, uint32_t length)
{
    struct rte_mbuf *piece = rte_pktmbuf_alloc(port->lend);
    if (piece == NULL)
        return false;
    struct rte_mbuf_ext_shared_info *shared = rte_mbuf_to_priv(piece);
    shared->free_cb = come_back;
    shared->fcb_opaque = port;
    rte_mbuf_ext_refcnt_set(shared, 1);
    /* The drivers that get this read it by its address here, and no device does. */
    rte_pktmbuf_attach_extbuf(piece, (void *)(uintptr_t)payload, (rte_iova_t)(uintptr_t)payload, (uint16_t)length, shared);
    piece->data_off = 0;
    piece->data_len = (uint16_t)length;
    piece->pkt_len = length;
    frame->next = piece;
    frame->nb_segs = 2;
    frame->pkt_len += length;
    port->lent++;
    return true;
}

/* Takes it away again: the frame was not sent. */
static void take_away(struct rte_mbuf *frame)
{
    if (frame->nb_segs == 2) {
        rte_pktmbuf_free_seg(frame->next);
        frame->next = NULL;
        frame->nb_segs = 1;
    }
}

/* Whether AF_PACKET's driver might wait for room in its ring. The kernel says how much is on its way, in a system call: it is asked again
 * when so much has been sent since that there may be too much. */
static bool might_wait(insane_datapath_port *port)
{
    int queued;
    if (port->ring < 0 || port->ring_left > 0)
        return false;
    if (ioctl(port->ring, SIOCOUTQ, &queued) != 0)
        return false;
    port->ring_left = port->ring_room - queued;
    return port->ring_left <= 0;
}

int32_t port_send(insane_datapath_port *port, const insane_datapath_outgoing *frames, uint32_t count)
{
    struct rte_mbuf *all[INSANE_DATAPATH_BURST];
    eal_thread();
    port_look(port);
    if (unlikely(!port->up))
        return port->gone ? INSANE_DATAPATH_FAILED : INSANE_DATAPATH_DOWN;
    /* The driver would wait: until then there is no room. While it is in a burst, what is on its way only grows less. */
    if (unlikely(might_wait(port)))
        return 0;
    uint32_t n = 0;
    for (; n < count && n < INSANE_DATAPATH_BURST; n++) {
        struct rte_mbuf *frame = frames[n].handle;
        frame->data_len = (uint16_t)frames[n].length;
        frame->pkt_len = frames[n].length;
        if (frames[n].payload_length > 0 && !lend(port, frame, frames[n].payload, frames[n].payload_length))
            break;
        all[n] = frame;
        if (port->ring >= 0)
            port->ring_left -= (int)frame->pkt_len + MOST_BESIDES;
    }
    uint16_t sent = 0;
    /* Whatever memif hears meanwhile takes a moment, in which there is no room. */
    if (n > 0 && (!port->memif || guard_enter(port))) {
        sent = rte_eth_tx_burst(port->id, 0, all, (uint16_t)n);
        if (port->memif)
            guard_leave(port);
    }
    port->calls++;
    for (uint32_t left = sent; left < n; left++)
        take_away(all[left]);
    /* A driver that holds on to payload reads memory that may be gone soon. None of those that get it does; if one did, closing the
     * port takes it away. */
    if (unlikely(port->lent > 0))
        return INSANE_DATAPATH_FAILED;
    return sent;
}

/* Whether a frame is this station's to see. */
static bool ours(const insane_datapath_port *port, const struct rte_mbuf *frame)
{
    const struct rte_ether_hdr *header = rte_pktmbuf_mtod(frame, const struct rte_ether_hdr *);
    return rte_is_multicast_ether_addr(&header->dst_addr) || rte_is_same_ether_addr(&header->dst_addr, &port->address);
}

/* Whether a frame is another network's: it came with a tag, which the driver or the kernel has taken off. A tag of VLAN 0 gives a
 * priority alone (IEEE 802.1Q). */
static bool of_a_vlan(const insane_datapath_port *port, const struct rte_mbuf *frame)
{
    return !port->choice.tagged && (frame->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0 && (frame->vlan_tci & 0xfff) != 0;
}

/* Up to `count` frames of one queue that can be used. */
static uint32_t take_from(insane_datapath_port *port, uint16_t queue, struct rte_mbuf **frames, uint32_t count)
{
    uint16_t found = rte_eth_rx_burst(port->id, queue, frames, (uint16_t)count);
    uint32_t kept = 0;
    port->calls++;
    port->came[queue] += found;
    for (uint16_t n = 0; n < found; n++) {
        struct rte_mbuf *frame = frames[n];
        bool good = frame->nb_segs == 1 || rte_pktmbuf_linearize(frame) == 0;
        if (!good || frame->pkt_len < RTE_ETHER_HDR_LEN || frame->pkt_len > port->max_frame) {
            port->overruns++;
            rte_pktmbuf_free(frame);
        } else if (!ours(port, frame) || of_a_vlan(port, frame)) {
            rte_pktmbuf_free(frame);
        } else {
            frames[kept++] = frame;
        }
    }
    return kept;
}

/* Up to `count` frames of the device that can be used. Every queue gets its turn, whatever the others bring: the one after the last that
 * was asked comes first. All frames of one address come by one queue, so they stay in order. */
static uint32_t take(insane_datapath_port *port, struct rte_mbuf **frames, uint32_t count)
{
    uint32_t kept = 0;
    if (!port->started || (port->memif && !guard_enter(port)))
        return 0;
    for (uint16_t asked = 0; asked < port->queues && kept < count; asked++) {
        uint16_t queue = port->next;
        port->next = queue + 1 < port->queues ? queue + 1 : 0;
        kept += take_from(port, queue, frames + kept, count - kept);
    }
    if (port->memif)
        guard_leave(port);
    return kept;
}

int32_t port_receive(insane_datapath_port *port, insane_datapath_incoming *frames, uint32_t count)
{
    struct rte_mbuf *found[INSANE_DATAPATH_BURST];
    uint32_t n;
    eal_thread();
    port_look(port);
    if (unlikely(port->armed) && port->started)
        queues_disarm(port);
    if (unlikely(port->gone))
        return INSANE_DATAPATH_FAILED;
    if (count > INSANE_DATAPATH_BURST)
        count = INSANE_DATAPATH_BURST;
    if (port->stashed > 0) {
        n = RTE_MIN(count, port->stashed);
        memcpy(found, port->stash, n * sizeof *found);
        memmove(port->stash, port->stash + n, (port->stashed - n) * sizeof *found);
        port->stashed -= n;
    } else {
        n = take(port, found, count);
    }
    for (uint32_t at = 0; at < n; at++)
        frames[at] = (insane_datapath_incoming){
            .handle = found[at], .data = rte_pktmbuf_mtod(found[at], const uint8_t *), .length = found[at]->pkt_len };
    return (int32_t)n;
}

void port_release(insane_datapath_port *port, void *const *handles, uint32_t count)
{
    (void)port;
    eal_thread();
    /* What came alone. Received frames are in one piece, and so is room. */
    if (count == 1) {
        rte_pktmbuf_free_seg(handles[0]);
        return;
    }
    rte_pktmbuf_free_bulk((struct rte_mbuf **)(uintptr_t)handles, count);
}

int32_t port_arm(insane_datapath_port *port)
{
    port_look(port);
    if (port->wake < 0 || !port->started)
        return INSANE_DATAPATH_POLL;
    if (!queues_arm(port))
        return INSANE_DATAPATH_POLL;
    /* What came before the interrupt was on wakes nobody. */
    if (port->stashed == 0)
        port->stashed = take(port, port->stash, STASH);
    return port->stashed > 0 ? INSANE_DATAPATH_READY : INSANE_DATAPATH_SLEEP;
}
