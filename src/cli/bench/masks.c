/* hstu bench masks: softmax (or SiLU) attention under the masks and shapes of the field's table (12
 * heads of dimension 64; causal, sliding, longformer and bigbird), or under any other, forward and
 * backward.
 *
 * Inputs are drawn for each row.  One head of one sequence is first computed in float64, pair by
 * pair, and compared with all results.  Then each pass is timed by plain calls and by replay
 * (bench.h), with copies of small inputs in turn.  FLOPs are those of the attended pairs: forward
 * 4 H D pairs, backward 2.5 times that. */
#include "cli/bench/bench.h"
#include "cpu/attn_naive.h"
#include "format/safetensors.h"
#include "nn/memory.h"
#include "ops/mask_rule.h"
#include "ops/mask_tiles.h"

enum { MAX_COPIES = 20, RECORD_KEY = 177, N_RESULTS = 4 };
enum { Q, K, V, DOUT, N_INPUTS };

static const int64_t CACHE_BYTES = 64 << 20;
static const double CPU_MAX_FLOPS = 2e10;

/* The field's table. */
static const char *const table_masks[] = {"causal", "sliding,window=64,causal",
                                          "longformer,window=32,global=32",
                                          "bigbird,window=32,global=32"};
static const int32_t table_shapes[][2] = {
    {1, 128}, {8, 512}, {8, 1024}, {16, 2048}, {16, 4096}}; /* sequences, length */
enum {
    N_TABLE_SHAPES = sizeof table_shapes / sizeof *table_shapes,
    N_TABLE_MASKS = sizeof table_masks / sizeof *table_masks
};

/* Which kernels run, where the backend has a choice: those it chooses by the mask, those that work
 * by tiles, those that work by rows (ops/mask_rule.h), or, by tiles, those for any card. */
typedef enum { MASK_CHOSEN, MASK_BLOCK_WISE, MASK_ROW_WISE, MASK_ANY_CARD } mask_kernel;
static const char *const kernel_names[] = {"chosen", "block-wise", "row-wise", "any-card", NULL};

typedef struct bench_args {
    bench io;
    int kernel;
    /* What to measure; 0 and NULL stand for all rows of the table. */
    const char *mask; /* the text of a mask; or a part of one of the table's */
    int64_t n_sequences, length, n_heads, dim;
    bool is_silu;  /* weights are silu / length, as HSTU's, instead of the softmax */
    bool is_curve; /* instead of the table, at 16 sequences of 4096 unless told: sliding windows of
                      densities from .01 to 1, and pairs scattered at random from .0005 on */
    double log_ratio; /* sums over the rows that have a peer */
    int n_ratios;
    int n_left_out; /* rows that would take a CPU minutes */
} bench_args;

typedef struct mask_row {
    const char *mask;   /* its text, or "scattered" */
    const char *source; /* the text that makes it, where that is another; or NULL */
    int32_t n_sequences, length, n_heads, dim;
    bool is_silu, by_rows[N_PASSES];     /* by_rows: row-wise kernels ran */
    double density;                      /* attended pairs / all pairs */
    double n_full, n_partial;            /* shares of all tiles */
    double tile_pairs;                   /* of a listed tile, in the mean */
    double error;                        /* of the worst result, by root mean square */
    double flops, bytes;                 /* of the forward pass */
    double seconds[N_PASSES][N_TIMINGS]; /* NAN: not timed */
    double peer; /* ms of the best peer, forward, replayed; NAN: not known */
} mask_row;

/* One row's arrays. */
typedef struct problem {
    backend *be;
    mask *m;
    mask_batch *masks;
    softmax_attn_args copy[MAX_COPIES];
    int n_copies;
    float *input[N_INPUTS]; /* (length, D): head 0 of sequence 0, as the op sees it */
    nn_memory memory;       /* of all arrays */
} problem;

static status send_offsets(problem *p, const mask_row *r, int32_t **out) {
    int32_t n = r->n_sequences, *offsets, *lengths;
    TRY(NN_NEW_HOST(&p->memory, &offsets, n + 1));
    TRY(NN_NEW_HOST(&p->memory, &lengths, n));
    for (int32_t b = 0; b < n; b++) {
        offsets[b + 1] = offsets[b] + r->length;
        lengths[b] = r->length;
    }
    TRY(NN_NEW(&p->memory, out, n + 1));
    TRY(p->be->ops->copy_in(p->be, *out, offsets, sizeof *offsets * ((size_t)n + 1)));
    TRY(mask_batch_create(&p->masks, p->be, p->m, n));
    return mask_batch_set(p->masks, 0, n, lengths);
}

/* The kernels that were asked for take what they know from the arguments: without the number of
 * rows there is no TMA, without that of the tiles no choice. */
static void choose_kernel(softmax_attn_args *a, int kernel) {
    if (kernel == MASK_ANY_CARD) a->n_rows = 0;
    if (kernel == MASK_ANY_CARD || kernel == MASK_BLOCK_WISE) a->mask.n_listed = 0;
    if (kernel == MASK_ROW_WISE) a->mask.n_listed = INT32_MAX;
}

/* Whether the backend chooses row-wise kernels: see cuda/attn/common/attn.cu. */
static bool is_by_rows(const backend *be, const softmax_attn_args *a, int pass) {
    return be->n_ahead > 0 && be->act != ACT_F32 && (a->dim == 64 || a->dim == 128) &&
           !mask_rule_is_span(&a->mask.rule) &&
           mask_choice_by_rows(a->mask.n_pairs, a->mask.n_listed, pass == PASS_BACKWARD);
}

static status open_problem(problem *p, const bench_args *b, const mask_row *r) {
    bench_pool numbers;
    int64_t n_rows = (int64_t)r->n_sequences * r->length, width = (int64_t)r->n_heads * r->dim;
    size_t bytes = (size_t)(n_rows * width) * act_bytes(p->be->act);
    int64_t copies = p->be->n_ahead > 0 ? CACHE_BYTES / (int64_t)(4 * bytes) + 2 : 1;
    int32_t *offsets, *rows, *index[N_INPUTS];
    p->n_copies = (int)(copies < MAX_COPIES ? copies : MAX_COPIES);
    TRY(send_offsets(p, r, &offsets));
    TRY(bench_pool_init(&numbers, &p->memory, rng_make_key((uint64_t)b->io.seed, RNG_TEST)));
    for (int i = 0; i < N_INPUTS; i++) {
        TRY(bench_pool_draw(&numbers, 1 + (uint64_t)i, n_rows, width, &rows));
        TRY(bench_send(&p->memory, rows, n_rows, sizeof *rows, &index[i]));
        TRY(NN_NEW_HOST(&p->memory, &p->input[i], (int64_t)r->length * r->dim));
        bench_pool_copy(&numbers, rows, r->length, width, 0, r->dim, p->input[i]);
    }
    for (int c = 0; c < p->n_copies; c++) {
        softmax_attn_args *a = &p->copy[c];
        *a = (softmax_attn_args){.n_sequences = r->n_sequences,
                                 .n_heads = r->n_heads,
                                 .dim = r->dim,
                                 .max_len = r->length,
                                 .n_rows = n_rows,
                                 .offsets = offsets,
                                 .mask = *mask_batch_view(p->masks),
                                 .alpha = 1 / sqrtf((float)r->dim),
                                 .silu_scale = r->is_silu ? 1 / (float)r->length : 0};
        choose_kernel(a, b->kernel);
        TRY(bench_pool_rows(&numbers, index[Q], n_rows, width, 1, &a->q));
        TRY(bench_pool_rows(&numbers, index[K], n_rows, width, 1, &a->k));
        TRY(bench_pool_rows(&numbers, index[V], n_rows, width, 1, &a->v));
        TRY(bench_pool_rows(&numbers, index[DOUT], n_rows, width, 1, &a->dout));
        a->stride_q = a->stride_k = a->stride_v = a->stride_out = width;
        TRY(nn_new_act(&p->memory, &a->out, n_rows, width));
        TRY(nn_new_act(&p->memory, &a->dq, n_rows, width));
        TRY(nn_new_act(&p->memory, &a->dk, n_rows, width));
        TRY(nn_new_act(&p->memory, &a->dv, n_rows, width));
        TRY(NN_NEW(&p->memory, &a->log_sum, n_rows * r->n_heads));
    }
    return OK;
}

static void close_problem(problem *p) {
    nn_memory_fini(&p->memory);
    mask_batch_destroy(p->masks);
    mask_destroy(p->m);
}

/* Both passes of head 0 of sequence 0, in float64: want is out, dq, dk, dv, (length, D) each.  Rows
 * are those of the mask itself, not of the tiles that the kernels read. */
static status exact_head(const problem *x, const mask_row *r, double *want[N_RESULTS]) {
    int32_t n = r->length, offsets[] = {0, n};
    int64_t n_words = (n + 63) / 64;
    uint64_t *words;
    attn_naive_results to = {.out = want[0], .dq = want[1], .dk = want[2], .dv = want[3]};
    softmax_attn_args a = {.n_sequences = 1,
                           .n_heads = 1,
                           .dim = r->dim,
                           .max_len = n,
                           .offsets = offsets,
                           .q = x->input[Q],
                           .k = x->input[K],
                           .v = x->input[V],
                           .dout = x->input[DOUT],
                           .alpha = x->copy[0].alpha,
                           .silu_scale = x->copy[0].silu_scale};
    a.stride_q = a.stride_k = a.stride_v = a.stride_out = r->dim;
    TRY(MEM_NEW(&words, (size_t)n_words));
    for (int32_t i = 0; i < n; i++) {
        mask_fill_rows(x->m, 0, n, i, 1, words, n_words);
        softmax_attn_naive_row(&a, 0, 0, i, words, NULL, &to);
    }
    mem_free(words);
    return OK;
}

/* Root mean square of the difference over that of the values, of head 0 of sequence 0. */
static status result_error(const problem *x, const mask_row *r, const void *got, const double *want,
                           double *error) {
    int64_t width = (int64_t)r->n_heads * r->dim;
    double difference = 0, size = 0;
    float *host;
    TRY(MEM_NEW(&host, (size_t)(r->length * width)));
    status st = backend_read_act(x->be, host, got, (size_t)(r->length * width));
    for (int64_t i = 0; i < (int64_t)r->length * r->dim && st == OK; i++) {
        double y = (double)host[i / r->dim * width + i % r->dim] - want[i];
        difference += y * y;
        size += want[i] * want[i];
    }
    mem_free(host);
    *error = bench_worse(*error, sqrt(difference / (size > 0 ? size : 1)));
    return st;
}

static status poison(const problem *x, const mask_row *r) {
    int64_t n = (int64_t)r->n_sequences * r->length * r->n_heads * r->dim;
    const softmax_attn_args *a = &x->copy[0];
    void *const results[] = {a->out, a->dq, a->dk, a->dv};
    /* dout is as large as they are, and not what any of them should be */
    for (int i = 0; i < N_RESULTS; i++)
        TRY(x->be->ops->copy(x->be, results[i], a->dout, (size_t)n * act_bytes(x->be->act)));
    return OK;
}

static status check(const problem *x, mask_row *r) {
    const softmax_attn_args *a = &x->copy[0];
    const void *const got[] = {a->out, a->dq, a->dk, a->dv};
    size_t n = (size_t)r->length * (size_t)r->dim;
    double *want[N_RESULTS], *room;
    double allowed = x->be->act == ACT_F32 ? 1e-5 : x->be->act == ACT_F16 ? 3e-3 : 2e-2;
    TRY(poison(x, r));
    TRY(x->be->ops->softmax_attn_fwd(x->be, a));
    TRY(x->be->ops->softmax_attn_bwd(x->be, a));
    TRY(MEM_NEW(&room, N_RESULTS * n));
    for (int i = 0; i < N_RESULTS; i++)
        want[i] = room + (size_t)i * n;
    status st = exact_head(x, r, want);
    for (int i = 0; i < N_RESULTS && st == OK; i++)
        st = result_error(x, r, got[i], want[i], &r->error);
    mem_free(room);
    TRY(st);
    if (r->error <= allowed) return OK;
    return fail(ERR_NUMERIC,
                "%s, sequences of %d: the results differ from float64 by %.2g of their size; "
                "nothing was timed",
                r->mask, r->length, r->error);
}

/* One pass, for timing.h. */
typedef struct timed_pass {
    const problem *p;
    int pass;
} timed_pass;

static status call(void *ctx, int i) {
    const timed_pass *t = ctx;
    backend *be = t->p->be;
    const softmax_attn_args *a = &t->p->copy[i % t->p->n_copies];
    return t->pass == PASS_BACKWARD ? be->ops->softmax_attn_bwd(be, a)
                                    : be->ops->softmax_attn_fwd(be, a);
}

static status describe(const problem *p, mask_row *r) {
    mask_tiles *plan;
    double n = r->length, pairs;
    TRY(mask_tiles_create(&plan, p->m, 0, r->length));
    double n_tiles = (double)plan->n_tiles * plan->n_tiles;
    pairs = (double)plan->n_pairs;
    r->density = pairs / (n * n);
    r->n_full = (double)plan->n_full / n_tiles;
    r->n_partial = (double)(plan->n_listed - plan->n_full) / n_tiles;
    r->tile_pairs = plan->n_listed > 0 ? pairs / (double)plan->n_listed : 0;
    mask_tiles_destroy(plan);
    r->flops = 4.0 * r->n_heads * r->dim * r->n_sequences * pairs;
    r->bytes = 4.0 * r->n_heads * r->dim * r->n_sequences * n * (double)act_bytes(p->be->act);
    return OK;
}

static const char *kernel_of(const bench_args *a, const mask_row *r, int pass) {
    if (r->by_rows[pass]) return "row-wise";
    return a->kernel == MASK_ANY_CARD ? "block-wise, any card" : "block-wise";
}

static status print_row(bench_args *a, const mask_row *r) {
    const double *fwd = r->seconds[PASS_FORWARD], *bwd = r->seconds[PASS_BACKWARD];
    double best = bench_best(fwd[TIMED_PLAIN], fwd[TIMED_REPLAY]), ratio = r->peer / 1e3 / best;
    a->log_ratio += isnan(ratio) ? 0 : log(ratio);
    a->n_ratios += !isnan(ratio);
    return BENCH_ROW(
        &a->io, COLUMN("mask", "-31", "mask", r->mask), MEMBER("silu", r->is_silu),
        MEMBER("kernel", kernel_of(a, r, PASS_FORWARD)),
        MEMBER("backward_kernel", kernel_of(a, r, PASS_BACKWARD)),
        MEMBER("pairs_a_tile", r->tile_pairs), MEMBER("deterministic", a->io.is_deterministic),
        COLUMN("B", " 3", "sequences", r->n_sequences), COLUMN("n", " 5", "length", r->length),
        MEMBER("heads", r->n_heads), MEMBER("dim", r->dim),
        COLUMN("density", " 7.4f", "density", r->density),
        COLUMN("full", " 6.3f", "full_tiles", r->n_full),
        COLUMN("part", " 6.3f", "partial_tiles", r->n_partial),
        COLUMN("fwd ms", " 9.4f", "fwd_ms", fwd[TIMED_PLAIN] * 1e3),
        COLUMN("replay", " 9.4f", "fwd_replay_ms", fwd[TIMED_REPLAY] * 1e3),
        COLUMN("bwd ms", " 9.4f", "bwd_ms", bwd[TIMED_PLAIN] * 1e3),
        COLUMN("replay", " 9.4f", "bwd_replay_ms", bwd[TIMED_REPLAY] * 1e3),
        COLUMN("TFLOP/s", " 8.3g", "fwd_tflops", r->flops / best / 1e12),
        MEMBER("bwd_tflops",
               2.5 * r->flops / bench_best(bwd[TIMED_PLAIN], bwd[TIMED_REPLAY]) / 1e12),
        COLUMN("GB/s", " 7.0f", "fwd_gb_per_s", r->bytes / best / 1e9),
        COLUMN("error", " 8.1e", "error", r->error),
        COLUMN("by", " 10", NULL,
               r->by_rows[PASS_BACKWARD]  ? "rows"
               : r->by_rows[PASS_FORWARD] ? "rows/tiles"
                                          : "tiles"),
        COLUMN("x peer", " 6.2f", NULL, ratio), MEMBER("peer_fwd_replay_ms", r->peer));
}

static status measure(bench_args *a, problem *p, mask_row *r) {
    TRY(check(p, r));
    for (int pass = 0; pass < N_PASSES; pass++) {
        timed_pass t = {p, pass};
        TRY(timing_plain(p->be, call, &t, &r->seconds[pass][TIMED_PLAIN]));
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)pass, call, &t,
                          &r->seconds[pass][TIMED_REPLAY]));
    }
    return print_row(a, r);
}

static status run_row(bench_args *a, mask_row *r) {
    backend *be = a->io.be;
    problem p = {.be = be};
    TRY(be->ops->set_precision(be, be->act, false)); /* drops old recordings */
    nn_memory_init(&p.memory, be);
    status st = mask_create(&p.m, r->source != NULL ? r->source : r->mask);
    if (st == OK) st = describe(&p, r);
    bool is_long = st == OK && be->n_ahead == 0 && r->flops > CPU_MAX_FLOPS;
    a->n_left_out += is_long;
    if (st == OK && !is_long) {
        st = open_problem(&p, a, r);
        for (int pass = 0; pass < N_PASSES && st == OK; pass++)
            r->by_rows[pass] = is_by_rows(be, &p.copy[0], pass);
        if (st == OK) st = measure(a, &p, r);
    }
    close_problem(&p);
    return st;
}

static bool is_wanted(const bench_args *f, const int32_t shape[2], const char *mask_text) {
    if (f->n_sequences != 0 && f->n_sequences != shape[0]) return false;
    if (f->length != 0 && f->length != shape[1]) return false;
    return f->mask == NULL || strstr(mask_text, f->mask) != NULL;
}

static mask_row row_of(const bench_args *f, const char *text, int32_t n_sequences, int32_t length) {
    mask_row r = {.mask = text, .n_sequences = n_sequences, .length = length, .peer = NAN};
    r.n_heads = f->n_heads != 0 ? (int32_t)f->n_heads : 12;
    r.dim = f->dim != 0 ? (int32_t)f->dim : 64;
    r.is_silu = f->is_silu;
    return r;
}

static mask_row curve_row(const bench_args *f, const char *text) {
    return row_of(f, text, f->n_sequences != 0 ? (int32_t)f->n_sequences : 16,
                  f->length != 0 ? (int32_t)f->length : 4096);
}

/* Each pair of n tokens with this probability. */
static status write_scattered(const char *path, int32_t n, double share, uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_MASK);
    uint8_t *seen;
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {n, n}};
    t.n = (int64_t)n * n;
    TRY(MEM_NEW(&seen, (size_t)t.n));
    for (int64_t i = 0; i < t.n; i++)
        seen[i] = (double)rng_uniform(rng_draw64(key, (uint64_t)i / 4, 0).word[i % 4]) < share;
    t.data = seen;
    status st = st_write(path, &t, 1, NULL, 0);
    mem_free(seen);
    return st;
}

/* Pairs at random: tiles are all listed, with few pairs each. */
static status run_scattered(bench_args *f) {
    static const double shares[] = {.0005, .001, .002, .005, .01, .02, .05, .1};
    char cache[512];
    scratch_folder *folder;
    status st = OK;
    TRY(env_cache_folder(cache, sizeof cache, "masks"));
    TRY(scratch_folder_create(&folder, cache, "bench-"));
    const char *path = show_printf("%s/mask.safetensors", scratch_folder_path(folder));
    const char *source = show_printf("bits:%s", path);
    for (size_t i = 0; i < sizeof shares / sizeof *shares && st == OK; i++) {
        mask_row r = curve_row(f, "scattered");
        r.source = source;
        st = write_scattered(path, r.length, shares[i], (uint64_t)f->io.seed + i);
        if (st == OK) st = run_row(f, &r);
    }
    scratch_folder_destroy(folder);
    return st;
}

/* Time against density: a window W of n tokens has about (2 W n - W^2) / n^2 of the pairs. */
static status run_curve(bench_args *f) {
    static const double densities[] = {.01, .02, .05, .1, .2, .5, 1};
    for (size_t i = 0; i < sizeof densities / sizeof *densities; i++) {
        mask_row r = curve_row(f, "none");
        if (densities[i] < 1)
            r.mask = show_printf("sliding,window=%d",
                                 (int)lround(r.length * (1 - sqrt(1 - densities[i]))));
        TRY(run_row(f, &r));
    }
    return run_scattered(f);
}

static double find_peer(const bench_args *a, const mask_row *r) {
    bool is_comparable = bench_has_peers(a->io.be) && a->n_heads == 0 && a->dim == 0 &&
                         !a->is_silu && a->kernel == MASK_CHOSEN;
    const char *key = show_printf("%d,%d,\"%s\"", r->n_sequences, r->length, r->mask);
    return is_comparable ? bench_peer("masks", key, 0) : NAN;
}

static status run_rows(bench_args *a) {
    int n_rows = 0;
    if (a->is_curve) return run_curve(a);
    for (int s = 0; s < N_TABLE_SHAPES; s++)
        for (int m = 0; m < N_TABLE_MASKS; m++) {
            mask_row r = row_of(a, table_masks[m], table_shapes[s][0], table_shapes[s][1]);
            if (!is_wanted(a, table_shapes[s], table_masks[m])) continue;
            r.peer = find_peer(a, &r);
            TRY(run_row(a, &r));
            n_rows++;
        }
    if (n_rows > 0) return OK;
    /* not of the table */
    mask_row r = row_of(a, a->mask != NULL ? a->mask : "none",
                        a->n_sequences != 0 ? (int32_t)a->n_sequences : 8,
                        a->length != 0 ? (int32_t)a->length : 1024);
    return run_row(a, &r);
}

static status run(void *ctx) {
    bench_args *a = ctx;
    bench_title(&a->io, "%s attention under masks on %s in %s; kernels: %s%s",
                a->is_silu ? "SiLU" : "Softmax", bench_device(a->io.be), a->io.dtype,
                kernel_names[a->kernel], a->io.is_deterministic ? ", deterministic" : "");
    TRY(run_rows(a));
    if (a->io.is_json) return OK;
    printf("\nTFLOP/s: of the attended pairs, forward; GB/s: q, k, v and out, once.\n");
    if (a->n_ratios > 0)
        printf("x peer: time of the best of FlexAttention, SDPA and (causal) cuDNN / time, "
               "forward, replayed; geometric mean %.2f over %d rows.\n",
               exp(a->log_ratio / a->n_ratios), a->n_ratios);
    if (a->n_left_out > 0)
        printf("%d rows are for a GPU: they would take minutes here.\n", a->n_left_out);
    return OK;
}

status bench_masks(int argc, char **argv) {
    bench_args a = {.io = {.name = "masks", .device = "auto", .act = ACT_BF16}};
    const arg_option options[] = {
        BENCH_OPTIONS(&a.io, work_dtypes, BENCH_DTYPES,
                      "Seed of the inputs (default: a new one in every run)."),
        OPT_TEXT(
            "--mask", &a.mask, "MASK",
            "Measure only table rows whose mask contains MASK; or any mask of 'hstu mask show'."),
        OPT_INT("--sequences", &a.n_sequences, "B", 1, 65536, "Sequences per batch."),
        OPT_INT("--length", &a.length, "N", 1, 1 << 17, "Tokens per sequence."),
        OPT_INT("--heads", &a.n_heads, "H", 1, 1024, "Heads (default 12)."),
        OPT_INT("--dim", &a.dim, "D", 1, 256, "Head dimension (default 64)."),
        OPT_FLAG("--silu", &a.is_silu,
                 "Use HSTU's weights, silu(score) / N, instead of the softmax."),
        OPT_CHOICE("--kernel", &a.kernel, "KERNEL", kernel_names,
                   "On a GPU in 16 bits: chosen (by the mask, default), block-wise, row-wise, or "
                   "any-card (the SM 8.0 kernels)."),
        OPT_FLAG("--deterministic", &a.io.is_deterministic, "On a GPU: sum in a fixed order."),
        OPT_FLAG("--curve", &a.is_curve,
                 "Instead of the table, measure sliding windows of densities from .01 to 1 and "
                 "randomly scattered pairs (16 sequences of 4096 tokens by default)."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench masks [options]",
        .summary = "Measure softmax attention under masks, forward and backward, at the shapes of "
                   "the published table or any other. Each is first checked against float64.",
        .options = options,
        .notes = "On an H200 in bfloat16, table rows show the ratio to the fastest of "
                 "FlexAttention, SDPA and cuDNN."};
    ARGS_PARSE(&spec, NULL, NULL);
    return bench_run(&a.io, run, &a);
}
