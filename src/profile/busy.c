#include "profile/busy.h"

#include <stdio.h>

#include "profile/busy_log.h"
#include "profile/cupti.h"

static struct {
    bool has_begun, is_on;
    busy_log log;
} busy;

static status add(void *ctx, const gpu_record *r) {
    return busy_log_take(ctx, r);
}

static void forget(void *ctx) {
    busy_log_fini(ctx);
}

status busy_begin(void) {
    const cupti_sink sink = {&busy.log, forget, add};
    busy.has_begun = true;
    busy.is_on = cupti_start(&sink, false);
    return OK;
}

status busy_end(busy_report *out) {
    bool is_complete = false;
    uint64_t n_lost = 0;
    *out = (busy_report){0};
    status st = busy.is_on ? cupti_stop(&is_complete, &n_lost) : OK;
    busy.log.n_lost += n_lost;
    if (st != OK)
        st = fail(st, "no memory for the records of what the GPU did; measure fewer steps");
    else if (is_complete)
        st = busy_log_report(&busy.log, out);
    else
        snprintf(out->reason, sizeof out->reason, "%s",
                 busy.has_begun ? cupti_reason() : "busy_begin was not called");
    busy_log_fini(&busy.log);
    busy.is_on = busy.has_begun = false;
    return st;
}
