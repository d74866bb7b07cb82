/* Stages for INSANE's traffic pipeline in a shared object, loaded while the pipeline runs.
 *
 * The object defines insane_traffic_stage(), which gives one table per stage that it offers. The host reads the tables
 * once, checks them, and calls what they point to; a table and what it points to must stay as they are while the object is
 * loaded. The host owns the packets: a stage decides over them and never holds one, so whatever it answers no packet is lost
 * uncounted. An answer that cannot be is counted as a fault of the stage ("faults" in its statistics) and the default named
 * below is taken instead.
 *
 * Times are nanoseconds of the host's monotonic clock, sizes are bytes, texts are UTF-8. A stage is used by one thread at a
 * time, not always by the same; different stages may be used at the same time, and created and destroyed meanwhile. No
 * call may block, unwind, or keep a pointer that it was given beyond its return. Loading an object is running its code with
 * all rights of the process: nothing here protects the host from an object that writes to foreign memory. */
#ifndef INSANE_TRAFFIC_STAGE_H
#define INSANE_TRAFFIC_STAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of everything below. A host takes tables of its own version only. */
#define INSANE_TRAFFIC_STAGE_ABI 1u

/* What a stage is; classifiers stand behind a filter, policers and shapers at a queue. Names are unique per kind. */
#define INSANE_TRAFFIC_CLASSIFIER 1u
#define INSANE_TRAFFIC_POLICER 2u
#define INSANE_TRAFFIC_QUEUE 3u
#define INSANE_TRAFFIC_SCHEDULER 4u
#define INSANE_TRAFFIC_SHAPER 5u
#define INSANE_TRAFFIC_PACER 6u

/* Answers of classifiers and policers besides a queue's id, which is 0 to 65535. */
#define INSANE_TRAFFIC_PASS (-1) /* classifier: ask the next filter; policer: on to its queue */
#define INSANE_TRAFFIC_DROP (-2)

/* Answers of queues. */
#define INSANE_TRAFFIC_KEEP 0
#define INSANE_TRAFFIC_DISCARD 1
#define INSANE_TRAFFIC_MARK 2            /* set congestion experienced; a packet that is not capable of ECN is kept as it is */
#define INSANE_TRAFFIC_MARK_OR_DISCARD 3 /* set congestion experienced, or discard a packet that is not capable of ECN */

/* Why a packet leaves a queue. */
#define INSANE_TRAFFIC_SENT 0u
#define INSANE_TRAFFIC_DISCARDED 1u /* as the stage answered */
#define INSANE_TRAFFIC_REMOVED 2u   /* by a change, or because the pipeline is full */

/* Why a queue is not to be chosen. */
#define INSANE_TRAFFIC_EMPTY 0u
#define INSANE_TRAFFIC_HELD_BACK 1u /* by its shaper */

/* No such time: a field that is not known. */
#define INSANE_TRAFFIC_UNKNOWN UINT64_MAX

/* A packet that is to be classified or policed. Header fields are those of the innermost IP header that could be read; where
 * there is none ip_version is 0 and they are 0. IPv4 addresses are the first four bytes. */
typedef struct insane_traffic_packet {
    const uint8_t *bytes; /* what can be read of it, NULL if nothing */
    uint64_t flow;        /* the flow identity that came with it, if has_flow */
    uint32_t length;      /* how many bytes can be read */
    uint32_t size;        /* how many count against rates and limits */
    uint32_t traffic_class;
    int32_t qfi;          /* -1: none */
    uint16_t src_port, dst_port;
    uint8_t src[16], dst[16];
    uint8_t ip_version, protocol, dscp, ecn;
    uint8_t has_flow;
    uint8_t has_ports; /* whether src_port and dst_port are known */
    uint8_t reserved[2];
} insane_traffic_packet;

/* A packet that is in a queue or on its way into it, and what the queue holds besides it. */
typedef struct insane_traffic_item {
    uint64_t arrived; /* when it was handed in */
    uint64_t queued_bytes;
    uint32_t queued_packets;
    uint32_t size;
    uint8_t ecn;
    uint8_t reserved[7];
} insane_traffic_item;

/* The buffer that the pipeline feeds; INSANE_TRAFFIC_UNKNOWN where it does not say. */
typedef struct insane_traffic_rlc {
    uint64_t bytes, packets;
    uint64_t desired_bytes;
    uint64_t desired_rate; /* bit/s */
} insane_traffic_rlc;

/* What a scheduler may ask about the queues while it is asked for the next one. */
typedef struct insane_traffic_view {
    const void *context; /* the first argument of the calls */
    uint64_t (*packets)(const void *context, uint32_t queue);
    uint64_t (*bytes)(const void *context, uint32_t queue);
    uint64_t (*head_time)(const void *context, uint32_t queue); /* INSANE_TRAFFIC_UNKNOWN: it is empty */
} insane_traffic_view;

/* In the lists below calls marked "optional" may be NULL, all others may not. */

typedef struct insane_traffic_classifier {
    /* Chooses a queue, INSANE_TRAFFIC_PASS or INSANE_TRAFFIC_DROP. A queue that does not exist: the default queue. */
    int64_t (*classify)(void *stage, uint64_t now, const insane_traffic_packet *packet);
    /* A queue exists from now on; called for all that exist when the stage is put in place. Optional. */
    void (*queue_added)(void *stage, uint32_t queue);
    /* A queue is gone. Optional. */
    void (*queue_removed)(void *stage, uint32_t queue);
} insane_traffic_classifier;

typedef struct insane_traffic_policer {
    /* INSANE_TRAFFIC_PASS, INSANE_TRAFFIC_DROP, or the queue to which the packet goes instead of its own; one that does not
     * exist: the default queue. What is no queue's id at all: pass. */
    int64_t (*police)(void *stage, uint64_t now, const insane_traffic_packet *packet);
} insane_traffic_policer;

/* The host keeps the packets in the order in which they came, and keeps the limit of the pipeline's file. */
typedef struct insane_traffic_queue {
    /* Whether an arriving packet is taken. Anything else than the four answers: kept. */
    int32_t (*arrives)(void *stage, uint64_t now, const insane_traffic_item *item);
    /* Whether the oldest packet leaves when it is its turn; asked once per packet, however long a shaper or a pacer holds it
     * back. INSANE_TRAFFIC_DISCARD leads to the next packet, 64 times in a row at most; after that, and for anything else
     * than the four answers: kept. Optional; all are kept. */
    int32_t (*departs)(void *stage, uint64_t now, const insane_traffic_item *item);
    /* A packet has left for INSANE_TRAFFIC_SENT, _DISCARDED or _REMOVED; `item` without it. Optional. */
    void (*left)(void *stage, uint64_t now, const insane_traffic_item *item, uint32_t why);
} insane_traffic_queue;

typedef struct insane_traffic_scheduler {
    /* A queue exists, or does not any more. A new one is not to be chosen before it is activated. */
    void (*add)(void *stage, uint32_t queue);
    void (*remove)(void *stage, uint32_t queue);
    /* A queue may be chosen from now on; may be called for one that may be already. */
    void (*activate)(void *stage, uint32_t queue);
    /* It must not, because of INSANE_TRAFFIC_EMPTY or _HELD_BACK. */
    void (*deactivate)(void *stage, uint32_t queue, uint32_t why);
    /* The queue whose turn it is, one of those that may be chosen; there is one. Anything else: the next in turn. */
    int64_t (*next)(void *stage, uint64_t now, const insane_traffic_view *view);
    /* Whether a packet of `size` bytes may leave in this turn; 0: it is another queue's turn now. Refusing more often than
     * twice the number of queues and 32 times without letting one leave: it leaves. Optional; all may leave. */
    int32_t (*offer)(void *stage, uint32_t queue, uint32_t size);
    /* A packet of `size` bytes has left the queue. */
    void (*sent)(void *stage, uint32_t queue, uint32_t size);
} insane_traffic_scheduler;

typedef struct insane_traffic_shaper {
    /* When a packet of `size` bytes may leave its queue: now, an earlier time (0 will do), or a later one, a second from now
     * at most. Later than that: in a second. Asking may not change anything but what the clock changes. */
    uint64_t (*ready)(void *stage, uint64_t now, uint32_t size);
    /* A packet of `size` bytes has left. */
    void (*sent)(void *stage, uint64_t now, uint32_t size);
} insane_traffic_shaper;

typedef struct insane_traffic_pacer {
    /* When a packet of `size` bytes may leave the pipeline, as for a shaper; it is asked again after each report, too. */
    uint64_t (*admit)(void *stage, uint64_t now, uint32_t size);
    /* A packet of `size` bytes has left. */
    void (*sent)(void *stage, uint64_t now, uint32_t size);
    /* The state of the buffer that the pipeline feeds. Optional. */
    void (*report)(void *stage, uint64_t now, const insane_traffic_rlc *status);
} insane_traffic_pacer;

/* Takes one number for the statistics: a name of 1 to 64 characters and its value. */
typedef void (*insane_traffic_emit)(void *context, const char *name, uint64_t value);

typedef struct insane_traffic_stage_table {
    uint32_t abi;  /* INSANE_TRAFFIC_STAGE_ABI */
    uint32_t size; /* sizeof(insane_traffic_stage_table) */
    uint32_t kind;
    uint32_t calls_size; /* sizeof of what `calls` points to */
    /* 1 to 64 of a-z, A-Z, 0-9, '.', '_', '-'. */
    const char *name;
    /* Makes a stage from the text that the pipeline's file has for it: NAME=VALUE pairs by convention. NULL if it cannot; the
     * reason goes to `error`, up to `capacity` bytes with the NUL, and is shown to the user. A stage without state returns
     * any pointer but NULL. */
    void *(*create)(const char *options, char *error, size_t capacity);
    /* Takes other options and keeps its state: 0 if that was possible. Otherwise nothing has changed, and the host puts a
     * new stage in its place. Optional. */
    int32_t (*modify)(void *stage, const char *options);
    void (*destroy)(void *stage);
    /* Tells its statistics, 64 numbers at most. Optional. */
    void (*stats)(const void *stage, insane_traffic_emit emit, void *context);
    union {
        const insane_traffic_classifier *classifier;
        const insane_traffic_policer *policer;
        const insane_traffic_queue *queue;
        const insane_traffic_scheduler *scheduler;
        const insane_traffic_shaper *shaper;
        const insane_traffic_pacer *pacer;
    } calls;
} insane_traffic_stage_table;

/* The table of stage `n`, from 0; NULL when there are no more. At most 64 are asked for. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const insane_traffic_stage_table *insane_traffic_stage(uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
