/* A datapath to begin from: Ethernet frames as datagrams of a Unix socket, between two processes of one host.
 *
 * Options: path (where it receives: its socket is made and removed, and what else is there stays), peer (where it sends to), address
 * (its MAC address), and mtu (68 to 9000, by default 1500). To see what becomes of streams when a datapath fails: fail_send_after and
 * fail_receive_after, after how many frames `send` or `receive` says, until it is opened again, that it does not work any more; and
 * hang_open, for how many milliseconds `open` does not return. */
#include <insane_datapath.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define ETHERNET 14u
#define BUFFERS 256u

struct insane_datapath_port {
    struct sockaddr_un own, peer;
    uint8_t address[6];
    uint32_t max_frame;
    int socket;
    struct stat file; /* of the socket */
    /* One piece of memory, cut into frames; those that are free, by their numbers. */
    uint8_t *memory;
    uint32_t free[BUFFERS], free_count;
    uint64_t dropped, calls;
    /* How many frames were sent and received, and after how many that fails; 0: never. */
    uint64_t sent, received, sends, receives;
    uint64_t hang_open;
};

static int fail(char *error, size_t capacity, const char *what, const char *value)
{
    snprintf(error, capacity, "%s: %s", what, value);
    return INSANE_DATAPATH_FAILED;
}

static int set_path(struct sockaddr_un *to, const char *path)
{
    to->sun_family = AF_UNIX;
    return path[0] == '/' && strlen(path) < sizeof to->sun_path ? (strcpy(to->sun_path, path), 0) : -1;
}

static int set_address(uint8_t *to, const char *text)
{
    int end = 0;
    int parts = sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", to, to + 1, to + 2, to + 3, to + 4, to + 5, &end);
    return parts == 6 && text[end] == 0 ? 0 : -1;
}

static int set_count(uint64_t *to, const char *text)
{
    char *end;
    *to = strtoull(text, &end, 10);
    return *end == 0 && text[0] >= '1' && text[0] <= '9' ? 0 : -1;
}

static int set(insane_datapath_port *port, const char *key, const char *value, char *error, size_t capacity)
{
    if (strcmp(key, "path") == 0)
        return set_path(&port->own, value) == 0 ? 0 : fail(error, capacity, "path is no absolute path of a socket", value);
    if (strcmp(key, "peer") == 0)
        return set_path(&port->peer, value) == 0 ? 0 : fail(error, capacity, "peer is no absolute path of a socket", value);
    if (strcmp(key, "address") == 0)
        return set_address(port->address, value) == 0 ? 0 : fail(error, capacity, "address is no MAC address", value);
    if (strcmp(key, "mtu") == 0) {
        char *end;
        unsigned long mtu = strtoul(value, &end, 10);
        port->max_frame = (uint32_t)mtu + ETHERNET;
        return *end == 0 && mtu >= 68 && mtu <= 9000 ? 0 : fail(error, capacity, "mtu must be 68 to 9000", value);
    }
    if (strcmp(key, "fail_send_after") == 0)
        return set_count(&port->sends, value) == 0 ? 0 : fail(error, capacity, "fail_send_after must be a number of frames", value);
    if (strcmp(key, "fail_receive_after") == 0)
        return set_count(&port->receives, value) == 0 ? 0 : fail(error, capacity, "fail_receive_after must be a number of frames", value);
    if (strcmp(key, "hang_open") == 0)
        return set_count(&port->hang_open, value) == 0 ? 0 : fail(error, capacity, "hang_open must be a number of milliseconds", value);
    return fail(error, capacity, "there is no such option; there are path, peer, address, mtu, fail_send_after, fail_receive_after, hang_open", key);
}

static insane_datapath_port *create(const insane_datapath_option *options, size_t count, char *error, size_t capacity)
{
    insane_datapath_port *port = calloc(1, sizeof *port);
    if (port == NULL) {
        snprintf(error, capacity, "no memory");
        return NULL;
    }
    port->max_frame = 1500 + ETHERNET;
    for (size_t n = 0; n < count; n++) {
        if (set(port, options[n].key, options[n].value, error, capacity) != 0) {
            free(port);
            return NULL;
        }
    }
    if (port->own.sun_family == 0 || port->peer.sun_family == 0 || memcmp(port->address, "\0\0\0\0\0", 6) == 0) {
        snprintf(error, capacity, "path, peer and address must be given");
        free(port);
        return NULL;
    }
    return port;
}

static void destroy(insane_datapath_port *port) { free(port); }

/* What a killed process left is in the way of its successor. What somebody receives by, and what is no socket, is not ours to remove. */
static void remove_stale_socket(const struct sockaddr_un *at)
{
    struct stat found;
    int probe;
    if (lstat(at->sun_path, &found) != 0 || !S_ISSOCK(found.st_mode))
        return;
    probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return;
    if (connect(probe, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED)
        unlink(at->sun_path);
    close(probe);
}

static int32_t open_port(insane_datapath_port *port, insane_datapath_info *info, char *error, size_t capacity)
{
    struct timespec left = { (time_t)(port->hang_open / 1000), (long)(port->hang_open % 1000) * 1000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    port->memory = malloc((size_t)BUFFERS * port->max_frame);
    if (port->memory == NULL)
        return fail(error, capacity, "memory", strerror(ENOMEM));
    remove_stale_socket(&port->own);
    port->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (port->socket < 0 || bind(port->socket, (struct sockaddr *)&port->own, sizeof port->own) != 0
        || lstat(port->own.sun_path, &port->file) != 0) {
        int result = fail(error, capacity, port->own.sun_path, strerror(errno));
        if (port->socket >= 0)
            close(port->socket);
        free(port->memory);
        return result;
    }
    port->free_count = BUFFERS;
    for (uint32_t n = 0; n < BUFFERS; n++)
        port->free[n] = n;
    port->dropped = port->calls = port->sent = port->received = 0;
    info->flags = INSANE_DATAPATH_GATHERS;
    info->max_frame = port->max_frame;
    info->burst = 32;
    info->gather_from = 256;
    info->wake_fd = port->socket;
    memcpy(info->address, port->address, 6);
    return 0;
}

static void close_port(insane_datapath_port *port)
{
    struct stat found;
    /* Who has taken our file away and made another has that one for itself. As long as our socket is open, none is like ours. */
    if (lstat(port->own.sun_path, &found) == 0 && found.st_dev == port->file.st_dev && found.st_ino == port->file.st_ino)
        unlink(port->own.sun_path);
    close(port->socket);
    free(port->memory);
}

/* A buffer's handle is its number, and one, so that it is not NULL. */
static void *handle_of(uint32_t number) { return (void *)(uintptr_t)(number + 1); }
static uint8_t *data_of(insane_datapath_port *port, const void *handle)
{
    return port->memory + ((uintptr_t)handle - 1) * port->max_frame;
}
static void give_back(insane_datapath_port *port, const void *handle)
{
    port->free[port->free_count++] = (uint32_t)((uintptr_t)handle - 1);
}

static int32_t reserve(insane_datapath_port *port, insane_datapath_buffer *buffers, uint32_t count)
{
    uint32_t n = 0;
    /* Some stay for receiving. */
    for (; n < count && port->free_count > BUFFERS / 4; n++) {
        void *handle = handle_of(port->free[--port->free_count]);
        buffers[n] = (insane_datapath_buffer){ .handle = handle, .data = data_of(port, handle), .capacity = port->max_frame };
    }
    return (int32_t)n;
}

static int32_t send_frames(insane_datapath_port *port, const insane_datapath_outgoing *frames, uint32_t count)
{
    uint32_t n = 0;
    if (port->sends != 0 && port->sent >= port->sends)
        return INSANE_DATAPATH_FAILED;
    for (; n < count; n++) {
        struct iovec parts[2] = {
            { data_of(port, frames[n].handle), frames[n].length },
            { (void *)frames[n].payload, frames[n].payload_length },
        };
        struct msghdr message = { .msg_name = &port->peer, .msg_namelen = sizeof port->peer, .msg_iov = parts, .msg_iovlen = 2 };
        port->calls++;
        if (sendmsg(port->socket, &message, MSG_NOSIGNAL) < 0) {
            if (errno == EAGAIN || errno == ENOBUFS)
                break; /* it goes with the next call */
            if (n == 0 && (errno == ENOENT || errno == ECONNREFUSED))
                return INSANE_DATAPATH_DOWN;
            port->dropped++;
        }
        give_back(port, frames[n].handle);
    }
    port->sent += n;
    return (int32_t)n;
}

static int32_t receive(insane_datapath_port *port, insane_datapath_incoming *frames, uint32_t count)
{
    uint32_t n = 0;
    if (port->receives != 0 && port->received >= port->receives)
        return INSANE_DATAPATH_FAILED;
    /* What is not ours counts too: nobody keeps the host in here by sending it. */
    for (uint32_t looked = 0; looked < count && port->free_count > 0; looked++) {
        void *handle = handle_of(port->free[port->free_count - 1]);
        uint8_t *data = data_of(port, handle);
        port->calls++;
        ssize_t length = recv(port->socket, data, port->max_frame, MSG_TRUNC);
        if (length < 0)
            break;
        if (length < (ssize_t)ETHERNET || length > (ssize_t)port->max_frame)
            continue; /* not one of ours */
        port->free_count--;
        frames[n++] = (insane_datapath_incoming){ .handle = handle, .data = data, .length = (uint32_t)length };
    }
    port->received += n;
    return (int32_t)n;
}

static void release(insane_datapath_port *port, void *const *handles, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++)
        give_back(port, handles[n]);
}

/* A socket with something in it is readable: there is nothing to prepare, and nothing to miss. */
static int32_t arm(insane_datapath_port *port)
{
    (void)port;
    return INSANE_DATAPATH_SLEEP;
}

static void stats(const insane_datapath_port *port, insane_datapath_stats *stats)
{
    stats->dropped = port->dropped;
    stats->calls = port->calls;
}

static void describe(const insane_datapath_port *port, char *text, size_t capacity)
{
    snprintf(text, capacity, "frames over %s to %s; payload is gathered by the kernel", port->own.sun_path, port->peer.sun_path);
}

static const insane_datapath_table table = {
    .abi = INSANE_DATAPATH_ABI,
    .size = sizeof(insane_datapath_table),
    .name = "unix-frames",
    .create = create,
    .destroy = destroy,
    .open = open_port,
    .close = close_port,
    .reserve = reserve,
    .send = send_frames,
    .receive = receive,
    .release = release,
    .arm = arm,
    .stats = stats,
    .describe = describe,
};

__attribute__((visibility("default"))) const insane_datapath_table *insane_datapath(void) { return &table; }
