/* A RAN stack in miniature: packets in, packets out, RLC status in. Every check that fails is named. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "insane_tc.h"

static int failed;
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (%s)\n", __LINE__, #what, insane_tc_error()); \
            failed++; \
        } \
    } while (0)

/* An IPv4 UDP packet to a port. */
static void packet(unsigned char *p, size_t size, unsigned port)
{
    memset(p, 0, size);
    p[0] = 0x45;
    p[2] = size >> 8;
    p[3] = size & 255;
    p[9] = 17;
    p[22] = port >> 8;
    p[23] = port & 255;
}

static void refusals(insane_tc *tc)
{
    unsigned char p[100] = {0x45};
    CHECK(insane_tc_add(NULL, 1, 1, NULL) == INSANE_TC_INVALID);
    CHECK(insane_tc_add(tc, 1, 1, "no pipeline") == INSANE_TC_INVALID && *insane_tc_error());
    CHECK(insane_tc_add(tc, 1, 1, "preset:nothing") == INSANE_TC_INVALID && strstr(insane_tc_error(), "fq-codel"));
    CHECK(insane_tc_push(tc, 1, 1, 0, p, sizeof p, -1) == INSANE_TC_NO_BEARER);
    CHECK(insane_tc_add(tc, 1, 1, NULL) == 0);
    CHECK(insane_tc_add(tc, 1, 1, NULL) == INSANE_TC_EXISTS);
    CHECK(insane_tc_push(tc, 1, 1, 0, NULL, 100, -1) == INSANE_TC_INVALID);
    CHECK(insane_tc_push(tc, 1, 1, 0, p, 0, -1) == INSANE_TC_INVALID);
    CHECK(insane_tc_push(tc, 1, 1, 0, p, sizeof p, 64) == INSANE_TC_INVALID);
    CHECK(insane_tc_change(tc, 1, 1, 0, NULL) == INSANE_TC_INVALID);
    CHECK(insane_tc_change(tc, 1, 1, 0, "[{\"op\":\"delete-queue\",\"id\":0}]") == INSANE_TC_REFUSED);
    CHECK(insane_tc_count(tc, 1, 1, NULL) == INSANE_TC_INVALID);
    CHECK(insane_tc_remove(tc, 1, 1) == 0);
    CHECK(insane_tc_remove(tc, 1, 1) == INSANE_TC_NO_BEARER);
}

static void paced(insane_tc *tc)
{
    unsigned char p[1500], out[1500];
    uint64_t wake = 0, rlc = 0, now = 0;
    int64_t size;
    insane_tc_counts counts;
    CHECK(insane_tc_add(tc, 0x4601, 3, "version = 1\nqueue = [{ id = 0 }, { id = 1 }]\npacer = { type = \"5g-bdp\" }\n"
                                       "[[filter]]\nid = 1\nmatch = { dst_port = \"7\" }\n"
                                       "to = { type = \"queue\", queue = 1 }\n") == 0);
    for (int i = 0; i < 100; i++) {
        packet(p, sizeof p, i % 2 ? 7 : 9);
        CHECK(insane_tc_push(tc, 0x4601, 3, now, p, sizeof p, 9) == 0);
    }
    CHECK(insane_tc_pull(tc, 0x4601, 3, now, out, 10, &wake) == INSANE_TC_TOO_SMALL);
    CHECK(insane_tc_count(tc, 0x4601, 3, &counts) == 0 && counts.packets_out == 0 && counts.queued_packets == 100);
    while ((size = insane_tc_pull(tc, 0x4601, 3, now, out, sizeof out, &wake)) > 0) {
        rlc += (uint64_t)size;
        CHECK(size == 1500 && out[0] == 0x45);
    }
    CHECK(size == 0 && rlc > 0 && rlc <= 10000 && wake > now && wake < UINT64_MAX);
    /* The RLC empties by 5000 bytes a millisecond and says so. */
    for (int ms = 1; ms < 100; ms++) {
        now = (uint64_t)ms * 1000000;
        rlc = rlc > 5000 ? rlc - 5000 : 0;
        CHECK(insane_tc_rlc_status(tc, 0x4601, 3, now, rlc, rlc / 1500) == 0);
        while ((size = insane_tc_pull(tc, 0x4601, 3, now, out, sizeof out, &wake)) > 0)
            rlc += (uint64_t)size;
        CHECK(size == 0 && rlc < 25000);
    }
    CHECK(insane_tc_count(tc, 0x4601, 3, &counts) == 0);
    CHECK(counts.packets_out == 100 && counts.queued_packets == 0 && wake == UINT64_MAX);
    CHECK(insane_tc_change(tc, 0x4601, 3, now, "[{\"op\":\"delete-pacer\"}]") == 1);
    char text[20000];
    CHECK(insane_tc_stats(tc, 0x4601, 3, NULL, 0) > 100);
    CHECK(insane_tc_stats(tc, 0x4601, 3, text, sizeof text) == (int64_t)strlen(text) && text[0] == '{');
    CHECK(insane_tc_push(tc, 0x4601, 3, now, p, sizeof p, -1) == 0);
    CHECK(insane_tc_remove(tc, 0x4601, 3) == 1);
}

int main(void)
{
    insane_tc *tc = insane_tc_open(42);
    CHECK(tc != NULL);
    refusals(tc);
    paced(tc);
    insane_tc_close(tc);
    insane_tc_close(NULL);
    if (!failed)
        puts("all checks passed");
    return failed != 0;
}
