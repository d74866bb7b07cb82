/* Objects that must be refused; which one is decided by -DBAD=name. */
#include <insane_traffic_stage.h>

#define NO_SYMBOL 1
#define VERSION 2
#define SIZE 3
#define CALLS_SIZE 4
#define KIND 5
#define NULL_CALL 6
#define NULL_CREATE 7
#define NULL_CALLS 8
#define NAME 9
#define NO_NAME 10
#define NO_STAGES 11
#define ENDLESS 12
#define UNRESOLVED 13
#define LONG_NAME 14

static void *create(const char *options, char *error, size_t capacity)
{
    (void)options, (void)error, (void)capacity;
    static int state;
    return &state;
}

static void destroy(void *stage) { (void)stage; }

#if BAD == UNRESOLVED
int64_t no_such_function_anywhere(void);
#endif

static int64_t police(void *stage, uint64_t now, const insane_traffic_packet *packet)
{
    (void)stage, (void)now, (void)packet;
#if BAD == UNRESOLVED
    return no_such_function_anywhere();
#else
    return INSANE_TRAFFIC_PASS;
#endif
}

static const insane_traffic_policer calls = { .police = BAD == NULL_CALL ? NULL : police };

static const insane_traffic_stage_table table = {
    .abi = BAD == VERSION ? 7 : INSANE_TRAFFIC_STAGE_ABI,
    .size = sizeof(insane_traffic_stage_table) - (BAD == SIZE ? 8 : 0),
    .kind = BAD == KIND ? 9 : INSANE_TRAFFIC_POLICER,
    .calls_size = sizeof(insane_traffic_policer) + (BAD == CALLS_SIZE ? 16 : 0),
    .name = BAD == NAME        ? "two words"
            : BAD == NO_NAME   ? NULL
            : BAD == LONG_NAME ? "a-name-of-more-than-sixty-four-characters-is-not-one-that-can-be-used-here"
                               : "fine",
    .create = BAD == NULL_CREATE ? NULL : create,
    .destroy = destroy,
    .calls.policer = BAD == NULL_CALLS ? NULL : &calls,
};

#if BAD == NO_SYMBOL
const insane_traffic_stage_table *another_name(uint32_t n)
#else
const insane_traffic_stage_table *insane_traffic_stage(uint32_t n)
#endif
{
    return BAD != NO_STAGES && (n == 0 || BAD == ENDLESS) ? &table : NULL;
}
