/* A datapath of INSANE's in a shared object: whole Ethernet frames over some technology.
 *
 * The object defines insane_datapath(), which returns one table. The host reads it once, checks it, and calls what it points to;
 * the table must stay as it is, and the object is never unloaded. `create` makes a port from options, closed; `open` and `close`
 * may follow each other many times; `destroy` ends it.
 *
 * A port is used by one thread at a time, not always by the same; different ports of one object may be used at the same time.
 * No call but `open` may wait. No call may unwind: a plug-in in C++ or Rust catches what is thrown and returns an error. Texts are
 * UTF-8 with a NUL. No pointer that a call was given may be kept beyond its return.
 *
 * Who owns which memory: the bytes of a buffer lie in memory of the plug-in's that no other process can write. A buffer that was
 * handed out by `reserve` or `receive` is the host's until it comes back by `send` (taken) or `release`; the plug-in leaves it
 * alone meanwhile. Before `close` the host gives all of them back.
 *
 * Versions: within one INSANE_DATAPATH_ABI fields are only added, at the ends of insane_datapath_table, insane_datapath_info and
 * insane_datapath_stats, whose `size` says which fields there are. Who has the shorter struct decides: the host takes calls beyond a
 * table's size for NULL, and a plug-in writes no more of an info or of stats than their size when it was given them. The other
 * structs never change within a version.
 *
 * What a plug-in returns is checked as far as it can be: counts, lengths, sizes. One that breaks a rule is closed, and what was to be
 * sent fails. Nothing protects the host from a pointer that leads elsewhere: loading an object is running it with all rights of
 * the process. */
#ifndef INSANE_DATAPATH_H
#define INSANE_DATAPATH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of everything below. A host takes tables of its own version only. */
#define INSANE_DATAPATH_ABI 1u

/* The most buffers that one call is asked for or given. */
#define INSANE_DATAPATH_BURST 64u

/* Results below 0 of all calls that return int32_t. */
#define INSANE_DATAPATH_DOWN (-1)   /* `send`: there is no link now. The frames are lost, their buffers stay the host's. */
#define INSANE_DATAPATH_FAILED (-2) /* It does not work any more until it is opened again. */
#define INSANE_DATAPATH_FINAL (-3)  /* `open`: nor can it be opened again in this process, whatever is mended. It is not tried again. */

/* What `arm` returns. */
#define INSANE_DATAPATH_SLEEP 0 /* wake_fd becomes readable when something can be received */
#define INSANE_DATAPATH_READY 1 /* something is there already, or may be: receive first */
#define INSANE_DATAPATH_POLL 2  /* there is no way to be woken now */

/* What a port can do, in insane_datapath_info.flags. */
#define INSANE_DATAPATH_GATHERS 1u /* `send` takes payload from where it lies, and is done with it when it returns */
#define INSANE_DATAPATH_LENDS 2u   /* received frames may be kept, and lie in memory that can be shown to others: the lend fields say where */

/* One of a port's options. */
typedef struct insane_datapath_option {
    const char *key;
    const char *value;
} insane_datapath_option;

/* What a port is, once it is open. */
typedef struct insane_datapath_info {
    uint32_t size;        /* set by the host: the bytes that the plug-in may write */
    uint32_t flags;       /* INSANE_DATAPATH_GATHERS, INSANE_DATAPATH_LENDS */
    uint32_t max_frame;   /* the largest frame in bytes, with its Ethernet header of 14: 64 to 65535 */
    uint32_t burst;       /* frames that one `send` does best with: 1 to INSANE_DATAPATH_BURST */
    uint32_t gather_from; /* payload shorter than this is better copied than gathered; bytes */
    int32_t wake_fd;      /* to be waited on for reading after `arm`; -1 if there is no way but polling. Stays the plug-in's. */
    uint8_t address[6];   /* its MAC address */
    uint8_t reserved[2];  /* zero */
    /* With INSANE_DATAPATH_LENDS: every received frame lies in one slot of this memory. The host may keep up to `lend_most` of them
     * for as long as it likes, and show the memory to other processes, which map it read-only: so frames lie there and nothing else.
     * What it still keeps at `close` does not come back by `release`, and the memory stays mapped. */
    int32_t lend_fd;            /* a memfd sealed against all writing but by what is mapped already; stays the plug-in's */
    uint32_t lend_stride;       /* bytes from one slot to the next: a power of two, 2048 or more */
    uint32_t lend_slots;        /* how many slots */
    uint32_t lend_most;         /* leaves enough to receive into: less than lend_slots */
    const uint8_t *lend_memory; /* where it is mapped here */
} insane_datapath_info;

/* What a port has counted since it was opened. */
typedef struct insane_datapath_stats {
    uint32_t size; /* set by the host: the bytes that the plug-in may write */
    uint32_t reserved;
    uint64_t overruns; /* frames that were lost before they could be received */
    uint64_t dropped;  /* frames that were taken by `send` and lost before they left */
    uint64_t calls;    /* calls into the technology */
} insane_datapath_stats;

/* Room for a frame to be sent. */
typedef struct insane_datapath_buffer {
    void *handle; /* the plug-in's name for it */
    uint8_t *data;
    uint32_t capacity; /* bytes at data; at least max_frame */
    uint32_t reserved; /* zero */
} insane_datapath_buffer;

/* A frame to be sent: `length` bytes of a buffer, then, for a port that gathers, payload. */
typedef struct insane_datapath_outgoing {
    void *handle; /* of a buffer that was reserved */
    uint32_t length;
    uint32_t payload_length;
    /* NULL if there is none. Read only, and another process may be changing it: what is sent is whatever was there. */
    const uint8_t *payload;
} insane_datapath_outgoing;

/* A frame that was received, in one piece. */
typedef struct insane_datapath_incoming {
    void *handle;
    const uint8_t *data;
    uint32_t length;   /* 14 to max_frame */
    uint32_t reserved; /* zero */
} insane_datapath_incoming;

/* A port, of the plug-in's making. */
typedef struct insane_datapath_port insane_datapath_port;

/* Calls marked "optional" may be NULL, all others may not. */
typedef struct insane_datapath_table {
    uint32_t abi;     /* INSANE_DATAPATH_ABI */
    uint32_t size;    /* sizeof(insane_datapath_table) */
    const char *name; /* the technology's name: 1 to 32 of a-z, 0-9, '-' */
    /* Makes a port, closed. NULL if it cannot; the reason goes to `error`, up to `capacity` bytes with the NUL, and is shown to
     * the user. An option that is not known is a reason. */
    insane_datapath_port *(*create)(const insane_datapath_option *options, size_t count, char *error, size_t capacity);
    void (*destroy)(insane_datapath_port *port);
    /* Opens it and says what it is: 0, or INSANE_DATAPATH_FAILED or INSANE_DATAPATH_FINAL with a reason. May take as long as it needs. */
    int32_t (*open)(insane_datapath_port *port, insane_datapath_info *info, char *error, size_t capacity);
    /* Closes it, after which it can be opened again; wake_fd goes. Not called for a port that is closed. */
    void (*close)(insane_datapath_port *port);
    /* Room for up to `count` frames: how many buffers there are now, 0 to `count`. */
    int32_t (*reserve)(insane_datapath_port *port, insane_datapath_buffer *buffers, uint32_t count);
    /* Sends frames in order: how many it has taken, 0 to `count`, from the first on. The buffers of those are the plug-in's again;
     * those of the others stay the host's, which sends or releases them. */
    int32_t (*send)(insane_datapath_port *port, const insane_datapath_outgoing *frames, uint32_t count);
    /* Up to `count` frames that have come, which is at most INSANE_DATAPATH_BURST: how many, 0 to `count`. After fewer than `count` the
     * host asks again with its next look. */
    int32_t (*receive)(insane_datapath_port *port, insane_datapath_incoming *frames, uint32_t count);
    /* Takes buffers back, of reserved room that is not sent and of frames that were received. */
    void (*release)(insane_datapath_port *port, void *const *handles, uint32_t count);
    /* Prepares wake_fd; called before every sleep, after a receive that got nothing. Optional: it can only be polled. */
    int32_t (*arm)(insane_datapath_port *port);
    /* The largest frame that can be sent now, if that changes while it is open. May make a system call. Optional: max_frame. */
    uint32_t (*limit)(insane_datapath_port *port);
    /* Optional. */
    void (*stats)(const insane_datapath_port *port, insane_datapath_stats *stats);
    /* What was chosen when it was opened and why, for people: one line of up to `capacity` bytes with the NUL. Optional. */
    void (*describe)(const insane_datapath_port *port, char *text, size_t capacity);
} insane_datapath_table;

/* The object's table. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const insane_datapath_table *insane_datapath(void);

#ifdef __cplusplus
}
#endif
#endif
