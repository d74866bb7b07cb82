/* Prints where the header puts everything. */
#include <insane_datapath.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(insane_datapath_##type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(insane_datapath_##type, field))

int main(void)
{
    SIZE(option);
    FIELD(option, key); FIELD(option, value);
    SIZE(info);
    FIELD(info, size); FIELD(info, flags); FIELD(info, max_frame); FIELD(info, burst); FIELD(info, gather_from);
    FIELD(info, wake_fd); FIELD(info, address); FIELD(info, reserved);
    FIELD(info, lend_fd); FIELD(info, lend_stride); FIELD(info, lend_slots); FIELD(info, lend_most); FIELD(info, lend_memory);
    SIZE(stats);
    FIELD(stats, size); FIELD(stats, reserved); FIELD(stats, overruns); FIELD(stats, dropped); FIELD(stats, calls);
    SIZE(buffer);
    FIELD(buffer, handle); FIELD(buffer, data); FIELD(buffer, capacity); FIELD(buffer, reserved);
    SIZE(outgoing);
    FIELD(outgoing, handle); FIELD(outgoing, length); FIELD(outgoing, payload_length); FIELD(outgoing, payload);
    SIZE(incoming);
    FIELD(incoming, handle); FIELD(incoming, data); FIELD(incoming, length); FIELD(incoming, reserved);
    SIZE(table);
    FIELD(table, abi); FIELD(table, size); FIELD(table, name); FIELD(table, create); FIELD(table, destroy);
    FIELD(table, open); FIELD(table, close); FIELD(table, reserve); FIELD(table, send); FIELD(table, receive);
    FIELD(table, release); FIELD(table, arm); FIELD(table, limit); FIELD(table, stats); FIELD(table, describe);
    printf("ABI %u\nBURST %u\n", INSANE_DATAPATH_ABI, INSANE_DATAPATH_BURST);
    printf("DOWN %d\nFAILED %d\nSLEEP %d\nREADY %d\n", INSANE_DATAPATH_DOWN, INSANE_DATAPATH_FAILED, INSANE_DATAPATH_SLEEP,
           INSANE_DATAPATH_READY);
    printf("POLL %d\nGATHERS %u\n", INSANE_DATAPATH_POLL, INSANE_DATAPATH_GATHERS);
    printf("LENDS %u\nFINAL %d\n", INSANE_DATAPATH_LENDS, INSANE_DATAPATH_FINAL);
    return 0;
}
