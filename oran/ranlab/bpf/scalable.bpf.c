// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A scalable congestion control in the manner of DCTCP (RFC 8257), for kernels without one: the window falls by half the part
// of the packets that were marked, once per window, and the receiver tells of every mark. The lab compiles this file with
// clang and registers it with bpftool (BPF struct_ops) for one experiment.
//
// It is no TCP Prague: it sends ECT(0), its growth depends on the round trip, and it does not fall back to classic control
// where a mark is meant as one. The licence is the kernel's condition for the calls that it makes.

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
// The offsets are those of the kernel that loads it, found by name.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock {};
struct tcp_sock {
    u32 snd_cwnd;
    u32 snd_ssthresh;
    u32 snd_una;
    u32 snd_nxt;
    u32 rcv_nxt;
    u32 delivered;
    u32 delivered_ce;
    u8 ecn_flags;
};
struct inet_connection_sock {
    struct {
        u8 pending;
    } icsk_ack;
    u64 icsk_ca_priv[13];
};
#pragma clang attribute pop

struct tcp_congestion_ops {
    u32 (*ssthresh)(struct sock *);
    void (*cong_avoid)(struct sock *, u32, u32);
    void (*set_state)(struct sock *, u8);
    void (*cwnd_event)(struct sock *, u32);
    void (*in_ack_event)(struct sock *, u32);
    u32 (*undo_cwnd)(struct sock *);
    char name[16];
    u32 flags;
    void (*init)(struct sock *);
};

// Of the kernel.
enum { ACK_TIMER = 2, ACK_NOW = 16, DEMAND_CWR = 4, NEEDS_ECN = 2, STATE_RECOVERY = 3, EVENT_LOSS = 3, EVENT_NO_CE = 4, EVENT_CE = 5 };
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked) SECTION(".ksyms");
static long (*const send_ack)(void *tp, u32 rcv_nxt) = (void *)116;

// The part of marked packets, `alpha`, is of so many; its weight of a window is 1/16 (RFC 8257, section 3.3).
enum { WHOLE = 1024, WEIGHT_SHIFT = 4 };

struct state {
    u32 alpha;
    // Where the window that is being counted ends, and the counts at its beginning.
    u32 window_end;
    u32 delivered;
    u32 delivered_ce;
    // The window before the last reduction.
    u32 before;
    // The receiver's side: whether the last packet was marked, and what had arrived by then.
    u32 marked;
    u32 received;
};

static __attribute__((always_inline)) struct state *state_of(struct sock *sk) {
    return (struct state *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __attribute__((always_inline)) void new_window(struct state *s, struct tcp_sock *tp) {
    s->window_end = tp->snd_nxt;
    s->delivered = tp->delivered;
    s->delivered_ce = tp->delivered_ce;
}

static __attribute__((always_inline)) u32 at_least_two(u32 window) {
    return window > 2 ? window : 2;
}

SECTION("struct_ops/begin")
int begin(u64 *ctx) {
    struct sock *sk = (struct sock *)ctx[0];
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct state *s = state_of(sk);
    // The first mark halves the window, as nothing is known yet.
    s->alpha = WHOLE;
    s->received = tp->rcv_nxt;
    new_window(s, tp);
    return 0;
}

SECTION("struct_ops/acknowledged")
int acknowledged(u64 *ctx) {
    struct sock *sk = (struct sock *)ctx[0];
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct state *s = state_of(sk);
    if ((s32)(s->window_end - tp->snd_una) >= 0)
        return 0;
    u32 packets = tp->delivered - s->delivered;
    u32 marked = tp->delivered_ce - s->delivered_ce;
    u32 decay = s->alpha >> WEIGHT_SHIFT;
    // A part too small to decay by a sixteenth goes at once.
    u32 alpha = decay ? s->alpha - decay : 0;
    if (marked && packets)
        alpha += (marked << (10 - WEIGHT_SHIFT)) / packets;
    s->alpha = alpha < WHOLE ? alpha : WHOLE;
    new_window(s, tp);
    return 0;
}

SECTION("struct_ops/reduced")
int reduced(u64 *ctx) {
    struct sock *sk = (struct sock *)ctx[0];
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct state *s = state_of(sk);
    u32 window = tp->snd_cwnd;
    s->before = window;
    return at_least_two(window - (u32)(((u64)window * s->alpha) >> 11));
}

static __attribute__((always_inline)) void halve(struct sock *sk) {
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct state *s = state_of(sk);
    s->before = tp->snd_cwnd;
    tp->snd_ssthresh = at_least_two(tp->snd_cwnd >> 1);
}

// Loss is answered as any TCP does (section 3.5).
SECTION("struct_ops/changed")
int changed(u64 *ctx) {
    if ((u8)ctx[1] == STATE_RECOVERY)
        halve((struct sock *)ctx[0]);
    return 0;
}

SECTION("struct_ops/happened")
int happened(u64 *ctx) {
    struct sock *sk = (struct sock *)ctx[0];
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
    struct state *s = state_of(sk);
    u32 event = (u32)ctx[1];
    if (event == EVENT_LOSS)
        halve(sk);
    if (event != EVENT_CE && event != EVENT_NO_CE)
        return 0;
    // The receiver: an acknowledgement that is held back tells of packets before the change, and goes first (section 3.2).
    u32 marked = event == EVENT_CE;
    if (s->marked != marked) {
        if (icsk->icsk_ack.pending & ACK_TIMER)
            send_ack(tp, s->received);
        icsk->icsk_ack.pending |= ACK_NOW;
    }
    s->received = tp->rcv_nxt;
    s->marked = marked;
    if (marked)
        tp->ecn_flags |= DEMAND_CWR;
    else
        tp->ecn_flags &= (u8)~DEMAND_CWR;
    return 0;
}

SECTION("struct_ops/undone")
int undone(u64 *ctx) {
    struct sock *sk = (struct sock *)ctx[0];
    u32 window = ((struct tcp_sock *)sk)->snd_cwnd;
    u32 before = state_of(sk)->before;
    return window > before ? window : before;
}

SECTION("struct_ops/grown")
int grown(u64 *ctx) {
    tcp_reno_cong_avoid((struct sock *)ctx[0], (u32)ctx[1], (u32)ctx[2]);
    return 0;
}

SECTION(".struct_ops")
struct tcp_congestion_ops insane_dctcp = {
    .init = (void *)begin,
    .in_ack_event = (void *)acknowledged,
    .ssthresh = (void *)reduced,
    .set_state = (void *)changed,
    .cwnd_event = (void *)happened,
    .undo_cwnd = (void *)undone,
    .cong_avoid = (void *)grown,
    .flags = NEEDS_ECN,
    .name = "insane_dctcp",
};

SECTION("license")
char terms[] = "Dual MIT/GPL";
