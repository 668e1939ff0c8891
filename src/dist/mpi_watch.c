#include "dist/mpi_watch.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "dist/net.h"

enum { MAX_ADDRESSES = 8, PROBE_MS = 1500, START_MS = 15000 };

typedef struct place {
    char host[WATCH_HOST_BYTES];
    char address[MAX_ADDRESSES][NET_ADDRESS_BYTES]; /* of rank 0's machine, but 127.0.0.1 */
    uint64_t job;
    int64_t port;
} place;

static void list_addresses(place *p) {
    struct ifaddrs *all;
    int n = 0;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *i = all; i != NULL && n < MAX_ADDRESSES; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) continue;
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        if (getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), p->address[n], NET_ADDRESS_BYTES,
                        NULL, 0, NI_NUMERICHOST) == 0)
            n++;
    }
    freeifaddrs(all);
}

/* The first address at which rank 0 answers. */
static const char *reach(const place *first, const place *own) {
    if (strcmp(first->host, own->host) == 0) return "127.0.0.1";
    for (int i = 0; i < MAX_ADDRESSES && first->address[i][0] != '\0'; i++) {
        int fd;
        if (net_connect(&fd, first->address[i], (int)first->port, PROBE_MS) != OK) continue;
        net_close(&fd);
        return first->address[i];
    }
    return NULL;
}

static status connect_ranks(watch **out, transport *t, const place *all, int listener) {
    const place *own = &all[t->rank];
    const char *address = t->rank == 0 ? "" : reach(&all[0], own);
    char(*hosts)[WATCH_HOST_BYTES];
    if (address == NULL) return fail(ERR_IO, "rank 0 on %s cannot be reached", all[0].host);
    TRY(mem_alloc((void **)&hosts, (size_t)t->size, sizeof *hosts));
    for (int r = 0; r < t->size; r++)
        memcpy(hosts[r], all[r].host, sizeof hosts[r]);
    char secret[17]; /* MPI has told it to ranks of this job only */
    snprintf(secret, sizeof secret, "%016" PRIx64, all[0].job);
    watch_options o = {.rank = t->rank,
                       .size = t->size,
                       .listener = listener,
                       .address = address,
                       .port = (int)all[0].port,
                       .job = all[0].job,
                       .secret = secret,
                       .hosts = (const char(*)[WATCH_HOST_BYTES])hosts,
                       .timeout_ms = START_MS};
    status st = watch_create(out, &o);
    mem_free(hosts);
    return st;
}

/* All watch, or none. */
static status settle(watch **out, transport *t, status st) {
    int64_t own = st != OK, *all;
    char why[256];
    snprintf(why, sizeof why, "%s", st != OK ? status_reason() : "another rank cannot");
    TRY(MEM_NEW(&all, (size_t)t->size));
    st = transport_gather(t, &own, sizeof own, all);
    bool has_failed = false;
    for (int r = 0; r < t->size; r++)
        has_failed = has_failed || all[r] != 0;
    mem_free(all);
    if (st == OK && !has_failed) return OK;
    watch_destroy(*out, false);
    *out = NULL;
    if (st == OK)
        log_warn("ranks cannot watch each other over the network (%s): a rank that is stopped will "
                 "not be noticed",
                 why);
    return st;
}

status mpi_watch_create(watch **out, transport *t) {
    place own = {.port = 0}, *all;
    int listener = -1, port = 0;
    *out = NULL;
    gethostname(own.host, sizeof own.host - 1);
    if (t->rank == 0 && net_listen(&listener, NULL, 0, &port) == OK) {
        own.port = port;
        list_addresses(&own);
        if (getrandom(&own.job, sizeof own.job, 0) != sizeof own.job) own.job = (uint64_t)getpid();
    }
    status st = MEM_NEW(&all, (size_t)t->size);
    if (st == OK) st = transport_gather(t, &own, sizeof own, all);
    if (st == OK) {
        status made = all[0].port > 0 ? connect_ranks(out, t, all, listener)
                                      : fail(ERR_IO, "rank 0 cannot listen");
        st = settle(out, t, made);
    }
    mem_free(all);
    net_close(&listener);
    return st;
}
