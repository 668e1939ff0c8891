#include "cli/bench/serve_floor.h"

#include <math.h>

#include "base/log.h"
#include "profile/peak.h"

static status measure(struct backend *be, void *ctx) {
    serve_floor *f = ctx;
    TRY(peak_measure(be, &f->flop_s));
    return peak_measure_bytes(be, &f->byte_s);
}

serve_floor serve_floor_measure(engine *e) {
    serve_floor f = {0};
    if (e == NULL || engine_with_backend(e, 0, measure, &f) == OK) return f;
    log_warn("no floor: the peaks of the device cannot be measured: %s", status_reason());
    return (serve_floor){0};
}

double serve_floor_ms(const serve_floor *f, engine *e, const engine_shape *shape) {
    engine_work w;
    if (f->byte_s <= 0 || engine_work_of(e, 0, shape, &w) != OK) return NAN;
    double products = w.flops / f->flop_s, memory = w.bytes / f->byte_s;
    return 1e3 * (products > memory ? products : memory);
}
