/* The table: DPDK's ports as a datapath of INSANE's. */
#include "insane_dpdk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static insane_datapath_port *create(const insane_datapath_option *options, size_t count, char *error, size_t capacity)
{
    insane_datapath_port *port = calloc(1, sizeof *port);
    if (port == NULL) {
        snprintf(error, capacity, "no memory");
        return NULL;
    }
    port->choice.buffers = 4096;
    port->choice.ring = 1024;
    int result = 0;
    for (size_t n = 0; n < count && result == 0; n++)
        result = choice_set(&port->choice, options[n].key, options[n].value, error, capacity);
    if (result != 0 || choice_check(&port->choice, error, capacity) != 0) {
        free(port);
        return NULL;
    }
    return port;
}

static void destroy(insane_datapath_port *port) { free(port); }

static void stats(const insane_datapath_port *port, insane_datapath_stats *stats)
{
    struct rte_eth_stats device;
    stats->overruns = port->overruns;
    stats->calls = port->calls;
    if (rte_eth_stats_get(port->id, &device) == 0) {
        stats->overruns += device.imissed + device.rx_nombuf;
        stats->dropped = device.oerrors;
    }
}

static void describe(const insane_datapath_port *port, char *text, size_t capacity)
{
    size_t at = (size_t)snprintf(text, capacity, "%s", port->chosen);
    if (port->memif && at < capacity)
        at += (size_t)snprintf(text + at, capacity - at, "; peers heard between bursts: %lu",
                               atomic_load_explicit(&port->heard, memory_order_relaxed));
    uint64_t all = 0;
    for (uint16_t queue = 0; queue < port->queues; queue++)
        all += port->came[queue];
    for (uint16_t queue = 0; port->queues > 1 && all > 0 && queue < port->queues && at < capacity; queue++)
        at += (size_t)snprintf(text + at, capacity - at, "%s%" PRIu64, queue == 0 ? "; frames by its queues: " : ", ", port->came[queue]);
}

static const insane_datapath_table table = {
    .abi = INSANE_DATAPATH_ABI,
    .size = sizeof(insane_datapath_table),
    .name = "dpdk",
    .create = create,
    .destroy = destroy,
    .open = port_open,
    .close = port_close,
    .reserve = port_reserve,
    .send = port_send,
    .receive = port_receive,
    .release = port_release,
    .arm = port_arm,
    .stats = stats,
    .describe = describe,
};

__attribute__((visibility("default"))) const insane_datapath_table *insane_datapath(void) { return &table; }
