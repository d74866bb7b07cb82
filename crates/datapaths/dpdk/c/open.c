/* Opening and closing a port. */
#define _GNU_SOURCE
#include "insane_dpdk.h"

#include <rte_bus_vdev.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_version.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Without hugepages, rights or files: enough for ports in software. Devices that write memory themselves need pages that stay where
 * they are; and no device is touched that was not asked for. */
#define EAL_SOFTWARE "--no-huge -m 256 --no-pci"
#define EAL_PHYSICAL "--in-memory --single-file-segments -a 0000:00:00.0"

/* Payload shorter than this is better copied than attached. */
#define GATHER_FROM 512u

/* How long a port is tried whose queue another socket may have, and how often, in milliseconds. The kernel lets go of a closed AF_XDP
 * socket's queue later, and a process that was forked while the socket was made has it until it becomes another program. */
#define PATIENCE_MS 3000
#define RETRY_MS 10

/* Devices come and go one at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 3, 4))) static int fail(char *error, size_t capacity, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, capacity, format, arguments);
    va_end(arguments);
    return INSANE_DATAPATH_FAILED;
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* Which drivers copy a frame's pieces while they are given it, and let go of them before they return. Found by reading them; `send`
 * checks it of every burst. */
static bool copies_at_once(const insane_datapath_port *port)
{
    char value[16];
    if (strcmp(port->driver, "net_memif") == 0)
        return !(device_argument(port->choice.device, "zero-copy", value, sizeof value) && strcmp(value, "yes") == 0);
    return strcmp(port->driver, "net_af_packet") == 0 || strcmp(port->driver, "net_tap") == 0 || strcmp(port->driver, "net_null") == 0;
}

/* The Ethernet header of a port's frames, in bytes. */
static uint32_t header_bytes(const insane_datapath_port *port)
{
    return RTE_ETHER_HDR_LEN + (port->choice.tagged ? RTE_VLAN_HLEN : 0);
}

/* The kernel's interface below a device: its MTU, and a membership that lets the station's frames in and goes with its socket. */
static int join_interface(insane_datapath_port *port, char *error, size_t capacity)
{
    char name[IF_NAMESIZE];
    struct ifreq request = { 0 };
    if (!device_argument(port->choice.device, "iface", name, sizeof name))
        return fail(error, capacity, "%s takes iface=NAME", port->choice.device);
    unsigned index = if_nametoindex(name);
    if (index == 0)
        return fail(error, capacity, "there is no interface %s here", name);
    int packets = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (packets < 0)
        return fail(error, capacity, "a packet socket, which takes CAP_NET_RAW: %s", strerror(errno));
    port->membership = packets;
    strcpy(request.ifr_name, name);
    if (ioctl(packets, SIOCGIFMTU, &request) != 0)
        return fail(error, capacity, "the MTU of %s: %s", name, strerror(errno));
    uint32_t mtu = (uint32_t)request.ifr_mtu;
    if (port->choice.mtu > mtu)
        return fail(error, capacity, "%s has an MTU of %u, and mtu is %u: `ip link set dev %s mtu %u`", name, mtu, port->choice.mtu, name,
                    port->choice.mtu);
    port->max_frame = (port->choice.mtu != 0 ? port->choice.mtu : RTE_MIN(mtu, 9000u)) + header_bytes(port);
    /* As its driver counts them. */
    struct ethtool_channels channels = { .cmd = ETHTOOL_GCHANNELS };
    request.ifr_data = (void *)&channels;
    bool counted = ioctl(packets, SIOCETHTOOL, &request) == 0 && channels.max_combined != 0;
    port->channels = counted ? channels.combined_count : 1;
    struct packet_mreq member = { .mr_ifindex = (int)index, .mr_type = PACKET_MR_UNICAST, .mr_alen = RTE_ETHER_ADDR_LEN };
    memcpy(member.mr_address, port->choice.address.addr_bytes, RTE_ETHER_ADDR_LEN);
    struct packet_mreq groups = { .mr_ifindex = (int)index, .mr_type = PACKET_MR_ALLMULTI };
    if ((port->choice.has_address && setsockopt(packets, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &member, sizeof member) != 0)
        || setsockopt(packets, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &groups, sizeof groups) != 0)
        return fail(error, capacity, "%s does not let a second address in: %s", name, strerror(errno));
    return 0;
}

/* Whether a memif device names its socket by a path. DPDK's own default is an abstract name, to which every user of the machine may
 * connect, and who connects first is the peer: that must be asked for. */
static bool has_path(const char *device)
{
    char value[16];
    return !device_argument(device, "socket-abstract", value, sizeof value) || strcmp(value, "no") == 0;
}

/* What a virtual device is told besides what the user says. Buffers of memif and AF_PACKET hold a whole frame. */
static void complete(const insane_datapath_port *port, char *arguments, size_t room)
{
    const char *device = port->choice.device, *given = strchr(device, ',');
    char value[16], more[128] = "";
    if (starts(port->name, "net_memif")) {
        if (!device_argument(device, "bsize", value, sizeof value))
            snprintf(more, sizeof more, ",bsize=%u", RTE_MAX(2048u, RTE_ALIGN(port->max_frame, 64)));
        if (!device_argument(device, "socket-abstract", value, sizeof value))
            strcat(more, ",socket-abstract=no");
    } else if (starts(port->name, "net_af_packet") && port->max_frame > 1900
               && !device_argument(device, "framesz", value, sizeof value)) {
        strcpy(more, ",blocksz=65536,framesz=16384,framecnt=512");
    }
    const char *queues = queues_argument(port->name);
    size_t used = strlen(more);
    uint32_t asked = port->choice.queues;
    /* What comes by others than it has goes to the kernel. */
    if (starts(port->name, "net_af_xdp"))
        asked = RTE_MIN(asked != 0 ? asked : MOST_QUEUES, port->channels);
    if (queues != NULL && asked > 1 && !device_argument(device, queues, value, sizeof value))
        snprintf(more + used, sizeof more - used, ",%s=%u", queues, asked);
    bool first = given == NULL || given[1] == 0;
    snprintf(arguments, room, "%s%s", first ? "" : given + 1, more + (first && more[0] != 0));
}

/* Bytes of a buffer: more than the largest of memif's, so that it never begins a frame in one and ends it in another, and no less
 * than a frame of AF_PACKET's ring. */
static uint32_t buffer_bytes(const insane_datapath_port *port)
{
    char value[16];
    uint32_t bytes = RTE_MAX(2048u, RTE_ALIGN(port->max_frame, 64)) + 64;
    if (device_argument(port->choice.device, "bsize", value, sizeof value))
        bytes = RTE_MAX(bytes, (uint32_t)strtoul(value, NULL, 10) + 64);
    if (starts(port->name, "net_af_packet"))
        bytes = RTE_MAX(bytes, port->max_frame > 1900 ? 16384u : 2048u);
    if (device_argument(port->choice.device, "framesz", value, sizeof value))
        bytes = RTE_MAX(bytes, (uint32_t)strtoul(value, NULL, 10));
    return bytes;
}

static struct rte_mempool *pool(const char *what, uint32_t count, uint16_t extra, uint32_t room)
{
    static unsigned serial;
    char name[RTE_MEMPOOL_NAMESIZE];
    snprintf(name, sizeof name, "insane_%s_%u", what, serial++);
    uint32_t cache = RTE_MIN(256u, count / 4);
    return rte_pktmbuf_pool_create(name, count, cache, extra, (uint16_t)room, SOCKET_ID_ANY);
}

/* A pool whose buffers have their bytes in a memfd that nobody else can write, and all else (what DPDK knows of them) beside it. Only for
 * drivers that copy what they receive: the memory has no address for devices. NULL: there is none, and the port does without. */
static struct rte_mempool *pool_to_show(insane_datapath_port *port, uint32_t count, uint32_t room)
{
    static unsigned serial;
    char name[RTE_MEMPOOL_NAMESIZE];
    uint32_t stride = rte_align32pow2(room);
    size_t bytes = (size_t)stride * count;
    if (stride > UINT16_MAX)
        return NULL;
    int fd = memfd_create("insane-receive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return NULL;
    void *memory = ftruncate(fd, (off_t)bytes) == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
        if (memory != MAP_FAILED)
            munmap(memory, bytes);
        close(fd);
        return NULL;
    }
    /* A forked child has no use for it and shall not be able to write it. */
    (void)madvise(memory, bytes, MADV_DONTFORK);
    struct rte_pktmbuf_extmem place = { .buf_ptr = memory, .buf_iova = RTE_BAD_IOVA, .buf_len = bytes, .elt_size = (uint16_t)stride };
    snprintf(name, sizeof name, "insane_shown_%u", serial++);
    struct rte_mempool *made =
        rte_pktmbuf_pool_create_extbuf(name, count, RTE_MIN(256u, count / 4), 0, (uint16_t)room, SOCKET_ID_ANY, &place, 1);
    if (made == NULL) {
        munmap(memory, bytes);
        close(fd);
        return NULL;
    }
    port->shown_fd = fd;
    port->shown = memory;
    port->shown_stride = stride;
    port->shown_slots = count;
    return made;
}

/* Ends the pool that receives. What the host still has of it, others may read: then its bytes stay. */
static void end_receiving(insane_datapath_port *port)
{
    bool kept = port->rx != NULL && !rte_mempool_full(port->rx);
    rte_mempool_free(port->rx);
    if (port->shown_fd < 0)
        return;
    if (!kept)
        munmap(port->shown, (size_t)port->shown_stride * port->shown_slots);
    close(port->shown_fd);
}

/* Buffers that receive and buffers that send are apart, so that neither starves the other. */
static int make_pools(insane_datapath_port *port, char *error, size_t capacity)
{
    uint32_t half = port->choice.buffers / 2, bytes = buffer_bytes(port);
    if (bytes + RTE_PKTMBUF_HEADROOM > UINT16_MAX)
        return fail(error, capacity, "buffers of %u bytes are too large", bytes);
    /* What lies in a device's rings is not to be had for receiving. AF_XDP's driver fills its own, whatever it is told. */
    uint32_t rings = port->physical ? port->choice.ring : strcmp(port->driver, "net_af_xdp") == 0 ? 4096 : 0;
    rings *= port->queues;
    /* So it is with these; but of the first queue's ring, the buffers have room for that. */
    if (strcmp(port->driver, "net_tap") == 0 || starts(port->name, "net_virtio_user"))
        rings = port->choice.ring * (port->queues - 1u);
    /* AF_PACKET's driver puts a tag back into the frame, which it does in buffers of the pool's own alone. */
    if (port->choice.lend && port->gathers && !port->choice.tagged)
        port->rx = pool_to_show(port, half + rings, bytes + RTE_PKTMBUF_HEADROOM);
    if (port->rx == NULL)
        port->rx = pool("rx", half + rings, 0, bytes + RTE_PKTMBUF_HEADROOM);
    port->tx = pool("tx", half, 0, bytes + RTE_PKTMBUF_HEADROOM);
    uint16_t shared = RTE_ALIGN(sizeof(struct rte_mbuf_ext_shared_info), RTE_MBUF_PRIV_ALIGN);
    port->lend = port->gathers ? pool("lend", half, shared, 0) : NULL;
    if (port->rx == NULL || port->tx == NULL || (port->gathers && port->lend == NULL))
        return fail(error, capacity, "no memory for %u buffers of %u bytes: give DPDK more with -m in eal, or take fewer (%s)",
                    port->choice.buffers, bytes, rte_strerror(rte_errno));
    return 0;
}

/* Where a device listens, if it does so at a path; and of which kind its socket is, or 0. */
static int listens_at(const insane_datapath_port *port, char *path, size_t room)
{
    char value[16];
    const char *device = port->choice.device;
    if (starts(port->name, "net_memif") && strstr(device, "role=server") != NULL && has_path(device)) {
        if (!device_argument(device, "socket", path, room))
            snprintf(path, room, "/run/memif.sock");
        return SOCK_SEQPACKET;
    }
    if (starts(port->name, "net_vhost") && !(device_argument(device, "client", value, sizeof value) && strcmp(value, "1") == 0))
        return device_argument(device, "iface", path, room) ? SOCK_STREAM : 0;
    return 0;
}

/* memif's server and vhost bind their socket to a path and do not take away what a killed one left there, so that it could never start
 * again. What nobody listens on is nobody's. All else stays another's: vhost's driver would take it away when it fails, and is not asked. */
static int remove_stale_socket(const insane_datapath_port *port, char *error, size_t capacity)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct stat found;
    int kind = listens_at(port, at.sun_path, sizeof at.sun_path);
    if (kind == 0 || lstat(at.sun_path, &found) != 0)
        return 0;
    bool stale = false;
    int probe = S_ISSOCK(found.st_mode) ? socket(AF_UNIX, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (probe >= 0) {
        stale = connect(probe, (const struct sockaddr *)&at, sizeof at) != 0 && errno == ECONNREFUSED;
        close(probe);
    }
    if (stale)
        unlink(at.sun_path);
    else if (kind == SOCK_STREAM)
        return fail(error, capacity, "%s is there already, and not a socket on which nobody listens", at.sun_path);
    return 0;
}

#define MOST_RINGS 64

/* A socket: its descriptor, and what it is whatever descriptors it has. */
struct ring {
    int fd;
    ino_t socket;
};

/* The AF_PACKET sockets of this process that have rings, or its AF_XDP sockets. Descriptors are not enough to know one again: users of
 * other ports duplicate and close theirs at any time. */
static unsigned sockets(int of, struct ring *found)
{
    unsigned count = 0;
    DIR *all = opendir("/proc/self/fd");
    if (all == NULL)
        return 0;
    for (struct dirent *entry = readdir(all); entry != NULL && count < MOST_RINGS; entry = readdir(all)) {
        int fd = atoi(entry->d_name), domain = 0, version = 0;
        socklen_t length = sizeof domain, also = sizeof version;
        struct stat is;
        if (entry->d_name[0] == '.' || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != of || fstat(fd, &is) != 0)
            continue;
        if (of == AF_PACKET && (getsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, &also) != 0 || version != TPACKET_V2))
            continue;
        found[count++] = (struct ring){ .fd = fd, .socket = is.st_ino };
    }
    closedir(all);
    return count;
}

/* Which of its sockets a process did not have before; none, if there are several. */
static struct ring new_socket(int of, const struct ring *before, unsigned count)
{
    struct ring now[MOST_RINGS], found = { .fd = -1 };
    unsigned there = sockets(of, now), fresh = 0;
    for (unsigned n = 0; n < there; n++) {
        bool old = false;
        for (unsigned m = 0; m < count; m++)
            old = old || before[m].socket == now[n].socket;
        if (!old) {
            found = now[n];
            fresh++;
        }
    }
    return fresh == 1 ? found : (struct ring){ .fd = -1 };
}

/* AF_XDP's driver does not close its socket (22.11 counts its users wrongly), which then has the interface's queue as long as the process
 * lives: the port could not be opened again. It leaves it to what this process starts, too. */
static void keep_xdp(insane_datapath_port *port, const struct ring *before, unsigned count)
{
    struct ring found = new_socket(AF_XDP, before, count);
    if (found.fd < 0)
        return;
    port->xdp[port->xdps] = found.fd;
    port->xdp_socket[port->xdps++] = found.socket;
    (void)fcntl(found.fd, F_SETFD, FD_CLOEXEC);
}

static void close_xdp(insane_datapath_port *port)
{
    struct stat is;
    for (unsigned n = 0; n < port->xdps; n++)
        if (fstat(port->xdp[n], &is) == 0 && is.st_ino == port->xdp_socket[n])
            close(port->xdp[n]);
    port->xdps = 0;
}

/* AF_PACKET's driver waits without a limit when its send ring is full and more than half of what the socket may have on its way is:
 * with a shaper or a device that stands still, for as long as that lasts. So `port_send` looks first, which takes the socket. It is
 * the one that was not there before. The more it may have on its way, the less often that is in the way. */
static int find_ring(insane_datapath_port *port, const struct ring *before, unsigned count, char *error, size_t capacity)
{
    int most = 16 << 20, has = 0;
    socklen_t length = sizeof has;
    port->ring = new_socket(AF_PACKET, before, count).fd;
    if (port->ring < 0)
        return fail(error, capacity, "%s: its socket is not among the files of this process", port->name);
    /* The driver leaves it to what this process starts. There it would live on after the port is closed, and take the frames of the
     * next port on the interface: the driver puts all of a process's sockets there into one group (PACKET_FANOUT). */
    (void)fcntl(port->ring, F_SETFD, FD_CLOEXEC);
    if (setsockopt(port->ring, SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof most) != 0)
        (void)setsockopt(port->ring, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
    if (getsockopt(port->ring, SOL_SOCKET, SO_SNDBUF, &has, &length) != 0)
        return fail(error, capacity, "%s: %s", port->name, strerror(errno));
    port->ring_room = has / 2 - 1;
    return 0;
}

static const char *bus(const insane_datapath_port *port) { return port->physical ? "pci" : "vdev"; }

/* Makes the device known to DPDK and finds its port. Until it is this one's own, `id` names none: what `id` names is closed with it. */
static int attach(insane_datapath_port *port, char *error, size_t capacity)
{
    char arguments[sizeof port->choice.device + 64];
    uint16_t id;
    if (rte_eth_dev_get_port_by_name(port->name, &id) == 0)
        return fail(error, capacity,
                    port->physical ? "another port of this process has the PCI device %s already"
                                   : "there is a %s in this process already: give this one another number",
                    port->name);
    eal_log_mark();
    if (port->physical) {
        if (rte_dev_probe(port->choice.device) != 0)
            return fail(error, capacity,
                        "the PCI device %s: %s. Is it bound to vfio-pci (`dpdk-devbind.py --bind=vfio-pci %s`), and may this user open it?",
                        port->choice.device, eal_log_last(), port->name);
    } else {
        complete(port, arguments, sizeof arguments);
        if (remove_stale_socket(port, error, capacity) != 0)
            return INSANE_DATAPATH_FAILED;
        struct ring rings[MOST_RINGS];
        bool packets = starts(port->name, "net_af_packet");
        char value[16];
        if (packets && device_argument(port->choice.device, "qpairs", value, sizeof value) && strcmp(value, "1") != 0)
            return fail(error, capacity, "%s has one queue, and qpairs is %s: %s", port->name, value, queues_one(port->name));
        unsigned count = packets ? sockets(AF_PACKET, rings) : 0;
        if (rte_eal_hotplug_add("vdev", port->name, arguments) != 0)
            return fail(error, capacity, "%s does not come into being with \"%s\": %s", port->name, arguments, eal_log_last());
        if (packets && find_ring(port, rings, count, error, capacity) != 0) {
            (void)rte_eal_hotplug_remove("vdev", port->name);
            return INSANE_DATAPATH_FAILED;
        }
    }
    if (rte_eth_dev_get_port_by_name(port->name, &id) != 0) {
        (void)rte_eal_hotplug_remove(bus(port), port->name);
        return fail(error, capacity, "%s is no network device", port->name);
    }
    port->id = id;
    return 0;
}

static int configure(insane_datapath_port *port, char *error, size_t capacity)
{
    struct rte_eth_dev_info info;
    struct rte_eth_conf conf = { 0 };
    int result = rte_eth_dev_info_get(port->id, &info);
    if (result != 0)
        return fail(error, capacity, "%s: %s", port->name, rte_strerror(-result));
    snprintf(port->driver, sizeof port->driver, "%s", info.driver_name);
    uint32_t mtu = port->max_frame - header_bytes(port);
    bool interface = port->membership >= 0;
    port->memif = strcmp(port->driver, "net_memif") == 0;
    /* Those say 1518 and carry what their buffers hold. */
    if (!port->memif && strcmp(port->driver, "net_af_packet") != 0) {
        if (info.max_mtu < mtu && !(interface && port->choice.mtu == 0))
            return fail(error, capacity, "%s (%s) has an MTU of %u at most", port->name, port->driver, info.max_mtu);
        mtu = RTE_MIN(mtu, (uint32_t)info.max_mtu);
        port->max_frame = mtu + header_bytes(port);
        if (!interface)
            conf.rxmode.mtu = mtu;
    }
    port->client = port->memif && strstr(port->choice.device, "role=server") == NULL;
    char value[16];
    port->joins = starts(port->name, "net_virtio_user")
        && !(device_argument(port->choice.device, "server", value, sizeof value) && strcmp(value, "1") == 0);
    port->gathers = copies_at_once(port);
    if (port->gathers && (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0)
        conf.txmode.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    /* The kernel takes tags off. The driver puts one back into the frame, which it cannot in memory that is to be shown, unless it may
     * leave it off: then it says which it was. */
    if (!port->choice.tagged && strcmp(port->driver, "net_af_packet") == 0)
        conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
    port->wakes = port->physical ? port->choice.interrupts : strcmp(port->driver, "net_tap") == 0;
    conf.intr_conf.rxq = port->wakes;
    queues_choose(port, &info, &conf);
    uint16_t sending = queues_to_send(port, &info);
    eal_log_mark();
    result = rte_eth_dev_configure(port->id, port->queues, sending, &conf);
    /* Nobody has asked for several. */
    if (result != 0 && port->physical && port->queues > 1 && port->choice.queues == 0) {
        queues_only_one(port, &conf);
        result = rte_eth_dev_configure(port->id, port->queues, sending, &conf);
    }
    uint16_t receive = (uint16_t)port->choice.ring, send = (uint16_t)port->choice.ring;
    if (result == 0)
        result = rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &receive, &send);
    if (result != 0)
        return fail(error, capacity, "%s (%s): %s (%s)", port->name, port->driver, rte_strerror(-result), eal_log_last());
    if (make_pools(port, error, capacity) != 0)
        return INSANE_DATAPATH_FAILED;
    int socket = rte_eth_dev_socket_id(port->id);
    unsigned where = socket < 0 ? (unsigned)SOCKET_ID_ANY : (unsigned)socket;
    struct ring before[MOST_RINGS];
    bool xdp = strcmp(port->driver, "net_af_xdp") == 0;
    for (uint16_t queue = 0; queue < port->queues && result == 0; queue++) {
        unsigned count = xdp ? sockets(AF_XDP, before) : 0;
        result = rte_eth_rx_queue_setup(port->id, queue, receive, where, NULL, port->rx);
        if (result == 0 && xdp)
            keep_xdp(port, before, count);
    }
    port->may_be_busy = xdp && result != 0;
    for (uint16_t queue = 0; queue < sending && result == 0; queue++)
        result = rte_eth_tx_queue_setup(port->id, queue, send, where, NULL);
    if (result != 0)
        return fail(error, capacity, "the queues of %s (%s): %s (%s)", port->name, port->driver, rte_strerror(-result), eal_log_last());
    return 0;
}

/* The address under which it receives. Where a kernel has the interface, that keeps its own. */
static int take_address(insane_datapath_port *port, char *error, size_t capacity)
{
    if (!port->choice.has_address) {
        int result = rte_eth_macaddr_get(port->id, &port->address);
        return result == 0 ? 0 : fail(error, capacity, "the MAC address of %s: %s", port->name, rte_strerror(-result));
    }
    port->address = port->choice.address;
    if (port->membership >= 0)
        return 0;
    /* A virtual device's address may be that of an interface of the kernel's, which is to keep it. */
    if (!port->physical || rte_eth_dev_default_mac_addr_set(port->id, &port->address) != 0)
        (void)rte_eth_promiscuous_enable(port->id);
    /* IPv6 asks for neighbours by groups. A device without that sends all it has. */
    (void)rte_eth_allmulticast_enable(port->id);
    return 0;
}

static int open_locked(insane_datapath_port *port, char *error, size_t capacity)
{
    const struct choice *choice = &port->choice;
    port->physical = is_pci(choice->device);
    const char *eal = choice->eal[0] != 0 ? choice->eal : port->physical ? EAL_PHYSICAL : EAL_SOFTWARE;
    if (eal_start(eal, error, capacity) != 0)
        return INSANE_DATAPATH_FINAL;
    eal_thread();
    snprintf(port->name, sizeof port->name, "%.*s", (int)RTE_MIN(strcspn(choice->device, ","), sizeof port->name - 1), choice->device);
    port->max_frame = (choice->mtu != 0 ? choice->mtu : 1500) + header_bytes(port);
    if ((starts(port->name, "net_af_packet") || starts(port->name, "net_af_xdp")) && join_interface(port, error, capacity) != 0)
        return INSANE_DATAPATH_FAILED;
    if (attach(port, error, capacity) != 0)
        return INSANE_DATAPATH_FAILED;
    if (configure(port, error, capacity) != 0)
        return INSANE_DATAPATH_FAILED;
    eal_log_mark();
    if (port->memif)
        guard_port(port);
    /* memif's server may come later. */
    if (!port_start(port) && !port->client)
        return fail(error, capacity, "%s (%s) does not start%s: %s", port->name, port->driver,
                    port->membership >= 0 ? ", which takes CAP_NET_ADMIN" : "", eal_log_last());
    if (take_address(port, error, capacity) != 0)
        return INSANE_DATAPATH_FAILED;
    queues_steer(port);
    queues_find_wake(port);
    return 0;
}

static void detach(insane_datapath_port *port)
{
    queues_disarm(port);
    queues_let_go(port);
    if (port->started)
        rte_eth_dev_stop(port->id);
    rte_eth_dev_close(port->id);
    (void)rte_eal_hotplug_remove(bus(port), port->name);
    close_xdp(port);
}

static void close_locked(insane_datapath_port *port)
{
    for (uint32_t n = 0; n < port->stashed; n++)
        rte_pktmbuf_free(port->stash[n]);
    port->stashed = 0;
    if (port->id != RTE_MAX_ETHPORTS) {
        port_settle(port);
        if (port->memif)
            eal_run(detach, port);
        else
            detach(port);
    }
    if (port->memif)
        guard_port_no_more(port);
    end_receiving(port);
    rte_mempool_free(port->tx);
    rte_mempool_free(port->lend);
    if (port->gathered >= 0)
        close(port->gathered);
    if (port->membership >= 0)
        close(port->membership);
}

static int open_once(insane_datapath_port *port, char *error, size_t capacity)
{
    struct choice choice = port->choice;
    *port = (insane_datapath_port){
        .choice = choice, .id = RTE_MAX_ETHPORTS, .membership = -1, .ring = -1, .wake = -1, .gathered = -1, .shown_fd = -1 };
    pthread_mutex_lock(&lock);
    int result = open_locked(port, error, capacity);
    if (result != 0)
        close_locked(port);
    pthread_mutex_unlock(&lock);
    return result;
}

int32_t port_open(insane_datapath_port *port, insane_datapath_info *info, char *error, size_t capacity)
{
    int result = open_once(port, error, capacity);
    /* DPDK does not say why. Each time from the beginning: what the driver had put into its rings is gone with a failure. */
    for (unsigned waited = 0; result != 0 && port->may_be_busy && waited < PATIENCE_MS; waited += RETRY_MS) {
        rte_delay_us_sleep(RETRY_MS * 1000);
        result = open_once(port, error, capacity);
    }
    if (result != 0)
        return result;
    port_look(port);
    info->flags = port->gathers ? INSANE_DATAPATH_GATHERS : 0;
    /* A host of an earlier release has no room for it. */
    if (port->shown_fd >= 0 && info->size >= sizeof *info) {
        info->flags |= INSANE_DATAPATH_LENDS;
        info->lend_fd = port->shown_fd;
        info->lend_memory = port->shown;
        info->lend_stride = port->shown_stride;
        info->lend_slots = port->shown_slots;
        info->lend_most = port->shown_slots / 2;
    }
    info->max_frame = port->max_frame;
    info->burst = 32;
    info->gather_from = GATHER_FROM;
    info->wake_fd = port->wake;
    memcpy(info->address, port->address.addr_bytes, RTE_ETHER_ADDR_LEN);
    snprintf(port->chosen, sizeof port->chosen, "%s (%s), MTU %u, %s%s, %s, %s%s%s; %s started with \"%s\"", port->name, port->driver,
             port->max_frame - header_bytes(port), port->queues_text, port->rule_text,
             port->gathers ? "it reads payload where it lies" : "payload is copied once, into the device's buffers",
             port->wake >= 0 ? "it wakes sleepers" : "it can only be polled",
             port->shown_fd >= 0 ? ", received frames may be lent where they lie" : "",
             port->memif && !guard_is_in_place() ? ", a peer that goes while frames are under way may end this process" : "", rte_version(), eal_arguments());
    return 0;
}

void port_close(insane_datapath_port *port)
{
    pthread_mutex_lock(&lock);
    close_locked(port);
    pthread_mutex_unlock(&lock);
}
