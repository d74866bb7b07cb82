/* A plug-in in C: a classifier that chooses the queue by the packet's DSCP.
 *
 *   cc -shared -fPIC -O2 -I crates/traffic-plugin/include -o by_dscp.so crates/traffic-plugin/examples/by_dscp.c
 *
 * and in a pipeline's file: to = { type = "plugin", name = "by-dscp", options = "46=1 0=2" }. Packets with another DSCP, and
 * those that are not IP, are left to the next filter. */
#include <insane_traffic_stage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct by_dscp {
    int32_t queue[64]; /* INSANE_TRAFFIC_PASS: none */
    uint64_t chosen;
};

static int parse(struct by_dscp *map, const char *options, char *error, size_t capacity)
{
    for (int n = 0; n < 64; n++)
        map->queue[n] = INSANE_TRAFFIC_PASS;
    for (const char *at = options; *at != 0;) {
        unsigned dscp, queue;
        int length = 0;
        if (*at == ' ') {
            at++;
            continue;
        }
        if (sscanf(at, "%2u=%5u%n", &dscp, &queue, &length) != 2 || dscp > 63 || queue > 65535
            || (at[length] != 0 && at[length] != ' ')) {
            if (error != NULL)
                snprintf(error, capacity, "`%.32s` is no DSCP=QUEUE with a DSCP of 0 to 63 and a queue of 0 to 65535", at);
            return -1;
        }
        map->queue[dscp] = (int32_t)queue;
        at += length;
    }
    return 0;
}

static void *create(const char *options, char *error, size_t capacity)
{
    struct by_dscp *map = calloc(1, sizeof *map);
    if (map == NULL) {
        snprintf(error, capacity, "no memory");
        return NULL;
    }
    if (parse(map, options, error, capacity) != 0) {
        free(map);
        return NULL;
    }
    return map;
}

static int32_t modify(void *stage, const char *options)
{
    struct by_dscp *map = stage, changed = { .chosen = map->chosen };
    if (parse(&changed, options, NULL, 0) != 0)
        return -1;
    *map = changed;
    return 0;
}

static void destroy(void *stage) { free(stage); }

static void stats(const void *stage, insane_traffic_emit emit, void *context)
{
    const struct by_dscp *map = stage;
    emit(context, "chosen", map->chosen);
}

static int64_t classify(void *stage, uint64_t now, const insane_traffic_packet *packet)
{
    struct by_dscp *map = stage;
    (void)now;
    if (packet->ip_version == 0)
        return INSANE_TRAFFIC_PASS;
    int32_t queue = map->queue[packet->dscp & 63];
    map->chosen += queue >= 0;
    return queue;
}

static const insane_traffic_classifier calls = { .classify = classify };

static const insane_traffic_stage_table table = {
    .abi = INSANE_TRAFFIC_STAGE_ABI,
    .size = sizeof(insane_traffic_stage_table),
    .kind = INSANE_TRAFFIC_CLASSIFIER,
    .calls_size = sizeof(insane_traffic_classifier),
    .name = "by-dscp",
    .create = create,
    .modify = modify,
    .destroy = destroy,
    .stats = stats,
    .calls.classifier = &calls,
};

const insane_traffic_stage_table *insane_traffic_stage(uint32_t n) { return n == 0 ? &table : NULL; }
