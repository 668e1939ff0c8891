/* hstu bench embedding: dynamic tables: probes of the index and pooled rows; the rest is in
 * bench_embedding_keys.c and bench_embedding_steps.c.
 *
 * The probed index is filled with keys that are known by slot (bucket and place in it), so that
 * each answer can be checked: every measured call is checked before it is timed, on keys drawn anew
 * in each run.  Beside the probes stands what the memory gives: reads of one byte at random places
 * of the same size, with the same threads. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_embedding.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"

enum { FILL_BUCKETS = 4096, BAG = 32, N_SIZES = 3 };

/* ---- known keys ------------------------------------------------------------------------------ */

/* The j-th of 4096 keys of a bucket. */
static uint64_t key_of(int64_t n_buckets, int64_t bucket, int64_t j) {
    uint64_t width = UINT64_MAX / (uint64_t)n_buckets;
    __extension__ typedef unsigned __int128 wide;
    uint64_t first = (uint64_t)(((wide)(uint64_t)bucket << 64) / (uint64_t)n_buckets);
    return table_unhash(first + 1 + (uint64_t)j * (width / 4098));
}

/* The i-th draw of this run: different slots for different i below the number of slots. */
static int64_t draw_slot(const bench *b, int64_t n_slots, int64_t i) {
    __extension__ typedef unsigned __int128 wide;
    return (int64_t)((wide)((uint64_t)i + b->salt) * 2654435761u % (uint64_t)n_slots);
}

/* A level without rows whose buckets are full of their first keys. */
static status level_create(bench *b, table_level *l, int64_t n_buckets) {
    void *index = NULL;
    *l = (table_level){.n_buckets = n_buckets};
    TRY(b->v->alloc(b->be, &index, (size_t)n_buckets * TABLE_BUCKET_BYTES, TABLE_ON_DEVICE));
    l->index = index;
    table_level piece = {.n_buckets = FILL_BUCKETS};
    TRY(mem_alloc((void **)&piece.index, FILL_BUCKETS, TABLE_BUCKET_BYTES));
    status st = OK;
    for (int64_t first = 0; st == OK && first < n_buckets; first += FILL_BUCKETS) {
        int64_t n = n_buckets - first < FILL_BUCKETS ? n_buckets - first : FILL_BUCKETS;
        for (int64_t k = 0; k < n; k++)
            for (int j = 0; j < TABLE_SLOTS; j++) {
                uint64_t key = key_of(n_buckets, first + k, j);
                table_digests(&piece, k)[j] = table_digest(table_hash(key));
                table_entries(&piece, k)[j] = (table_entry){key, 1};
                table_stamps(&piece, k)[j] = 1;
            }
        st = b->be->ops->copy_in(b->be, l->index + first * TABLE_BUCKET_BYTES, piece.index,
                                 (size_t)n * TABLE_BUCKET_BYTES);
    }
    mem_free(piece.index);
    return st;
}

/* Batch `round`: `hits` of 10 keys are there. */
static status draw_keys(bench *b, const table_level *l, int hits, int round) {
    int64_t n_known = l->n_buckets * TABLE_SLOTS;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t s = draw_slot(b, n_known, (int64_t)round * b->n + i);
        int64_t bucket = s / TABLE_SLOTS, j = s % TABLE_SLOTS;
        b->host[i] = key_of(l->n_buckets, bucket, i % 10 < hits ? j : 64 + round * 64 + j);
    }
    return b->be->ops->copy_in(b->be, b->keys[round], b->host, (size_t)b->n * 8);
}

/* ---- results --------------------------------------------------------------------------------- */

static void show_line(const bench_figure *f) {
    show_style style = show_stdout_style();
    printf("  %-36s %-12s", f->what, f->size);
    if (f->per_s > 0) printf(" %s%9.1f M/s%s", style.bold, f->per_s / 1e6, style.plain);
    if (f->ms > 0) printf(" %9.4f ms", f->ms);
    if (f->bytes > 0) printf(" %8.2f GB/s", f->per_s * f->bytes / 1e9);
    if (f->peer > 0)
        printf("  %.3f Gi/s, %s%.2f%s of HierarchicalKV's %.3f", f->per_s / GIBI, style.bold,
               f->per_s / GIBI / f->peer, style.plain, f->peer);
    if (f->n_checked > 0) printf("  %" PRId64 " wrong of %" PRId64, f->n_wrong, f->n_checked);
    printf("\n");
    fflush(stdout);
}

static status show_json(const bench *b, const bench_figure *f) {
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    json_key_string(&w, "bench", "embedding");
    json_key_string(&w, "device", b->be->name);
    json_key_string(&w, "what", f->what);
    json_key_string(&w, "size", f->size);
    json_key_int(&w, "dim", b->o.dim);
    json_key_int(&w, "keys_a_call", b->n);
    if (f->per_s > 0) json_key_double(&w, "per_s", f->per_s);
    if (f->ms > 0) json_key_double(&w, "ms", f->ms);
    if (f->bytes > 0) json_key_double(&w, "bytes_per_s", f->per_s * f->bytes);
    if (f->peer > 0) json_key_double(&w, "peer_per_s", f->peer * GIBI);
    if (f->peer > 0) json_key_double(&w, "ratio", f->per_s / GIBI / f->peer);
    if (f->n_checked > 0) {
        json_key_int(&w, "n_checked", f->n_checked);
        json_key_int(&w, "n_wrong", f->n_wrong);
    }
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) printf("%s\n", buf_str(&text));
    fflush(stdout);
    buf_fini(&text);
    return st;
}

status bench_show(const bench *b, const bench_figure *f) {
    if (b->o.is_json)
        TRY(show_json(b, f));
    else
        show_line(f);
    if (f->n_wrong == 0) return OK;
    return fail(ERR_FORMAT, "%s: %" PRId64 " of %" PRId64 " numbers are wrong", f->what, f->n_wrong,
                f->n_checked);
}

status bench_rate(bench *b, call_fn fn, void *ctx, double *out) {
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

/* ---- probes ---------------------------------------------------------------------------------- */

typedef struct probe_ctx {
    bench *b;
    const table_level *l;
} probe_ctx;

static status probe(void *ctx, int round) {
    const probe_ctx *p = ctx;
    table_find_args a = {.n = p->b->n, .keys = p->b->keys[round], .slot = p->b->slot};
    return p->b->v->find(p->b->be, p->l, &a);
}

/* Slots must be those from which the keys were made. */
static status check_probe(bench *b, const table_level *l, int hits) {
    probe_ctx p = {b, l};
    TRY(probe(&p, 0));
    TRY(b->be->ops->copy_out(b->be, b->host_slot, b->slot, (size_t)b->n * 8));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t want = i % 10 < hits ? draw_slot(b, l->n_buckets * TABLE_SLOTS, i) : -1;
        if (b->host_slot[i] != want)
            return fail(ERR_FORMAT, "find gave slot %lld, not %lld", (long long)b->host_slot[i],
                        (long long)want);
    }
    return OK;
}

/* What the memory gives: one byte at random places, asked for ahead as the probes ask. */
typedef struct byte_ctx {
    const unsigned char *memory;
    uint64_t bytes;
    int64_t n;
    uint64_t sum[256]; /* by thread: the reads must count for something */
} byte_ctx;

static status read_bytes(void *ctx, int64_t chunk, int worker) {
    byte_ctx *c = ctx;
    uint64_t ahead = (uint64_t)chunk * 77777, at = ahead, sum = 0;
    __extension__ typedef unsigned __int128 wide;
    for (int i = 0; i < 12; i++)
        ahead += 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 4096; i++) {
        ahead += 0x9e3779b97f4a7c15ull;
        at += 0x9e3779b97f4a7c15ull;
        __builtin_prefetch(c->memory + (uint64_t)((wide)table_hash(ahead) * c->bytes >> 64), 0, 3);
        sum += c->memory[(wide)table_hash(at) * c->bytes >> 64];
    }
    c->sum[worker] += sum;
    return OK;
}

static status bench_memory(bench *b, const table_level *l, const char *size) {
    byte_ctx c = {l->index, (uint64_t)l->n_buckets * TABLE_BUCKET_BYTES, 0, {0}};
    uint64_t start = clock_ns(), now = start;
    int64_t n = 0;
    if (!bench_is_cpu(b)) return OK;
    for (; now - start < (uint64_t)(b->o.seconds * 1e9) || n == 0; n += 256) {
        TRY(pool_run(b->be->workers, 256, read_bytes, &c));
        now = clock_ns();
    }
    bench_figure f = {.what = "the memory: random lines",
                      .size = size,
                      .per_s = (double)n * 4096e9 / (double)(now - start)};
    return bench_show(b, &f);
}

static status bench_probes(bench *b, double gib) {
    char size[32];
    table_level l;
    double rate = 0;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    int64_t n_buckets = (int64_t)(gib * 1073741824.0 / TABLE_BUCKET_BYTES);
    status st = level_create(b, &l, n_buckets < 64 ? 64 : n_buckets);
    for (int hits = 10; st == OK && hits >= 6; hits -= 4) {
        probe_ctx p = {b, &l};
        for (int r = 0; st == OK && r < N_BATCHES; r++)
            st = draw_keys(b, &l, hits, r);
        if (st == OK) st = check_probe(b, &l, hits);
        if (st == OK) st = bench_rate(b, probe, &p, &rate);
        bench_figure f = {.what = hits == 10 ? "find slots, all hit" : "find slots, 60 % hit",
                          .size = size,
                          .per_s = rate * (double)b->n,
                          .ms = 1e3 / rate,
                          .n_checked = b->n};
        if (st == OK) st = bench_show(b, &f);
    }
    if (st == OK) st = bench_memory(b, &l, size);
    if (l.index != NULL) b->v->release(b->be, l.index, TABLE_ON_DEVICE);
    return st;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

bool bench_is_cpu(const bench *b) {
    return strcmp(b->be->name, "cpu") == 0;
}

/* A GPU has room for the tables of the field's benchmark. */
int64_t bench_slots(const bench *b) {
    int64_t row_bytes = (b->o.dim + 3) / 4 * 16;
    if (b->o.slots > 0) return b->o.slots;
    if (!bench_is_cpu(b)) return (int64_t)1 << 26;
    return (int64_t)(fmin(b->o.max_gib, 1) * GIBI) / row_bytes;
}

/* Keys of a call are different, and all calls together must not turn a table over. */
static int64_t keys_a_call(const bench *b) {
    int64_t by_rows = bench_slots(b) / 64, n = b->o.batch;
    int64_t by_index = (int64_t)(fmin(b->o.max_gib, 0.25) * GIBI) / 21 / 12;
    if (by_rows < n) n = by_rows;
    if (by_index < n) n = by_index;
    return n < 64 ? 64 : n / BAG * BAG;
}

/* ---- pooling --------------------------------------------------------------------------------- */

typedef struct pool_ctx {
    bench *b;
    const table_level *l;
    int64_t *offsets; /* of bags, on the device */
} pool_ctx;

static status pool_call(void *ctx, int round) {
    const pool_ctx *c = ctx;
    bench *b = c->b;
    table_pool_args a = {.n = b->n,
                         .kind = POOL_SUM,
                         .n_bags = b->n / BAG,
                         .offsets = c->offsets,
                         .slot = (const int64_t *)b->keys[round],
                         .dim = (int32_t)b->o.dim,
                         .y = b->rows};
    return b->v->pool(b->be, c->l, &a);
}

/* Rows of 1, so that every sum is the number of rows. */
static status check_pool(pool_ctx *c, int64_t *n_wrong) {
    bench *b = c->b;
    int64_t n = b->n / BAG * b->o.dim;
    float *y;
    *n_wrong = 0;
    TRY(pool_call(c, 0));
    TRY(mem_alloc_raw((void **)&y, (size_t)n, sizeof *y));
    status st = b->be->ops->copy_out(b->be, y, b->rows, (size_t)n * sizeof *y);
    for (int64_t i = 0; st == OK && i < n; i++)
        *n_wrong += y[i] != (float)BAG;
    mem_free(y);
    return st;
}

static status bench_pool_level(bench *b, pool_ctx *c, int64_t n_rows, const char *size) {
    double rate = 0;
    int64_t n_wrong;
    for (int r = 0; r < N_BATCHES; r++) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = (uint64_t)draw_slot(b, n_rows, (int64_t)r * b->n + i);
        TRY(b->be->ops->copy_in(b->be, b->keys[r], b->host, (size_t)b->n * 8));
    }
    TRY(check_pool(c, &n_wrong));
    TRY(bench_rate(b, pool_call, c, &rate));
    bench_figure f = {.what = "pooled gather, bags of 32",
                      .size = size,
                      .per_s = rate * (double)b->n,
                      .bytes = (double)b->o.dim * 4,
                      .n_checked = b->n / BAG * b->o.dim,
                      .n_wrong = n_wrong};
    return bench_show(b, &f);
}

static status fill_ones(bench *b, const table_level *l, int64_t n_rows) {
    size_t bytes = 1 << 22, all = (size_t)(n_rows * l->row_bytes);
    float *ones;
    TRY(mem_alloc_raw((void **)&ones, bytes, 1));
    for (size_t i = 0; i < bytes / sizeof *ones; i++)
        ones[i] = 1;
    status st = OK;
    for (size_t at = 0; st == OK && at < all; at += bytes)
        st = b->be->ops->copy_in(b->be, l->rows + at, ones, all - at < bytes ? all - at : bytes);
    mem_free(ones);
    return st;
}

static status bench_pool(bench *b, double gib) {
    char size[32];
    int64_t row_bytes = (b->o.dim + 3) / 4 * 16;
    int64_t n_rows = (int64_t)(gib * 1073741824.0) / row_bytes;
    table_level l = {.row_bytes = row_bytes};
    pool_ctx c = {.b = b, .l = &l};
    void *rows = NULL, *offsets = NULL;
    if (n_rows < 1) n_rows = 1;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    status st = b->v->alloc(b->be, &rows, (size_t)(n_rows * row_bytes), TABLE_ON_DEVICE);
    l.rows = rows;
    if (st == OK) st = fill_ones(b, &l, n_rows);
    if (st == OK) st = b->be->ops->alloc(b->be, &offsets, ((size_t)b->n / BAG + 1) * 8);
    for (int64_t i = 0; i <= b->n / BAG; i++)
        b->host[i] = (uint64_t)(i * BAG);
    if (st == OK) st = b->be->ops->copy_in(b->be, offsets, b->host, ((size_t)b->n / BAG + 1) * 8);
    c.offsets = offsets;
    if (st == OK) st = bench_pool_level(b, &c, n_rows, size);
    if (offsets != NULL) b->be->ops->release(b->be, offsets);
    if (rows != NULL) b->v->release(b->be, rows, TABLE_ON_DEVICE);
    return st;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static status make_buffers(bench *b) {
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

static void free_buffers(bench *b) {
    void *const device[] = {b->slot, b->is_new, b->counts, b->rows};
    for (int i = 0; i < N_BATCHES; i++)
        if (b->keys[i] != NULL) b->be->ops->release(b->be, b->keys[i]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i] != NULL) b->be->ops->release(b->be, device[i]);
    mem_free(b->host);
    mem_free(b->host_slot);
}

static status run_all(bench *b) {
    static const double sizes[N_SIZES] = {0.25, 1, 4};
    show_style style = show_stdout_style();
    if (!b->o.is_json)
        printf("%sDynamic tables%s on %s: rows of %" PRId64 " floats, %" PRId64 " keys a call, %d "
               "threads\n\n",
               style.bold, style.plain, b->be->name, b->o.dim, b->n, pool_n_threads(b->workers));
    TRY(make_buffers(b));
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->o.max_gib)
            TRY(bench_probes(b, sizes[i] < b->o.max_gib ? sizes[i] : b->o.max_gib));
    TRY(bench_keys(b));
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->o.max_gib)
            TRY(bench_pool(b, sizes[i] < b->o.max_gib ? sizes[i] : b->o.max_gib));
    return bench_steps(b);
}

static status bench_open(bench *b, const work *w) {
    b->be = w->be;
    b->v = w->be->tables;
    b->workers = w->workers;
    if (b->v == NULL)
        return fail(ERR_UNSUPPORTED, "%s has no dynamic tables; use --device cpu", w->be->name);
    b->n = keys_a_call(b);
    return OK;
}

status bench_embedding(int argc, char **argv) {
    bench b = {.o = {.device = "auto", .max_gib = 4, .seconds = 1, .batch = 1 << 20, .dim = 64}};
    bool is_help;
    const arg_option options[] = {
        {"--device", ARG_TEXT, &b.o.device, "NAME", WORK_DEVICES, 0, 0},
        {"--max-gib", ARG_DOUBLE, &b.o.max_gib, "G", "Largest index or rows (default 4).", 0, 0},
        {"--batch", ARG_INT, &b.o.batch, "N", "Keys of a call (default 1048576).", 64, 1 << 26},
        {"--dim", ARG_INT, &b.o.dim, "D", "Floats of a row (default 64).", 1, 4096},
        {"--slots", ARG_INT, &b.o.slots, "N",
         "Slots of tables with rows (default: a GPU 2^26, a CPU 1 GiB of rows).", 4096,
         (int64_t)1 << 40},
        {"--seconds", ARG_DOUBLE, &b.o.seconds, "S", "Seconds a figure, up to 60 (default 1).", 0,
         0},
        {"--json", ARG_FLAG, &b.o.is_json, NULL, "Print one JSON object a figure.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench embedding [options]",
                           "Measures dynamic embedding tables: probes of the index, rows, inserts "
                           "with evictions, rows in host memory, pooling, whole steps; each is "
                           "checked first.  On a GPU, with the sizes as they are, inserts and "
                           "finds stand beside HierarchicalKV's figures.",
                           options,
                           0,
                           0,
                           NULL};
    work w;
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    if (!(b.o.seconds > 0 && b.o.seconds <= 60 && b.o.max_gib > 0 && b.o.max_gib <= 1024))
        return fail(ERR_USAGE, "--seconds is more than 0 and up to 60, --max-gib up to 1024");
    b.salt = clock_ns() % 1000000007;
    TRY(work_open(&w, NULL, b.o.device));
    status st = bench_open(&b, &w);
    if (st == OK) st = run_all(&b);
    if (b.n > 0) free_buffers(&b);
    work_close(&w);
    return st;
}
