/* A port's receive queues: how many there are, what comes by which, and what wakes who waits for all of them. */
#include "insane_dpdk.h"

#include <rte_errno.h>
#include <rte_flow.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* As many are taken of a card that has more, unless more are asked for: all are read by one thread, and every look costs. */
#define ENOUGH_QUEUES 4u

/* What is spread over queues, so that all frames between two addresses come by one. */
#define SPREAD (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP)

/* Drivers whose devices have the queues that their arguments say, and the argument. */
static const char *const arguments_of[][2] = {
    { "net_af_xdp", "queue_count" },
    { "net_vhost", "queues" },
    { "net_virtio_user", "queues" },
};

const char *queues_argument(const char *name)
{
    for (size_t n = 0; n < RTE_DIM(arguments_of); n++)
        if (strncmp(name, arguments_of[n][0], strlen(arguments_of[n][0])) == 0)
            return arguments_of[n][1];
    return NULL;
}

const char *queues_one(const char *name)
{
    /* Its sockets are a group that rolls over (PACKET_FANOUT_FLAG_ROLLOVER). */
    bool packets = strncmp(name, "net_af_packet", strlen("net_af_packet")) == 0;
    return packets ? "its driver lets frames overtake others by another queue when one is full" : NULL;
}

void queues_choose(insane_datapath_port *port, const struct rte_eth_dev_info *info, struct rte_eth_conf *conf)
{
    uint32_t asked = port->choice.queues, most = RTE_MIN((uint32_t)info->max_rx_queues, MOST_QUEUES);
    uint64_t spread = info->flow_type_rss_offloads & SPREAD;
    char *text = port->queues_text;
    const size_t room = sizeof port->queues_text;
    const char *one = queues_one(port->name);
    /* How frames are spread: as a device with such an argument does it, by whoever sends them, or by RSS. A tap has RSS by a rule alone,
     * and else the kernel chooses. */
    bool given = queues_argument(port->name) != NULL, chosen = port->memif || strcmp(port->driver, "net_tap") == 0;
    if (given || chosen)
        spread = 0;
    /* Where nobody spreads them, all frames come by the first. */
    if (one == NULL && !given && !chosen && spread == 0) {
        one = "it has no RSS over UDP/IP";
        most = 1;
    }
    /* Each queue that wakes takes an interrupt of its own, and not every card has several. */
    if (asked == 0 && spread != 0 && port->wakes) {
        one = "with interrupts it has more if it is told so";
        most = 1;
    }
    uint32_t wanted = asked != 0 ? asked : given ? most : spread != 0 ? ENOUGH_QUEUES : 1;
    port->queues = (uint16_t)RTE_MAX(RTE_MIN(wanted, most), 1u);
    int at = port->queues == 1 ? snprintf(text, room, "one queue") : snprintf(text, room, "%u queues", port->queues);
    if (port->queues > 1 && !given)
        at += snprintf(text + at, room - (size_t)at, chosen ? ", of which who sends chooses" : " by RSS over UDP/IP");
    if (port->queues < asked)
        snprintf(text + at, room - (size_t)at, " and not %u: %s", asked, one != NULL ? one : "it has no more");
    else if (port->queues == 1 && asked == 0 && one != NULL && port->physical)
        snprintf(text + at, room - (size_t)at, ": %s", one);
    if (port->queues > 1 && spread != 0) {
        conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        conf->rx_adv_conf.rss_conf.rss_hf = spread;
    }
}

void queues_only_one(insane_datapath_port *port, struct rte_eth_conf *conf)
{
    port->queues = 1;
    snprintf(port->queues_text, sizeof port->queues_text, "one queue: its driver refuses several");
    conf->rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
    conf->rx_adv_conf.rss_conf.rss_hf = 0;
}

uint16_t queues_to_send(const insane_datapath_port *port, const struct rte_eth_dev_info *info)
{
    /* Most drivers in software have them in pairs, and memif's refuses a peer that has more than it. */
    return port->physical ? 1 : RTE_MAX(RTE_MIN(port->queues, info->max_tx_queues), (uint16_t)1);
}

/* Why a rule is not there, for `describe`. */
static void no_rule(insane_datapath_port *port, const char *what, int result, const struct rte_flow_error *error)
{
    snprintf(port->rule_text, sizeof port->rule_text, ", no flow rule: %s (%s)", what,
             error->message != NULL ? error->message : rte_strerror(-result));
}

void queues_steer(insane_datapath_port *port)
{
    const struct sockaddr_storage *to = &port->choice.steer;
    const struct sockaddr_in *four = (const struct sockaddr_in *)to;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)to;
    /* By one queue all comes anyway. */
    if (to->ss_family == AF_UNSPEC || port->queues < 2)
        return;
    bool is_four = to->ss_family == AF_INET;
    struct rte_flow_item_ipv4 v4 = { .hdr.dst_addr = four->sin_addr.s_addr }, v4_mask = { .hdr.dst_addr = UINT32_MAX };
    struct rte_flow_item_ipv6 v6 = { 0 }, v6_mask = { 0 };
    struct rte_flow_item_udp udp = { .hdr.dst_port = is_four ? four->sin_port : six->sin6_port };
    struct rte_flow_item_udp udp_mask = { .hdr.dst_port = UINT16_MAX };
    if (!is_four) {
        memcpy(&v6.hdr.dst_addr, &six->sin6_addr, sizeof v6.hdr.dst_addr);
        memset(&v6_mask.hdr.dst_addr, 0xff, sizeof v6_mask.hdr.dst_addr);
    }
    struct rte_flow_item items[5] = { { .type = RTE_FLOW_ITEM_TYPE_ETH } };
    unsigned at = 1;
    if (port->choice.tagged)
        items[at++] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_VLAN };
    if (is_four)
        items[at++] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &v4, .mask = &v4_mask };
    else
        items[at++] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV6, .spec = &v6, .mask = &v6_mask };
    items[at++] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &udp_mask };
    items[at] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_END };
    /* Over all queues that are read, as all else is spread. Nothing is isolated: what no rule names comes as it did. */
    uint16_t all[MOST_QUEUES];
    for (uint16_t queue = 0; queue < port->queues; queue++)
        all[queue] = queue;
    const struct rte_flow_action_rss spread = {
        .types = is_four ? RTE_ETH_RSS_NONFRAG_IPV4_UDP : RTE_ETH_RSS_NONFRAG_IPV6_UDP, .queue_num = port->queues, .queue = all };
    const struct rte_flow_action actions[] = { { .type = RTE_FLOW_ACTION_TYPE_RSS, .conf = &spread }, { .type = RTE_FLOW_ACTION_TYPE_END } };
    const struct rte_flow_attr attributes = { .ingress = 1 };
    struct rte_flow_error error = { 0 };
    int result = rte_flow_validate(port->id, &attributes, items, actions, &error);
    if (result != 0) {
        no_rule(port, "the device takes none for its UDP port", result, &error);
        return;
    }
    port->rule = rte_flow_create(port->id, &attributes, items, actions, &error);
    if (port->rule == NULL)
        no_rule(port, "the device takes one for its UDP port and does not make it", -rte_errno, &error);
    else
        snprintf(port->rule_text, sizeof port->rule_text, ", a flow rule for its UDP port");
}

void queues_let_go(insane_datapath_port *port)
{
    struct rte_flow_error error;
    if (port->rule != NULL)
        (void)rte_flow_flush(port->id, &error);
    port->rule = NULL;
}

/* What wakes who waits for one queue: a descriptor, or -1. */
static int wake_of(insane_datapath_port *port, uint16_t queue)
{
    char link[32], target[64];
    /* AF_PACKET's socket is readable as long as its receive ring has something. The driver knows of no interrupt there. */
    if (port->ring >= 0)
        return port->ring;
    if (!port->wakes)
        return -1;
    int wake = rte_eth_dev_rx_intr_ctl_q_get_fd(port->id, queue);
    if (wake < 0)
        return -1;
    /* An event descriptor stays readable until it is read; another one is the device's to read. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", wake);
    ssize_t length = readlink(link, target, sizeof target - 1);
    port->wake_counts = length > 0 && strstr((target[length] = 0, target), "eventfd") != NULL;
    return wake;
}

void queues_find_wake(insane_datapath_port *port)
{
    for (uint16_t queue = 0; queue < port->queues; queue++)
        if ((port->wake_of[queue] = wake_of(port, queue)) < 0)
            return;
    if (port->queues == 1) {
        port->wake = port->wake_of[0];
        return;
    }
    port->gathered = epoll_create1(EPOLL_CLOEXEC);
    for (uint16_t queue = 0; queue < port->queues && port->gathered >= 0; queue++) {
        struct epoll_event event = { .events = EPOLLIN };
        /* Queues may share an interrupt. */
        if (epoll_ctl(port->gathered, EPOLL_CTL_ADD, port->wake_of[queue], &event) != 0 && errno != EEXIST) {
            close(port->gathered);
            port->gathered = -1;
        }
    }
    port->wake = port->gathered;
}

void queues_disarm(insane_datapath_port *port)
{
    for (uint16_t queue = 0; queue < port->queues && port->armed; queue++)
        rte_eth_dev_rx_intr_disable(port->id, queue);
    port->armed = false;
}

bool queues_arm(insane_datapath_port *port)
{
    for (uint16_t queue = 0; queue < port->queues; queue++) {
        uint64_t count;
        if (port->wake_counts && read(port->wake_of[queue], &count, sizeof count) < 0 && errno != EAGAIN)
            return false;
    }
    /* An interface that went down is told to its socket once, which is ready until somebody asks. */
    if (port->ring >= 0) {
        int told;
        socklen_t length = sizeof told;
        (void)getsockopt(port->ring, SOL_SOCKET, SO_ERROR, &told, &length);
    }
    for (uint16_t queue = 0; queue < port->queues; queue++) {
        /* A device whose descriptor is readable as long as there is something has no interrupt to be turned on. */
        int result = rte_eth_dev_rx_intr_enable(port->id, queue);
        port->armed = port->armed || result == 0;
        if (result != 0 && (result != -ENOTSUP || port->wake_counts)) {
            queues_disarm(port);
            return false;
        }
    }
    return true;
}
