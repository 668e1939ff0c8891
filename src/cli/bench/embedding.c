/* The whole bench of dynamic tables: sizes, buffers, the order of the figures. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cli/bench/embedding_int.h"

enum { N_SIZES = 3 };

status embed_bench_report(const embed_bench *b, const embed_figure *f) {
    TRY(b->report(b->report_ctx, f));
    if (f->n_wrong == 0) return OK;
    return fail(ERR_FORMAT, "%s: %" PRId64 " of %" PRId64 " values are wrong", f->what, f->n_wrong,
                f->n_checked);
}

status embed_bench_rate(embed_bench *b, embed_call_fn fn, void *ctx, double *out) {
    uint64_t start = 0, now = 0;
    int64_t n = 0;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(fn(ctx, i));
    TRY(b->be->ops->sync(b->be));
    start = clock_ns();
    while (now - start < (uint64_t)(b->o.seconds * 1e9) || n == 0) {
        for (int i = 0; i < N_BATCHES; i++)
            TRY(fn(ctx, i));
        TRY(b->be->ops->sync(b->be));
        n += N_BATCHES;
        now = clock_ns();
    }
    *out = (double)n * 1e9 / (double)(now - start);
    return OK;
}

bool embed_bench_is_cpu(const embed_bench *b) {
    return b->be->is_host;
}

int64_t embed_bench_row_bytes(const embed_bench *b) {
    return (b->o.dim + 3) / 4 * 16;
}

/* A GPU has room for the tables of HierarchicalKV's benchmark. */
int64_t embed_bench_slots(const embed_bench *b) {
    if (b->o.slots > 0) return b->o.slots;
    if (!embed_bench_is_cpu(b)) return (int64_t)1 << 26;
    return (int64_t)(fmin(b->o.max_gib, 1) * EMBED_GIBI) / embed_bench_row_bytes(b);
}

/* The keys of a call are all different, and all calls together must not replace the rows of a
 * table. */
static int64_t keys_a_call(const embed_bench *b) {
    int64_t by_rows = embed_bench_slots(b) / 64, n = b->o.batch;
    int64_t by_index = (int64_t)(fmin(b->o.max_gib, 0.25) * EMBED_GIBI) / 21 / 12;
    if (by_rows < n) n = by_rows;
    if (by_index < n) n = by_index;
    return n < 64 ? 64 : n / BAG * BAG;
}

int64_t embed_bench_draw_slot(const embed_bench *b, int64_t n_slots, int64_t i) {
    __extension__ typedef unsigned __int128 wide;
    return (int64_t)((wide)((uint64_t)i + b->salt) * 2654435761u % (uint64_t)n_slots);
}

static status make_buffers(embed_bench *b) {
    size_t n = (size_t)b->n;
    const ops *o = b->be->ops;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(o->alloc(b->be, (void **)&b->keys[i], n * 8));
    TRY(o->alloc(b->be, (void **)&b->slot, n * 8));
    TRY(o->alloc(b->be, (void **)&b->is_new, n));
    TRY(o->alloc(b->be, (void **)&b->counts, PLACED_COUNTS * 8));
    TRY(o->alloc(b->be, (void **)&b->rows, n * (size_t)b->o.dim * 8));
    TRY(MEM_NEW(&b->host, n + BAG));
    return MEM_NEW(&b->host_slot, n);
}

static void free_buffers(embed_bench *b) {
    void *const device[] = {b->slot, b->is_new, b->counts, b->rows};
    for (int i = 0; i < N_BATCHES; i++)
        if (b->keys[i] != NULL) b->be->ops->release(b->be, b->keys[i]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i] != NULL) b->be->ops->release(b->be, device[i]);
    mem_free(b->host);
    mem_free(b->host_slot);
}

/* The sizes to measure, of which the first is cut to max_gib. */
static status for_sizes(embed_bench *b, status (*measure)(embed_bench *b, double gib)) {
    static const double sizes[N_SIZES] = {0.25, 1, 4};
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->o.max_gib) TRY(measure(b, fmin(sizes[i], b->o.max_gib)));
    return OK;
}

status embed_bench_create(embed_bench **out, backend *be, pool *workers,
                          const embed_bench_options *o) {
    embed_bench *b;
    *out = NULL;
    if (be->tables == NULL)
        return fail(ERR_UNSUPPORTED, "%s has no dynamic tables; use --device cpu", be->name);
    TRY(MEM_NEW(&b, 1));
    *b = (embed_bench){.o = *o, .be = be, .v = be->tables, .workers = workers};
    b->salt = clock_ns() % 1000000007;
    b->n = keys_a_call(b);
    status st = make_buffers(b);
    if (st == OK)
        *out = b;
    else
        embed_bench_destroy(b);
    return st;
}

void embed_bench_destroy(embed_bench *b) {
    if (b == NULL) return;
    free_buffers(b);
    mem_free(b);
}

int64_t embed_bench_n_keys(const embed_bench *b) {
    return b->n;
}

status embed_bench_run(embed_bench *b, embed_figure_fn fn, void *ctx) {
    b->report = fn;
    b->report_ctx = ctx;
    TRY(for_sizes(b, embed_bench_probe));
    TRY(embed_bench_keys(b));
    TRY(for_sizes(b, embed_bench_pool));
    return embed_bench_steps(b);
}
