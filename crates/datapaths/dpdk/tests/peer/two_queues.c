/* A DPDK program that sends by two queues, as INSANE never does: two_queues DEVICE TO FRAMES.
 *
 * Frame n of those to the MAC address TO goes by queue n % 2, says after its Ethernet header which that was and the how manieth it is of
 * that queue, and is sent again until there is room. It begins when a byte of its input tells it to: what it sends while the other
 * end is being opened may be thrown away there. Then it waits for the end of its input, so that no peer sees it go. */
#define _GNU_SOURCE
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUEUES 2

static void need(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, rte_strerror(rte_errno));
    exit(1);
}

static struct rte_mbuf *frame(struct rte_mempool *pool, const struct rte_ether_addr *to, uint32_t number)
{
    struct rte_mbuf *made = rte_pktmbuf_alloc(pool);
    if (made == NULL)
        return NULL;
    uint8_t *bytes = (uint8_t *)rte_pktmbuf_append(made, 60);
    struct rte_ether_hdr *head = (struct rte_ether_hdr *)bytes;
    uint32_t says[2] = { number % QUEUES, number / QUEUES };
    memset(bytes, 0, 60);
    head->dst_addr = *to;
    head->src_addr = (struct rte_ether_addr){ { 2, 0, 0, 0, 0, 9 } };
    head->ether_type = rte_cpu_to_be_16(0x88b5);
    memcpy(bytes + sizeof *head, says, sizeof says);
    return made;
}

/* One lcore on whichever cores the process may use. */
static void say_cores(char *text, size_t capacity)
{
    cpu_set_t may;
    need(sched_getaffinity(0, sizeof may, &may) == 0, "the cores");
    size_t at = (size_t)snprintf(text, capacity, "--lcores=0@");
    char before = '(';
    for (int core = 0; core < CPU_SETSIZE && at < capacity; core++) {
        if (!CPU_ISSET(core, &may))
            continue;
        at += (size_t)snprintf(text + at, capacity - at, "%c%d", before, core);
        before = ',';
    }
    if (at < capacity)
        snprintf(text + at, capacity - at, ")");
}

int main(int count, char **arguments)
{
    struct rte_ether_addr to;
    need(count == 4 && rte_ether_unformat_addr(arguments[2], &to) == 0, "usage: two_queues DEVICE TO FRAMES");
    char device[512];
    snprintf(device, sizeof device, "--vdev=%s", arguments[1]);
    char cores[8192];
    say_cores(cores, sizeof cores);
    char *eal[] = { arguments[0], "--no-huge", "-m", "64", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=*:error", cores, device };
    need(rte_eal_init((int)RTE_DIM(eal), eal) >= 0, "the EAL");
    struct rte_mempool *pool = rte_pktmbuf_pool_create("frames", 4095, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    struct rte_eth_conf conf = { 0 };
    need(pool != NULL && rte_eth_dev_configure(0, QUEUES, QUEUES, &conf) == 0, "the port");
    for (uint16_t queue = 0; queue < QUEUES; queue++) {
        need(rte_eth_rx_queue_setup(0, queue, 256, SOCKET_ID_ANY, NULL, pool) == 0, "a queue");
        need(rte_eth_tx_queue_setup(0, queue, 256, SOCKET_ID_ANY, NULL) == 0, "a queue");
    }
    need(rte_eth_dev_start(0) == 0, "the start");
    struct rte_eth_link link = { 0 };
    while (rte_eth_link_get_nowait(0, &link) != 0 || link.link_status != RTE_ETH_LINK_UP)
        usleep(1000);
    need(getchar() == 'g', "the word to go");
    for (uint32_t number = 0; number < (uint32_t)atoi(arguments[3]); number++) {
        struct rte_mbuf *made = frame(pool, &to, number), *came[32];
        need(made != NULL, "a frame");
        while (rte_eth_tx_burst(0, (uint16_t)(number % QUEUES), &made, 1) != 1)
            usleep(100);
        for (uint16_t queue = 0; queue < QUEUES; queue++)
            rte_pktmbuf_free_bulk(came, rte_eth_rx_burst(0, queue, came, 32));
    }
    while (getchar() != EOF)
        ;
    return 0;
}
