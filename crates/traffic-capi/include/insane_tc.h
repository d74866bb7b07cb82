/* Traffic control for the bearers of a RAN stack: a pipeline of classifier, policer, queue, scheduler, shaper and pacer for
 * each, between SDAP and PDCP. Packets in, packets out, RLC status in; the caller has the clock and the threads.
 *
 * Times are nanoseconds of any monotonic clock. Texts are UTF-8. Calls return 0 or a count, or a negative number of the list
 * below; insane_tc_error() says why in words. Nothing blocks or makes a system call but for memory. One thread at a time may
 * use a handle; different handles are independent. */
#ifndef INSANE_TC_H
#define INSANE_TC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INSANE_TC_INVALID (-1) /* an argument is NULL or cannot be, or a text is no pipeline or change */
#define INSANE_TC_NO_BEARER (-2)
#define INSANE_TC_EXISTS (-3)
#define INSANE_TC_REFUSED (-4) /* the pipeline cannot be changed so; it is as it was */
#define INSANE_TC_DROPPED (-5) /* the pipeline dropped the packet; its statistics say why */
#define INSANE_TC_TOO_SMALL (-6) /* the caller's memory is too small; what was asked for is still there */
#define INSANE_TC_BUG (-7) /* the library has a bug, and caught itself */

typedef struct insane_tc insane_tc;

/* What can be said of a bearer in numbers. */
typedef struct insane_tc_counts {
    uint64_t packets_in, bytes_in;
    uint64_t packets_out, bytes_out;
    uint64_t dropped; /* packets, for all reasons */
    uint64_t queued_packets, queued_bytes;
} insane_tc_counts;

/* A set of bearers without any. `seed` decides what is random in their pipelines; use one that senders do not know. NULL if
 * there is no memory. Closing drops what is queued; NULL is allowed. */
insane_tc *insane_tc_open(uint64_t seed);
void insane_tc_close(insane_tc *tc);

/* Why the last call of this thread failed; "" if none has. Valid until the thread's next call. */
const char *insane_tc_error(void);

/* Adds a bearer. `pipeline` is a pipeline file (TOML), "preset:" and a preset's name, or NULL for one FIFO without pacer. */
int insane_tc_add(insane_tc *tc, uint16_t rnti, uint8_t drb, const char *pipeline);

/* Removes a bearer and drops what it has queued; returns how many packets that were. */
int64_t insane_tc_remove(insane_tc *tc, uint16_t rnti, uint8_t drb);

/* Hands a packet in; it is copied. `qfi` is its QoS flow identifier, or -1 if it has none or carries it in its header. */
int insane_tc_push(insane_tc *tc, uint16_t rnti, uint8_t drb, uint64_t now, const void *packet, size_t size, int qfi);

/* Takes the next packet out, its ECN field possibly changed: returns its size, or 0 if none may leave now. `wake`, if not
 * NULL, is then when it is worth asking again though nothing comes in and no status arrives; UINT64_MAX is never. With
 * INSANE_TC_TOO_SMALL the packet stays the next one. */
int64_t insane_tc_pull(insane_tc *tc, uint16_t rnti, uint8_t drb, uint64_t now, void *buffer, size_t capacity,
                       uint64_t *wake);

/* Tells a bearer's pacer how many bytes and packets its RLC buffer holds. */
int insane_tc_rlc_status(insane_tc *tc, uint16_t rnti, uint8_t drb, uint64_t now, uint64_t bytes, uint64_t packets);

/* Changes a pipeline by a JSON list of changes, all or none; returns how many times it has been changed since it was added. */
int64_t insane_tc_change(insane_tc *tc, uint16_t rnti, uint8_t drb, uint64_t now, const char *changes);

/* A bearer's counts. packets_in = packets_out + dropped + queued_packets always, and a packet held back by
 * INSANE_TC_TOO_SMALL counts as queued. */
int insane_tc_count(insane_tc *tc, uint16_t rnti, uint8_t drb, insane_tc_counts *counts);

/* All statistics of a bearer as JSON with a NUL: returns its size without the NUL. If `capacity` is too small (0 is allowed, with
 * `text` NULL) nothing is written and the size is returned all the same. */
int64_t insane_tc_stats(insane_tc *tc, uint16_t rnti, uint8_t drb, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
