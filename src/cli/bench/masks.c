#include "cli/bench/masks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/scratch_folder.h"
#include "cli/bench/timing.h"
#include "format/safetensors.h"
#include "ops/mask_batch.h"
#include "ops/mask_choice.h"

enum { MAX_COPIES = 20, RECORD_KEY = 177, N_RESULTS = 4 };
enum { Q, K, V, DOUT, N_INPUTS };

static const int64_t CACHE_BYTES = 64 << 20;
static const double CPU_MAX_FLOPS = 2e10;

/* The field's table: FlexAttention and SDPA with the same mask (ms, forward, replay of a graph,
 * H200, bfloat16, PyTorch 2.11, 2026-11-15); for the causal mask also cuDNN, the best of them. */
typedef struct cell {
    int32_t n_sequences, length;
    double peer[4];
} cell;
static const char *const table_masks[4] = {"causal", "sliding,window=64,causal",
                                           "longformer,window=32,global=32",
                                           "bigbird,window=32,global=32"};
static const cell table[] = {{1, 128, {.0064, .0071, .0068, .0070}},
                             {8, 512, {.0199, .0263, .0402, .0402}},
                             {8, 1024, {.0479, .0545, .106, .0940}},
                             {16, 2048, {.265, .199, .432, .359}},
                             {16, 4096, {.973, .390, .914, .734}}};
enum { N_CELLS = sizeof table / sizeof *table, N_TABLE_MASKS = 4 };

/* One row's arrays. */
typedef struct problem {
    backend *be;
    mask *m;
    mask_batch *masks;
    mask_kernel kernel;
    softmax_attn_args copy[MAX_COPIES];
    int n_copies;
    float *input[N_INPUTS]; /* (length, D): head 0 of sequence 0, as the op sees it */
    void *device[MAX_COPIES * 9 + 1];
    int n_device;
} problem;

static status new_array(problem *p, size_t bytes, void **out) {
    TRY(p->be->ops->alloc(p->be, out, bytes));
    p->device[p->n_device++] = *out;
    return OK;
}

/* Number i of an input: uniform in [-1, 1), exact in every activation type.  Four numbers in turn
 * share a draw, which the caller keeps. */
static float draw(rng_key key, int64_t i, uint64_t what, rng_block *four) {
    if (i % 4 == 0) *four = rng_draw64(key, (uint64_t)i / 4, what);
    return (float)((int32_t)(four->word[i % 4] >> 24) - 128) / 128;
}

static uint16_t to_half(act_type act, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (act == ACT_BF16) return (uint16_t)(bits >> 16);
    if (x == 0) return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                      (bits >> 13 & 1023));
}

/* Draws one input and copies it to every copy. */
static status send_input(problem *p, const mask_row *r, rng_key key, int which, void **out) {
    int64_t width = (int64_t)r->n_heads * r->dim, n = width * r->n_sequences * r->length;
    size_t size = act_bytes(p->be->act);
    char *host;
    rng_block four = {{0}};
    TRY(MEM_NEW(&p->input[which], (size_t)r->length * (size_t)r->dim));
    TRY(mem_alloc_raw((void **)&host, (size_t)n, size));
    for (int64_t i = 0; i < n; i++) {
        float x = draw(key, i, (uint64_t)which, &four);
        if (i < width * r->length && i % width < r->dim)
            p->input[which][i / width * r->dim + i % width] = x;
        if (size == 4) {
            memcpy(host + i * 4, &x, 4);
        } else {
            uint16_t half = to_half(p->be->act, x);
            memcpy(host + i * 2, &half, 2);
        }
    }
    status st = OK;
    for (int c = 0; c < p->n_copies && st == OK; c++) {
        st = new_array(p, (size_t)n * size, &out[c]);
        if (st == OK) st = p->be->ops->copy_in(p->be, out[c], host, (size_t)n * size);
    }
    mem_free(host);
    return st;
}

static status send_offsets(problem *p, const mask_row *r, void **out) {
    int32_t *offsets, *lengths;
    TRY(MEM_NEW(&offsets, 2 * (size_t)r->n_sequences + 1));
    lengths = offsets + r->n_sequences + 1;
    for (int32_t b = 0; b < r->n_sequences; b++) {
        offsets[b + 1] = offsets[b] + r->length;
        lengths[b] = r->length;
    }
    size_t bytes = sizeof *offsets * ((size_t)r->n_sequences + 1);
    status st = new_array(p, bytes, out);
    if (st == OK) st = p->be->ops->copy_in(p->be, *out, offsets, bytes);
    if (st == OK) st = mask_batch_create(&p->masks, p->be, p->m, r->n_sequences);
    if (st == OK) st = mask_batch_set(p->masks, 0, r->n_sequences, lengths);
    mem_free(offsets);
    return st;
}

/* The kernels that were asked for take what they know from the arguments: without the number of
 * rows there is no TMA, without that of the tiles no choice. */
static void choose_kernel(softmax_attn_args *a, mask_kernel kernel) {
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

static status open_problem(problem *p, const mask_row *r, uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    int64_t n_rows = (int64_t)r->n_sequences * r->length, width = (int64_t)r->n_heads * r->dim;
    size_t bytes = (size_t)(n_rows * width) * act_bytes(p->be->act);
    int64_t copies = p->be->n_ahead > 0 ? CACHE_BYTES / (int64_t)(4 * bytes) + 2 : 1;
    void *there[N_INPUTS][MAX_COPIES], *offsets;
    p->n_copies = (int)(copies < MAX_COPIES ? copies : MAX_COPIES);
    TRY(send_offsets(p, r, &offsets));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(send_input(p, r, key, i, there[i]));
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
        choose_kernel(a, p->kernel);
        a->q = there[Q][c];
        a->k = there[K][c];
        a->v = there[V][c];
        a->dout = there[DOUT][c];
        a->stride_q = a->stride_k = a->stride_v = a->stride_out = width;
        TRY(new_array(p, bytes, &a->out));
        TRY(new_array(p, bytes, &a->dq));
        TRY(new_array(p, bytes, &a->dk));
        TRY(new_array(p, bytes, &a->dv));
        TRY(new_array(p, (size_t)(n_rows * r->n_heads) * sizeof(float), (void **)&a->log_sum));
    }
    return OK;
}

static void close_problem(problem *p) {
    for (int i = 0; i < N_INPUTS; i++)
        mem_free(p->input[i]);
    for (int i = 0; i < p->n_device; i++)
        p->be->ops->release(p->be, p->device[i]);
    mask_batch_destroy(p->masks);
    mask_destroy(p->m);
}

static double dot(const float *x, const float *y, int32_t n) {
    double sum = 0;
    for (int32_t d = 0; d < n; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

static void add(double *to, double weight, const float *x, int32_t n) {
    for (int32_t d = 0; d < n; d++)
        to[d] += weight * (double)x[d];
}

/* The scores in p become weights; dp, of the weights, the gradients of the scores, without alpha.
 */
static void exact_softmax(double *p, double *dp, int32_t n_keys) {
    double largest = -INFINITY, sum = 0, delta = 0;
    for (int32_t n = 0; n < n_keys; n++)
        largest = fmax(largest, p[n]);
    for (int32_t n = 0; n < n_keys; n++)
        sum += p[n] = exp(p[n] - largest);
    for (int32_t n = 0; n < n_keys; n++)
        delta += (p[n] /= sum) * dp[n];
    for (int32_t n = 0; n < n_keys; n++)
        dp[n] = p[n] * (dp[n] - delta);
}

static void exact_silu(double *p, double *dp, int32_t n_keys, int32_t length) {
    for (int32_t n = 0; n < n_keys; n++) {
        double sigmoid = 1 / (1 + exp(-p[n]));
        dp[n] *= sigmoid * (1 + p[n] * (1 - sigmoid)) / length;
        p[n] *= sigmoid / length;
    }
}

/* Both passes of head 0 of sequence 0, in float64: want is out, dq, dk, dv, (length, D) each.  p
 * and dp have room for a row, keys for the numbers of its keys. */
static void exact_row(const problem *x, const mask_row *r, int32_t i, const int32_t *keys,
                      int32_t n_keys, double *p, double *dp, double *want[N_RESULTS]) {
    int32_t d = r->dim;
    double alpha = 1 / sqrt((double)d);
    for (int32_t n = 0; n < n_keys; n++) {
        p[n] = alpha * dot(x->input[Q] + (int64_t)i * d, x->input[K] + (int64_t)keys[n] * d, d);
        dp[n] = dot(x->input[DOUT] + (int64_t)i * d, x->input[V] + (int64_t)keys[n] * d, d);
    }
    if (r->is_silu)
        exact_silu(p, dp, n_keys, r->length);
    else
        exact_softmax(p, dp, n_keys);
    for (int32_t n = 0; n < n_keys; n++) {
        double ds = alpha * dp[n];
        int64_t at = (int64_t)keys[n] * d;
        add(want[0] + (int64_t)i * d, p[n], x->input[V] + at, d);
        add(want[1] + (int64_t)i * d, ds, x->input[K] + at, d);
        add(want[2] + at, ds, x->input[Q] + (int64_t)i * d, d);
        add(want[3] + at, p[n], x->input[DOUT] + (int64_t)i * d, d);
    }
}

static status exact_head(const problem *x, const mask_row *r, double *want[N_RESULTS]) {
    int32_t n = r->length, *keys;
    int64_t n_words = (n + 63) / 64;
    uint64_t *words = NULL;
    double *room = NULL;
    TRY(MEM_NEW(&keys, (size_t)n));
    status st = MEM_NEW(&words, (size_t)n_words);
    if (st == OK) st = MEM_NEW(&room, 2 * (size_t)n);
    for (int32_t i = 0; i < n && st == OK; i++) {
        int32_t n_keys = 0;
        mask_fill_rows(x->m, 0, n, i, 1, words, n_words);
        for (int32_t j = 0; j < n; j++)
            if (words[j / 64] >> (j % 64) & 1) keys[n_keys++] = j;
        exact_row(x, r, i, keys, n_keys, room, room + n, want);
    }
    mem_free(keys);
    mem_free(words);
    mem_free(room);
    return st;
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
    double own = sqrt(difference / (size > 0 ? size : 1));
    *error = !(own <= *error) ? own : *error;
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
    mask_plan *plan;
    double n = r->length, pairs;
    TRY(mask_plan_create(&plan, p->m, 0, r->length));
    double n_tiles = (double)plan->n_tiles * plan->n_tiles;
    pairs = (double)plan->n_pairs;
    r->density = pairs / (n * n);
    r->n_full = (double)plan->n_full / n_tiles;
    r->n_partial = (double)(plan->n_listed - plan->n_full) / n_tiles;
    r->tile_pairs = plan->n_listed > 0 ? pairs / (double)plan->n_listed : 0;
    mask_plan_destroy(plan);
    r->flops = 4.0 * r->n_heads * r->dim * r->n_sequences * pairs;
    r->bytes = 4.0 * r->n_heads * r->dim * r->n_sequences * n * (double)act_bytes(p->be->act);
    return OK;
}

static status measure(problem *p, mask_row *r, mask_row_fn fn, void *ctx) {
    TRY(check(p, r));
    for (int pass = 0; pass < N_PASSES; pass++) {
        timed_pass t = {p, pass};
        TRY(timing_plain(p->be, call, &t, &r->seconds[pass][TIMED_PLAIN]));
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)pass, call, &t,
                          &r->seconds[pass][TIMED_REPLAY]));
    }
    return fn(ctx, r);
}

static status run_row(backend *be, const mask_filter *f, mask_row *r, uint64_t seed, mask_row_fn fn,
                      void *ctx, int *n_left_out) {
    problem p = {.be = be, .kernel = f->kernel};
    TRY(be->ops->set_precision(be, be->act, false)); /* drops old recordings */
    status st = mask_create(&p.m, r->source != NULL ? r->source : r->mask);
    if (st == OK) st = describe(&p, r);
    if (st == OK && be->n_ahead == 0 && r->flops > CPU_MAX_FLOPS) {
        ++*n_left_out;
        close_problem(&p);
        return OK;
    }
    if (st == OK) st = open_problem(&p, r, seed);
    for (int pass = 0; pass < N_PASSES && st == OK; pass++)
        r->by_rows[pass] = is_by_rows(be, &p.copy[0], pass);
    if (st == OK) st = measure(&p, r, fn, ctx);
    close_problem(&p);
    return st;
}

static bool is_wanted(const mask_filter *f, const cell *c, const char *mask_text) {
    if (f->n_sequences != 0 && f->n_sequences != c->n_sequences) return false;
    if (f->length != 0 && f->length != c->length) return false;
    return f->mask == NULL || strstr(mask_text, f->mask) != NULL;
}

static mask_row row_of(const mask_filter *f, const char *text, int32_t n_sequences,
                       int32_t length) {
    mask_row r = {.mask = text, .n_sequences = n_sequences, .length = length, .peer = NAN};
    r.n_heads = f->n_heads != 0 ? (int32_t)f->n_heads : 12;
    r.dim = f->dim != 0 ? (int32_t)f->dim : 64;
    r.is_silu = f->is_silu;
    return r;
}

static mask_row curve_row(const mask_filter *f, const char *text) {
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
static status run_scattered(backend *be, const mask_filter *f, uint64_t seed, mask_row_fn fn,
                            void *ctx, int *n_left_out) {
    static const double shares[] = {.0005, .001, .002, .005, .01, .02, .05, .1};
    char cache[512], path[640], source[648];
    scratch_folder *folder;
    status st = OK;
    TRY(env_cache_folder(cache, sizeof cache, "masks"));
    TRY(scratch_folder_create(&folder, cache, "bench-"));
    snprintf(path, sizeof path, "%s/mask.safetensors", scratch_folder_path(folder));
    snprintf(source, sizeof source, "bits:%s", path);
    for (size_t i = 0; i < sizeof shares / sizeof *shares && st == OK; i++) {
        mask_row r = curve_row(f, "scattered");
        r.source = source;
        st = write_scattered(path, r.length, shares[i], seed + i);
        if (st == OK) st = run_row(be, f, &r, seed, fn, ctx, n_left_out);
    }
    scratch_folder_destroy(folder);
    return st;
}

/* Time against density: a window W of n tokens has about (2 W n - W^2) / n^2 of the pairs. */
static status run_curve(backend *be, const mask_filter *f, uint64_t seed, mask_row_fn fn, void *ctx,
                        int *n_left_out) {
    static const double densities[] = {.01, .02, .05, .1, .2, .5, 1};
    for (size_t i = 0; i < sizeof densities / sizeof *densities; i++) {
        char text[48] = "none";
        mask_row r = curve_row(f, text);
        if (densities[i] < 1)
            snprintf(text, sizeof text, "sliding,window=%d",
                     (int)lround(r.length * (1 - sqrt(1 - densities[i]))));
        TRY(run_row(be, f, &r, seed, fn, ctx, n_left_out));
    }
    return run_scattered(be, f, seed, fn, ctx, n_left_out);
}

status mask_bench_run(backend *be, const mask_filter *filter, mask_row_fn fn, void *ctx,
                      int *n_left_out) {
    uint64_t seed = filter->seed != 0 ? (uint64_t)filter->seed : clock_ns();
    bool has_peers = be->act == ACT_BF16 && be->card != NULL && strstr(be->card, "H200") != NULL &&
                     filter->n_heads == 0 && filter->dim == 0 && !filter->is_silu &&
                     filter->kernel == MASK_CHOSEN;
    int n_rows = 0;
    *n_left_out = 0;
    if (filter->is_curve) return run_curve(be, filter, seed, fn, ctx, n_left_out);
    for (int c = 0; c < N_CELLS; c++)
        for (int m = 0; m < N_TABLE_MASKS; m++) {
            mask_row r = row_of(filter, table_masks[m], table[c].n_sequences, table[c].length);
            if (!is_wanted(filter, &table[c], table_masks[m])) continue;
            if (has_peers) r.peer = table[c].peer[m];
            TRY(run_row(be, filter, &r, seed, fn, ctx, n_left_out));
            n_rows++;
        }
    if (n_rows > 0) return OK;
    /* not of the table */
    mask_row r = row_of(filter, filter->mask != NULL ? filter->mask : "none",
                        filter->n_sequences != 0 ? (int32_t)filter->n_sequences : 8,
                        filter->length != 0 ? (int32_t)filter->length : 1024);
    return run_row(be, filter, &r, seed, fn, ctx, n_left_out);
}
