/* A port's options. */
#include "insane_dpdk.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong(char *error, size_t capacity, const char *what, const char *value)
{
    snprintf(error, capacity, "%s: %.200s", what, value);
    return -1;
}

static int copy(char *to, size_t room, const char *value, char *error, size_t capacity)
{
    if (strlen(value) >= room)
        return wrong(error, capacity, "too long", value);
    strcpy(to, value);
    return 0;
}

static int number(uint32_t *to, const char *value, uint32_t least, uint32_t most)
{
    char *end;
    unsigned long found = strtoul(value, &end, 10);
    *to = (uint32_t)found;
    return *value >= '0' && *value <= '9' && *end == 0 && found >= least && found <= most ? 0 : -1;
}

/* An IP address with a UDP port. */
static int destination(struct sockaddr_storage *to, const char *value)
{
    struct sockaddr_in four = { .sin_family = AF_INET };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
    char address[INET6_ADDRSTRLEN];
    uint32_t port;
    const char *colon = strrchr(value, ':');
    if (colon == NULL || number(&port, colon + 1, 1, UINT16_MAX) != 0)
        return -1;
    size_t length = (size_t)(colon - value);
    bool bracketed = length > 2 && value[0] == '[' && colon[-1] == ']';
    if (length - 2 * bracketed >= sizeof address)
        return -1;
    snprintf(address, sizeof address, "%.*s", (int)(length - 2 * bracketed), value + bracketed);
    *to = (struct sockaddr_storage){ 0 };
    if (bracketed && inet_pton(AF_INET6, address, &six.sin6_addr) == 1) {
        six.sin6_port = htons((uint16_t)port);
        memcpy(to, &six, sizeof six);
        return 0;
    }
    if (bracketed || inet_pton(AF_INET, address, &four.sin_addr) != 1)
        return -1;
    four.sin_port = htons((uint16_t)port);
    memcpy(to, &four, sizeof four);
    return 0;
}

int choice_set(struct choice *choice, const char *key, const char *value, char *error, size_t capacity)
{
    if (strcmp(key, "device") == 0)
        return copy(choice->device, sizeof choice->device, value, error, capacity);
    if (strcmp(key, "eal") == 0)
        return copy(choice->eal, sizeof choice->eal, value, error, capacity);
    if (strcmp(key, "address") == 0) {
        if (rte_ether_unformat_addr(value, &choice->address) != 0 || !rte_is_valid_assigned_ether_addr(&choice->address))
            return wrong(error, capacity, "address is no station's MAC address", value);
        choice->has_address = true;
        return 0;
    }
    if (strcmp(key, "mtu") == 0)
        return number(&choice->mtu, value, 68, 9000) == 0 ? 0 : wrong(error, capacity, "mtu must be 68 to 9000", value);
    if (strcmp(key, "buffers") == 0)
        return number(&choice->buffers, value, 256, 262144) == 0 ? 0 : wrong(error, capacity, "buffers must be 256 to 262144", value);
    if (strcmp(key, "ring") == 0)
        return number(&choice->ring, value, 64, 8192) == 0 ? 0 : wrong(error, capacity, "ring must be 64 to 8192", value);
    if (strcmp(key, "queues") == 0)
        return number(&choice->queues, value, 0, MOST_QUEUES) == 0 ? 0 : wrong(error, capacity, "queues must be 0 to 16", value);
    if (strcmp(key, "steer") == 0)
        return destination(&choice->steer, value) == 0 ? 0 : wrong(error, capacity, "steer must be IP:PORT or [IP]:PORT", value);
    if (strcmp(key, "interrupts") == 0) {
        choice->interrupts = strcmp(value, "yes") == 0;
        return choice->interrupts || strcmp(value, "no") == 0 ? 0 : wrong(error, capacity, "interrupts must be yes or no", value);
    }
    if (strcmp(key, "tagged") == 0) {
        choice->tagged = strcmp(value, "yes") == 0;
        return choice->tagged || strcmp(value, "no") == 0 ? 0 : wrong(error, capacity, "tagged must be yes or no", value);
    }
    if (strcmp(key, "lend") == 0) {
        choice->lend = strcmp(value, "yes") == 0;
        return choice->lend || strcmp(value, "no") == 0 ? 0 : wrong(error, capacity, "lend must be yes or no", value);
    }
    return wrong(error, capacity,
                 "there is no such option; there are device, eal, address, mtu, buffers, ring, queues, steer, interrupts, tagged, lend", key);
}

int choice_check(const struct choice *choice, char *error, size_t capacity)
{
    if (choice->device[0] == 0)
        return wrong(error, capacity, "device is missing: a virtual device such as net_af_packet0,iface=eth1, or a PCI address", "");
    return 0;
}

bool is_pci(const char *device)
{
    unsigned domain, bus, slot, function;
    int end = 0;
    return sscanf(device, "%4x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &end) == 4 && (device[end] == 0 || device[end] == ',');
}

bool device_argument(const char *device, const char *key, char *to, size_t capacity)
{
    size_t length = strlen(key);
    for (const char *at = strchr(device, ','); at != NULL; at = strchr(at, ',')) {
        at++;
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            at += length + 1;
            snprintf(to, capacity, "%.*s", (int)strcspn(at, ","), at);
            return true;
        }
    }
    return false;
}
