#include "dist/agree.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "hstu.h"

rank_facts rank_facts_here(void) {
    rank_facts f = {.clock_s = (int64_t)time(NULL)};
    snprintf(f.version, sizeof f.version, "%s", HSTU_VERSION);
    gethostname(f.host, sizeof f.host - 1);
    return f;
}

static status compare(const rank_facts *all, int r) {
    const rank_facts *a = &all[0], *b = &all[r];
    if (strncmp(a->version, b->version, AGREE_TEXT_BYTES) != 0)
        return fail(ERR_CONFIG, "rank %d on %.63s has hstu %.63s, rank 0 on %.63s has %.63s", r,
                    b->host, b->version, a->host, a->version);
    if (a->config != b->config)
        return fail(ERR_CONFIG,
                    "rank %d on %.63s has another config or other options than rank 0 on %.63s", r,
                    b->host, a->host);
    if (a->data != b->data)
        return fail(ERR_CONFIG, "rank %d on %.63s has other data than rank 0 on %.63s", r, b->host,
                    a->host);
    int64_t ahead = b->clock_s - a->clock_s;
    if (ahead > AGREE_CLOCK_S || ahead < -AGREE_CLOCK_S)
        return fail(ERR_CONFIG,
                    "the clock of rank %d on %.63s is %lld s %s that of rank 0 on %.63s: set it "
                    "right (NTP)",
                    r, b->host, (long long)(ahead > 0 ? ahead : -ahead),
                    ahead > 0 ? "ahead of" : "behind", a->host);
    return OK;
}

status ranks_agree(transport *t, const rank_facts *own) {
    rank_facts *all;
    if (t == NULL) return OK;
    TRY(MEM_NEW(&all, (size_t)t->size));
    status st = transport_gather(t, own, sizeof *own, all);
    for (int r = 1; r < t->size && st == OK; r++)
        st = compare(all, r);
    mem_free(all);
    return st;
}
