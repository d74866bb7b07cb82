/* Prints where the header puts everything. */
#include <insane_traffic_stage.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(insane_traffic_##type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(insane_traffic_##type, field))

int main(void)
{
    SIZE(packet);
    FIELD(packet, bytes); FIELD(packet, flow); FIELD(packet, length); FIELD(packet, size); FIELD(packet, traffic_class);
    FIELD(packet, qfi); FIELD(packet, src_port); FIELD(packet, dst_port); FIELD(packet, src); FIELD(packet, dst);
    FIELD(packet, ip_version); FIELD(packet, protocol); FIELD(packet, dscp); FIELD(packet, ecn); FIELD(packet, has_flow);
    FIELD(packet, has_ports); FIELD(packet, reserved);
    SIZE(item);
    FIELD(item, arrived); FIELD(item, queued_bytes); FIELD(item, queued_packets); FIELD(item, size); FIELD(item, ecn);
    FIELD(item, reserved);
    SIZE(rlc);
    FIELD(rlc, bytes); FIELD(rlc, packets); FIELD(rlc, desired_bytes); FIELD(rlc, desired_rate);
    SIZE(view);
    FIELD(view, context); FIELD(view, packets); FIELD(view, bytes); FIELD(view, head_time);
    SIZE(classifier);
    FIELD(classifier, classify); FIELD(classifier, queue_added); FIELD(classifier, queue_removed);
    SIZE(policer);
    FIELD(policer, police);
    SIZE(queue);
    FIELD(queue, arrives); FIELD(queue, departs); FIELD(queue, left);
    SIZE(scheduler);
    FIELD(scheduler, add); FIELD(scheduler, remove); FIELD(scheduler, activate); FIELD(scheduler, deactivate);
    FIELD(scheduler, next); FIELD(scheduler, offer); FIELD(scheduler, sent);
    SIZE(shaper);
    FIELD(shaper, ready); FIELD(shaper, sent);
    SIZE(pacer);
    FIELD(pacer, admit); FIELD(pacer, sent); FIELD(pacer, report);
    SIZE(stage_table);
    FIELD(stage_table, abi); FIELD(stage_table, size); FIELD(stage_table, kind); FIELD(stage_table, calls_size);
    FIELD(stage_table, name); FIELD(stage_table, create); FIELD(stage_table, modify); FIELD(stage_table, destroy);
    FIELD(stage_table, stats); FIELD(stage_table, calls);
    printf("ABI %u\n", INSANE_TRAFFIC_STAGE_ABI);
    printf("PASS %d\nDROP %d\n", INSANE_TRAFFIC_PASS, INSANE_TRAFFIC_DROP);
    printf("KEEP %d\nDISCARD %d\nMARK %d\nMARK_OR_DISCARD %d\n", INSANE_TRAFFIC_KEEP, INSANE_TRAFFIC_DISCARD,
           INSANE_TRAFFIC_MARK, INSANE_TRAFFIC_MARK_OR_DISCARD);
    printf("SENT %u\nDISCARDED %u\nREMOVED %u\n", INSANE_TRAFFIC_SENT, INSANE_TRAFFIC_DISCARDED, INSANE_TRAFFIC_REMOVED);
    printf("EMPTY %u\nHELD_BACK %u\n", INSANE_TRAFFIC_EMPTY, INSANE_TRAFFIC_HELD_BACK);
    printf("kinds %u %u %u %u %u %u\n", INSANE_TRAFFIC_CLASSIFIER, INSANE_TRAFFIC_POLICER, INSANE_TRAFFIC_QUEUE,
           INSANE_TRAFFIC_SCHEDULER, INSANE_TRAFFIC_SHAPER, INSANE_TRAFFIC_PACER);
    return 0;
}
