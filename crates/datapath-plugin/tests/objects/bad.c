/* Objects that must be refused, or closed when they lie; which one is decided by -DBAD=name. Apart from that it is a port that gives
 * back what is sent to it. */
#include <insane_datapath.h>
#include <string.h>

enum {
    NOTHING, NO_SYMBOL, NO_TABLE, VERSION, SIZE, LONGER, NAME, NO_NAME, LONG_NAME, NULL_CREATE, NULL_RELEASE, UNRESOLVED,
    NO_PORT, NO_REASON, NOT_OPENED, NEVER_OPENED, ENDLESS_REASON, MAX_FRAME, NO_BURST, GROUP_ADDRESS, BAD_FD, NEGATIVE_FD,
    LEND_NO_FD, LEND_BAD_FD, LEND_STRIDE, LEND_ALL, LEND_NOWHERE,
    RESERVE_MORE, RESERVE_FAILED, NO_DATA, SMALL_BUFFER, SEND_MORE, SEND_NEGATIVE, SEND_FAILED,
    RECEIVE_MORE, RECEIVE_FAILED, LONG_FRAME, SHORT_FRAME, NO_FRAME, LAST_FRAME, ARM, ARM_FAILED, LIMIT, DOWN, BUSY,
};

#define BUFFERS 128
#define BYTES 1514

struct insane_datapath_port {
    uint8_t memory[BUFFERS][BYTES];
    uint32_t lengths[BUFFERS];
    uint32_t free[BUFFERS], free_count, come[BUFFERS], come_count;
};

static insane_datapath_port the_port;

static insane_datapath_port *create(const insane_datapath_option *options, size_t count, char *error, size_t capacity)
{
    (void)options, (void)count;
    if (BAD == NO_PORT)
        strncpy(error, "it does not want to", capacity);
    return BAD == NO_PORT || BAD == NO_REASON ? NULL : &the_port;
}

static void destroy(insane_datapath_port *port) { (void)port; }

static int32_t open_port(insane_datapath_port *port, insane_datapath_info *info, char *error, size_t capacity)
{
    if (BAD == NOT_OPENED || BAD == NEVER_OPENED || BAD == ENDLESS_REASON) {
        memset(error, 'x', capacity);
        if (BAD != ENDLESS_REASON)
            strcpy(error, "the cable is out");
        return BAD == NEVER_OPENED ? INSANE_DATAPATH_FINAL : INSANE_DATAPATH_FAILED;
    }
    port->come_count = 0;
    port->free_count = BUFFERS;
    for (uint32_t n = 0; n < BUFFERS; n++)
        port->free[n] = n;
    info->max_frame = BAD == MAX_FRAME ? 65536 : BYTES;
    info->burst = BAD == NO_BURST ? 0 : 32;
    info->wake_fd = BAD == BAD_FD ? 999999 : BAD == NEGATIVE_FD ? -7 : BAD == ARM || BAD == ARM_FAILED ? 0 : -1;
    memcpy(info->address, BAD == GROUP_ADDRESS ? "\x03\x99\0\0\0\x01" : "\x02\x99\0\0\0\x01", 6);
    if (BAD >= LEND_NO_FD && BAD <= LEND_NOWHERE) {
        info->flags = INSANE_DATAPATH_LENDS;
        info->lend_fd = BAD == LEND_NO_FD ? -1 : BAD == LEND_BAD_FD ? 999999 : 0;
        info->lend_memory = BAD == LEND_NOWHERE ? NULL : port->memory[0];
        info->lend_stride = BAD == LEND_STRIDE ? 3000 : 2048;
        info->lend_slots = 64;
        info->lend_most = BAD == LEND_ALL ? 64 : 32;
    }
    return 0;
}

static void close_port(insane_datapath_port *port) { (void)port; }

static uint32_t number(const void *handle) { return (uint32_t)((uintptr_t)handle - 1); }

static int32_t reserve(insane_datapath_port *port, insane_datapath_buffer *buffers, uint32_t count)
{
    uint32_t n = 0;
    if (BAD == RESERVE_FAILED)
        return INSANE_DATAPATH_FAILED;
    for (; n < count && port->free_count > 0; n++) {
        uint32_t which = port->free[--port->free_count];
        buffers[n] = (insane_datapath_buffer){
            .handle = (void *)(uintptr_t)(which + 1),
            .data = BAD == NO_DATA ? NULL : port->memory[which],
            .capacity = BYTES - (BAD == SMALL_BUFFER),
        };
    }
    return (int32_t)(BAD == RESERVE_MORE ? count + 1 : n);
}

static int32_t send_frames(insane_datapath_port *port, const insane_datapath_outgoing *frames, uint32_t count)
{
    if (BAD == SEND_FAILED || BAD == SEND_NEGATIVE)
        return BAD == SEND_FAILED ? INSANE_DATAPATH_FAILED : -77;
    if (BAD == DOWN)
        return INSANE_DATAPATH_DOWN;
    if (BAD == BUSY)
        return 0;
    for (uint32_t n = 0; n < count; n++) {
        uint32_t which = number(frames[n].handle);
        port->lengths[which] = frames[n].length;
        port->come[port->come_count++] = which;
    }
    return (int32_t)(count + (BAD == SEND_MORE));
}

static int32_t receive(insane_datapath_port *port, insane_datapath_incoming *frames, uint32_t count)
{
    uint32_t n = 0;
    if (BAD == RECEIVE_FAILED)
        return INSANE_DATAPATH_FAILED;
    for (; n < count && n < port->come_count; n++) {
        uint32_t which = port->come[n];
        frames[n] = (insane_datapath_incoming){
            .handle = (void *)(uintptr_t)(which + 1),
            .data = BAD == NO_FRAME ? NULL : port->memory[which],
            .length = BAD == LONG_FRAME || (BAD == LAST_FRAME && n + 1 == port->come_count) ? BYTES + 1 : BAD == SHORT_FRAME ? 13 : port->lengths[which],
        };
    }
    memmove(port->come, port->come + n, (port->come_count - n) * sizeof *port->come);
    port->come_count -= n;
    return (int32_t)(BAD == RECEIVE_MORE ? count + 1 : n);
}

static void release(insane_datapath_port *port, void *const *handles, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++)
        port->free[port->free_count++] = number(handles[n]);
}

static int32_t arm(insane_datapath_port *port)
{
    (void)port;
    return BAD == ARM ? 9 : BAD == ARM_FAILED ? INSANE_DATAPATH_FAILED : INSANE_DATAPATH_POLL;
}

static uint32_t limit(insane_datapath_port *port)
{
    (void)port;
    return BAD == LIMIT ? 100000 : 1000;
}


static const struct {
    insane_datapath_table table;
    uint64_t later[4];
} tables = { {
    .abi = BAD == VERSION ? 7 : INSANE_DATAPATH_ABI,
    .size = BAD == SIZE ? sizeof(insane_datapath_table) - 8 : BAD == LONGER ? sizeof tables : sizeof(insane_datapath_table),
    .name = BAD == NAME        ? "Two Words"
            : BAD == NO_NAME   ? NULL
            : BAD == LONG_NAME ? "a-name-of-more-than-thirty-two-characters"
                               : "mirror",
    .create = BAD == NULL_CREATE ? NULL : create,
    .destroy = destroy,
    .open = open_port,
    .close = close_port,
    .reserve = reserve,
    .send = send_frames,
    .receive = receive,
    .release = BAD == NULL_RELEASE ? NULL : release,
    .arm = arm,
    .limit = limit,
}, { 1, 2, 3, 4 } };

#ifdef WITHOUT_SYMBOL
const insane_datapath_table *another_name(void)
#else
const insane_datapath_table *insane_datapath(void)
#endif
{
#ifdef WITH_UNRESOLVED
    extern void no_such_function_anywhere(void);
    no_such_function_anywhere();
#endif
    return BAD == NO_TABLE ? NULL : &tables.table;
}
