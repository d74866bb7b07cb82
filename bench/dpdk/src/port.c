/* One port of DPDK with one queue each way, in bursts. The memory is one pool for both ways; nothing is checked that a bare program
 * would not check. All calls are made by one thread. */
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RING 1024
#define BUFFERS 8191
#define BURST 32

static uint16_t id;
static struct rte_mempool *pool;

static int failed(char *text, size_t room, const char *what, int code)
{
    snprintf(text, room, "%s: %s", what, rte_strerror(code < 0 ? -code : code));
    return -1;
}

/* Starts DPDK with these arguments, which name one device, and that device's port. Waits up to `patience_ms` for a driver that looks
 * for its peer or for a queue that another process just had. */
int bench_port_open(int count, char **arguments, int patience_ms, char *text, size_t room)
{
    struct rte_eth_conf conf = { 0 };
    struct rte_eth_dev_info info;
    uint16_t receive = RING, send = RING;
    if (rte_eal_init(count, arguments) < 0)
        return failed(text, room, "rte_eal_init", rte_errno);
    if (rte_eth_dev_count_avail() == 0)
        return failed(text, room, "the device does not come into being", ENODEV);
    id = (uint16_t)rte_eth_find_next(0);
    /* A frame of the usual MTU with room before it; AF_XDP's driver wants elements within a page. */
    pool = rte_pktmbuf_pool_create("frames", BUFFERS, 256, 0, 2048 + RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
    if (pool == NULL)
        return failed(text, room, "a pool of frames", rte_errno);
    int code = rte_eth_dev_info_get(id, &info);
    if (code == 0)
        code = rte_eth_dev_configure(id, 1, 1, &conf);
    if (code == 0)
        code = rte_eth_dev_adjust_nb_rx_tx_desc(id, &receive, &send);
    if (code != 0)
        return failed(text, room, "configuring the port", code);
    int waited = 0;
    do {
        code = rte_eth_rx_queue_setup(id, 0, receive, SOCKET_ID_ANY, NULL, pool);
        if (code == 0)
            code = rte_eth_tx_queue_setup(id, 0, send, SOCKET_ID_ANY, NULL);
        if (code == 0)
            code = rte_eth_dev_start(id);
        if (code != 0)
            usleep(10000);
    } while (code != 0 && (waited += 10) < patience_ms);
    if (code != 0)
        return failed(text, room, "starting the port", code);
    (void)rte_eth_promiscuous_enable(id);
    return 0;
}

/* Whether the port has a link to its peer. */
int bench_port_is_up(void)
{
    struct rte_eth_link link = { 0 };
    return rte_eth_link_get_nowait(id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* A buffer to send `len` bytes in, and where these are; NULL if there is none now. */
struct rte_mbuf *bench_port_take(uint16_t len, uint8_t **bytes)
{
    struct rte_mbuf *frame = rte_pktmbuf_alloc(pool);
    if (frame != NULL)
        *bytes = (uint8_t *)rte_pktmbuf_append(frame, len);
    return frame;
}

/* Sends up to so many; how many went. They are the driver's then. */
uint16_t bench_port_send(struct rte_mbuf **frames, uint16_t count) { return rte_eth_tx_burst(id, 0, frames, count); }

/* Receives up to so many, and says where their bytes are and how many. */
uint16_t bench_port_receive(struct rte_mbuf **frames, uint8_t **bytes, uint16_t *lens, uint16_t count)
{
    uint16_t came = rte_eth_rx_burst(id, 0, frames, RTE_MIN(count, BURST));
    for (uint16_t n = 0; n < came; n++) {
        bytes[n] = rte_pktmbuf_mtod(frames[n], uint8_t *);
        lens[n] = rte_pktmbuf_data_len(frames[n]);
    }
    return came;
}

/* Gives received frames back. */
void bench_port_free(struct rte_mbuf **frames, uint16_t count)
{
    for (uint16_t n = 0; n < count; n++)
        rte_pktmbuf_free(frames[n]);
}
