/* insane.h: the C interface of INSANE. Link with -linsane; see pkg-config insane.
 *
 * The calls are those of figure 2 of "INSANE: A Unified Middleware for QoS-aware Network Acceleration in Edge Cloud
 * Computing" (Middleware '23) with the prefix insane_, and what a C program needs besides.
 *
 * Errors: calls return 0 (or what they say) when all is well, and a negative number -N otherwise, where N is one of
 * insane_code. insane_last_error() tells the text of the calling thread's last failure. A NULL handle gives
 * -INSANE_INVALID_ARGUMENT. Nothing here ever unwinds into C.
 *
 * Threads: every call may be made from any thread. A handle must not be closed while another thread is in a call with it.
 * Forks: in a forked child every call on a handle of its parent gives -INSANE_FORKED, and so do calls on buffers of its
 * parent, whose memory it does not have. Giving a buffer back and closing a handle give 0: they free what the child has of
 * it, and the parent keeps its own.
 */
#ifndef INSANE_H
#define INSANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INSANE_VERSION_MAJOR 0
#define INSANE_VERSION_MINOR 1

/* The same numbers in Rust, C and Python. */
enum insane_code {
    INSANE_RUNTIME_NOT_FOUND = 1, INSANE_RUNTIME_LOST = 2, INSANE_VERSION_MISMATCH = 3, INSANE_PROTOCOL = 4,
    INSANE_TIMEOUT = 5, INSANE_CLOSED = 6, INSANE_FORKED = 7, INSANE_SHUTTING_DOWN = 8, INSANE_SYSTEM = 9,
    INSANE_INVALID_ARGUMENT = 20, INSANE_INVALID_NAME = 21, INSANE_MESSAGE_TOO_LARGE = 22, INSANE_BUFFER_OVERRUN = 23,
    INSANE_UNKNOWN_TOKEN = 24, INSANE_NOT_FOUND = 25, INSANE_QOS_CONFLICT = 40, INSANE_QOS_UNAVAILABLE = 41,
    INSANE_CHANNEL_ID_TAKEN = 42, INSANE_IDENTITY_TAKEN = 43, INSANE_NOT_PERMITTED = 60, INSANE_QUOTA_EXCEEDED = 61,
    INSANE_UNTRUSTED_MEMORY = 62, INSANE_NO_BUFFER = 80, INSANE_SINK_FULL = 81, INSANE_WOULD_BLOCK = 82,
    INSANE_INTERRUPTED = 83
};

typedef struct insane_session insane_session_t;
typedef struct insane_stream insane_stream_t;
typedef struct insane_source insane_source_t;
typedef struct insane_sink insane_sink_t;
typedef struct insane_waitset insane_waitset_t;

/* Quality of service (section 5.2 of the paper; reliability is an addition). All zero: kernel networking will do, be
 * frugal, first in first out, best effort. */
typedef struct insane_options {
    int acceleration; /* 0 none, 1 preferred */
    int resources;    /* 0 frugal, 1 unlimited */
    int timing;       /* 0 best effort, 1 time-sensitive */
    int reliability;  /* 0 best effort, 1 reliable */
    int strict;       /* 1: refuse rather than downgrade */
} insane_options_t;

/* How a sink waits. */
#define INSANE_WAIT_ADAPTIVE 0 /* spin for some 50 microseconds, then sleep */
#define INSANE_WAIT_SPIN 1     /* never sleep: lowest latency, one whole core */
#define INSANE_WAIT_SLEEP 2    /* sleep at once */

/* Beside one of these: the sink takes a message of 1024 bytes or more of another host as the pieces in which its frames arrived, where
 * the datapath has it so. Then `data` of a consumed buffer is NULL if it has several; see insane_pieces. */
#define INSANE_SCATTERED 0x100

/* Flags of insane_consume_data and insane_data_available. */
#define INSANE_BLOCKING 0
#define INSANE_NONBLOCKING 1

/* A message's memory, borrowed. The struct is the caller's; do not copy it: it is given back once, to the handle that it came
 * from (another one gives -INSANE_INVALID_ARGUMENT, and the buffer stays as it is). */
typedef struct insane_buffer {
    void *data;        /* the payload; read-only in a consumed buffer, and NULL there if it lies in several pieces */
    size_t length;     /* bytes of payload: may be lowered before emitting */
    size_t capacity;   /* bytes that may be written */
    uint64_t sequence; /* consumed: the message's number at its source, from 1 */
    uint64_t channel;  /* consumed: the channel's id */
    uint64_t opaque[8];
} insane_buffer_t;

/* Bytes of a consumed message that lie in one place. Read-only, until the message is released. */
typedef struct insane_piece {
    const void *data;
    size_t length;
} insane_piece_t;

/* What was copied of a sink's messages by user code of this host; see insane_check_copies. */
typedef struct insane_copies {
    uint64_t scattered; /* messages that were left in the frames in which they came, in one piece or in several */
    uint64_t pieces;    /* how many these had together */
    uint64_t runtime;   /* messages of which the runtime had copied the payload, or some of it, before they came */
    uint64_t here;      /* messages that were copied together in this process */
} insane_copies_t;

/* How many intended sinks of a message are in each state. Of sinks of other hosts, best effort, losses are counted and not named: a
 * message is said to be delivered once as many have ended as were emitted before and with it. */
typedef struct insane_outcome {
    uint32_t intended, pending, delivered, dropped, expired, unconfirmed;
} insane_outcome_t;

/* Called for every message of a sink from a thread of the library; the message is released when it returns. */
typedef void (*insane_data_cb)(const void *data, size_t length, uint64_t sequence, void *user);

/* The library's version, such as "0.1.0". Never NULL. */
const char *insane_version(void);
/* The name, the meaning and the remedy of a code, positive or negative; "Unknown" for others. Never NULL, and valid as
 * long as the process lives. */
const char *insane_error_name(int code);
const char *insane_error_text(int code);
const char *insane_error_hint(int code);
/* The text of the calling thread's last failure; valid until its next call. Never NULL. */
const char *insane_last_error(void);

/* Opens a session with the runtime of this host under the application's name. domain and socket may be NULL. Blocks for
 * the runtime's answer, at most five seconds. */
int insane_init_session(const char *app, const char *domain, const char *socket, insane_session_t **session);
/* Closes a session after its streams, sources and sinks were closed. NULL is passed over. */
int insane_close_session(insane_session_t *session);

/* What the library tells of its own accord; the same numbers in Rust, C and Python. */
enum insane_event {
    INSANE_EVENT_RUNTIME_LOST = 1, INSANE_EVENT_RUNTIME_BACK = 2, INSANE_EVENT_QOS_CHANGED = 3,
    INSANE_EVENT_PEER_LOST = 4, INSANE_EVENT_PEER_BROKEN = 5, INSANE_EVENT_SINK_GIVEN_UP = 6,
    INSANE_EVENT_QOS_REFUSED = 7, INSANE_EVENT_STREAM_REFUSED = 8
};
/* Takes the oldest event that was not taken yet and returns its number, 0 if there is none. Writes what has happened, in words,
 * into size bytes of text (at most size - 1 and a NUL); text may be NULL if size is 0. Never blocks. */
int insane_next_event(insane_session_t *session, char *text, size_t size);

/* What an event is about, for programs. Later versions may add fields at the end. */
typedef struct insane_event_facts {
    int64_t moved_us;  /* QOS_CHANGED: what the session emits on the stream has moved to the datapath that the text names; for so many
                        * microseconds at most messages waited for that. -1: no move is over. When one begins the event comes with -1. */
    char stream[256];  /* the stream's name, shortened if need be; empty if the event is about none */
    char peer[256];    /* QOS_CHANGED and QOS_REFUSED: the host's name, or `local`; else empty */
} insane_event_facts_t;
/* As insane_next_event, and fills in what the event is about. facts_size is sizeof *facts: no more than that is written. */
int insane_next_event_facts(insane_session_t *session, insane_event_facts_t *facts, size_t facts_size, char *text,
                            size_t size);

/* Opens the stream of this QoS; options may be NULL for the default, name may be NULL for the one made of the QoS. */
int insane_create_stream(insane_session_t *session, const char *name, const insane_options_t *options,
                         insane_stream_t **stream);
int insane_close_stream(insane_stream_t *stream);
/* Writes what is served towards each peer, one line each with the reasons for downgrades, as text of at most size bytes
 * with its NUL. Returns the bytes that it needs. */
long insane_effective_qos(insane_stream_t *stream, char *text, size_t size);

/* Opens a source of a channel by id, or by name. Blocks for the runtime's answer. Gives -INSANE_NO_BUFFER when what the session's streams
 * have in use leaves too little of its memory (quota.memory_mib_per_session) for one message of 1024 bytes. */
int insane_create_source(insane_stream_t *stream, uint64_t channel, insane_source_t **source);
int insane_create_source_named(insane_stream_t *stream, const char *channel, insane_source_t **source);
int insane_close_source(insane_source_t *source);
/* Waits until count sinks are in the source's view, at most timeout_ms. Returns how many are. */
long insane_wait_sinks(insane_source_t *source, size_t count, uint64_t timeout_ms);

/* Borrows memory for a message of size bytes. flags is 0. */
int insane_get_buffer(insane_source_t *source, size_t size, int flags, insane_buffer_t *buffer);
/* Emits buffer->length bytes. Returns the token (above 0); the buffer is no longer the caller's, whatever comes back. */
int64_t insane_emit_data(insane_source_t *source, insane_buffer_t *buffer);
/* As insane_emit_data, and says that more follows at once: messages of up to 2048 bytes may wait for each other and share a slot,
 * and sinks that sleep are woken later. End such a batch with insane_emit_data or insane_flush. */
int64_t insane_emit_more(insane_source_t *source, insane_buffer_t *buffer);
/* Sends what waits for more, and wakes the sinks that have messages of insane_emit_more. Never blocks. */
int insane_flush(insane_source_t *source);
/* Gives a buffer back without emitting it. */
int insane_discard_buffer(insane_source_t *source, insane_buffer_t *buffer);
/* How many intended sinks of a message are in each state. Never blocks. */
int insane_check_emit_outcome(insane_source_t *source, int64_t token, insane_outcome_t *outcome);

/* Opens a sink of a channel by id, or by name. wait is INSANE_WAIT_..., with INSANE_SCATTERED if so wanted. callback may be NULL: then
 * the sink is for insane_consume_data. The sinks of a stream in one session share its links: one that takes nothing has half of one, and
 * loses what comes then alone (best effort); reliable sources wait for the slowest. */
int insane_create_sink(insane_stream_t *stream, uint64_t channel, int wait, insane_data_cb callback, void *user,
                       insane_sink_t **sink);
int insane_create_sink_named(insane_stream_t *stream, const char *channel, int wait, insane_data_cb callback, void *user,
                             insane_sink_t **sink);
/* Closes a sink after its buffers were released. */
int insane_close_sink(insane_sink_t *sink);
/* 1 if insane_consume_data would return a message now, 0 if not. */
int insane_data_available(insane_sink_t *sink, int flags);
/* Takes the next message. INSANE_BLOCKING waits at most timeout_ms (UINT64_MAX: for ever) and gives -INSANE_TIMEOUT;
 * INSANE_NONBLOCKING gives -INSANE_WOULD_BLOCK. */
int insane_consume_data(insane_sink_t *sink, int flags, uint64_t timeout_ms, insane_buffer_t *buffer);
/* Writes where a consumed message lies, up to count pieces in order, and returns how many there are: 1, unless the sink was opened with
 * INSANE_SCATTERED. pieces may be NULL if count is 0. Never blocks, copies nothing. */
long insane_pieces(insane_sink_t *sink, const insane_buffer_t *buffer, insane_piece_t *pieces, size_t count);
/* Copies a message of several pieces together, if that was not done yet, and sets buffer->data. It is counted. */
int insane_contiguous(insane_sink_t *sink, insane_buffer_t *buffer);
/* What was copied of the messages of a sink that was opened with INSANE_SCATTERED; zeros for others. Small messages that travel inside
 * their descriptors or several to a slot are not counted, nor is what the caller copies. Never blocks. */
int insane_check_copies(insane_sink_t *sink, insane_copies_t *copies);
/* Gives a consumed message back. */
int insane_release_buffer(insane_sink_t *sink, insane_buffer_t *buffer);
/* Calls f(data, length, sequence, user) with the messages that are there, at most `most` of them, in order, and gives them back
 * after the last; for many small messages a fraction of the cost of insane_consume_data. Messages of several pieces are copied together. Waits for the first one as
 * insane_consume_data does, and gives the same errors. Returns how many there were. f must not unwind or jump out. */
long insane_consume_each(insane_sink_t *sink, int flags, uint64_t timeout_ms, size_t most, insane_data_cb f, void *user);
/* Waits until one of count sinks has a message, at most timeout_ms. Returns its index. Sinks are looked at round robin:
 * start is the index to begin with. */
long insane_wait_any(insane_sink_t *const *sinks, size_t count, size_t start, uint64_t timeout_ms);

/* A wait set: many sinks without a callback, and one descriptor for an event loop. One thread at a time uses a set; close it
 * before its sinks. In a loop of your own: arm until it gives 1, wait for the descriptor to become readable (poll, epoll,
 * libuv, ...), then ask what is ready and consume without blocking. */
int insane_create_waitset(insane_waitset_t **set);
int insane_close_waitset(insane_waitset_t *set);
/* Adds a sink and returns its key, from 0. A sink that is closed is reported as ready once and then removed. */
long insane_waitset_add(insane_waitset_t *set, insane_sink_t *sink);
/* Removes a sink by its key; a key without a sink changes nothing. */
int insane_waitset_remove(insane_waitset_t *set, long key);
/* The descriptor; the set's own: do not close it. */
int insane_waitset_fd(insane_waitset_t *set);
/* 1: the descriptor becomes readable when something comes; 0: something is there now. */
int insane_waitset_arm(insane_waitset_t *set);
/* Writes up to size keys of sinks that have a message, in turns, and returns how many; 0 if none has. Never blocks. What the
 * array had no room for comes next time. */
long insane_waitset_ready(insane_waitset_t *set, size_t *keys, size_t size);
/* As insane_waitset_ready, after waiting for one at most timeout_ms (UINT64_MAX: for ever): -INSANE_TIMEOUT. */
long insane_waitset_wait(insane_waitset_t *set, size_t *keys, size_t size, uint64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
