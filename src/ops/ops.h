/* ops.h: THE contract of a backend.
 *
 * A backend is a device with memory, an order of execution, and the operations below, each stated
 * once, here, with its maths and shapes; ops.def lists them.  The CPU backend (src/cpu) is always
 * there; the CUDA one (src/cuda) where nvcc was found.  One binary holds both and chooses at run
 * time, so each op can be tested against the other in one process.
 *
 * Rules for all ops:
 * - Pointers are memory of the backend (op `alloc`), row-major, 64-byte aligned at their start,
 *   unless a comment says host.  A caller of the CPU backend may pass any host memory.
 * - Ops of one backend run in the order in which they are called and may run later than the call;
 *   `sync` waits.  `copy_out` and ops that return numbers to the host wait by themselves.
 * - `act` is the type of activations: float32 on the CPU, the model's choice (bfloat16, float16,
 *   float32) on a GPU; such pointers are `void *`.  Weights, statistics, gradients of weights and
 *   all sums are float32.
 * - The gradient of a weight is added to the old value; the gradient of an activation overwrites
 * it, unless said otherwise.
 * - A count of 0 is legal everywhere and does nothing.
 * - Once warm no op allocates: scratch memory is the backend's own, grown on first use and then
 *   kept, or is an argument.
 * - What changes from step to step (the number of the step, the scale of the gradients) is read
 *   from memory of the backend when the op runs, so that a recorded step can be replayed
 *   (`record`).
 * - Rows that only pad a batch are marked by a negative index or label: they read as zeros, have
 *   no loss, and neither get nor give a gradient.
 * - The CPU gives the same bits with any number of threads; a GPU gives the same bits in every run
 *   in deterministic mode.
 *
 * Letters as in docs/notation.md: B sequences, T tokens, H heads, D head dim, E model dim, V rows
 * of a table. */
#pragma once

#include "ops/graph_args.h"
#include "ops/loss_rule.h"
#include "ops/mask_rule.h"
#include "ops/optimizer_rule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct backend backend;

typedef enum { ACT_F32, ACT_BF16, ACT_F16 } act_type;

/* The counters of a dropout's random numbers, which are the same on any backend, in any batch, on
 * any rank.  Element (row i, column c) uses word c % 4 of rng_draw(key, position[i], user[i], step,
 * site << 16 | c / 4); it is kept if rng_uniform(word) >= rate, and then scaled by 1 / (1 - rate).
 */
typedef struct dropout {
    float rate; /* 0: off, and the rest is not read */
    rng_key key;
    const uint32_t *step;     /* (1) */
    uint32_t site;            /* which dropout of the model, < 65536 */
    const uint32_t *user;     /* (rows) */
    const uint32_t *position; /* (rows) */
} dropout;

/* Further rows that a gather can read, in an array of another stride: those of the indices from
 * `from` on. */
enum { GATHER_FAR = 4 };
typedef struct gather_far {
    const float *rows; /* (n, stride), of which the first dim columns are read */
    int64_t stride;    /* floats */
    int32_t from;
} gather_far;

/* Moments of rows (n, dim), of consecutive columns, `width` (the last: what is left) at a time: for
 * each row and part the sum, and the sum of squared deviations from the part's mean. */
typedef struct row_moments {
    float *parts;   /* (n, parts, 2), room for parts of MOMENTS_WIDTH columns */
    int32_t width;  /* at least MOMENTS_WIDTH, or the whole row; 0: not known */
    const void *of; /* the rows */
} row_moments;

enum { MOMENTS_WIDTH = 64 };

/* Rows of other arrays that a gather clears: those whose other_index is negative. */
typedef struct gather_blank {
    int32_t n_arrays, dim;
    void *rows[2]; /* (n_arrays) of (n, dim) act */
} gather_blank;

/* y[i] = scale * table[index[i]] + other[other_index[i]] + more[more_index[i]], rows of `dim`
 * elements, then dropout.  A negative index reads as a row of zeros; other and more may be NULL.
 * With is_act the table holds rows of activations, to select tokens. */
typedef struct gather_args {
    int64_t n; /* rows of y */
    int32_t dim;
    bool is_act;
    const float *table;         /* (V, dim); with is_act a cast pointer to act */
    gather_far far[GATHER_FAR]; /* (n_far), ascending; not with is_act */
    int32_t n_far;
    const int32_t *index; /* (n) */
    float scale;
    const float *other;         /* (P, dim) or NULL */
    const int32_t *other_index; /* (n) */
    const float *more;          /* (A, dim) or NULL */
    const int32_t *more_index;  /* (n) */
    dropout drop;
    void *y;              /* (n, dim) act */
    row_moments *moments; /* those of y, if the backend has them at no cost; or NULL */
    gather_blank blank;   /* not without `other` */
} gather_args;

/* Which rows of y came from which row of a table: rows of y grouped by index, in order, so that
 * sums are deterministic.  `group` writes it to memory of the caller. */
typedef struct row_groups {
    int64_t n;      /* rows of y */
    int32_t n_rows; /* V */
    int32_t *order; /* (n): rows of y sorted by table row, without negative indices */
    int32_t *begin; /* (V + 1): table row r owns order[begin[r]] .. order[begin[r + 1] - 1] */
} row_groups;

/* grad[r] += scale * sum over i in group r of dropped(dy[i]), with the same dropout as the gather.
 * With is_act, grad holds rows of activations. */
typedef struct scatter_args {
    row_groups groups;
    int32_t dim;
    float scale;
    const void *dy; /* (n, dim) act */
    dropout drop;
    bool is_act;
    float *grad; /* (V, dim); with is_act a cast pointer to act */
} scatter_args;

typedef enum {
    EPILOGUE_NONE,
    EPILOGUE_SILU,
    EPILOGUE_RELU,
    EPILOGUE_GELU,      /* z Phi(z), by erf */
    EPILOGUE_GELU_TANH, /* z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) */
    EPILOGUE_TANH
} epilogue;

/* z = x W + bias (+ residual), y = f(z).  W is (n_in, n_out), or (n_out, n_in) if is_transposed.
 * With f = NONE, y = z and z is not used. */
typedef struct linear_args {
    int64_t n; /* rows */
    int32_t n_in, n_out;
    bool is_transposed;
    epilogue f;
    const void *x; /* (n, n_in) act */
    const float *w;
    const float *bias;    /* (n_out) or NULL */
    const void *residual; /* (n, n_out) act or NULL */
    void *z;              /* (n, n_out) act: kept for the backward pass, or NULL: not kept */
    void *y;              /* (n, n_out) act */
    /* backward: dz = dy f'(z) is formed in place of dy */
    void *dy;     /* (n, n_out) act */
    void *dx;     /* (n, n_in) act, or NULL where nothing needs it */
    bool adds_dx; /* dx += instead of = */
    float *dw;    /* as w */
    float *dbias; /* (n_out) or NULL */
} linear_args;

/* The forward pass of inference.  A weight that no longer changes is packed once: linear_pack
 * writes w and bias into `packed` in the form that the backend's products read, panels on the CPU
 * and the type of the activations on a GPU.  linear_packed then gives the result of linear_fwd and
 * does not read w; that bias is not NULL says that there is one, and the CPU reads its values. */
typedef struct linear_packed_args {
    linear_args layer;
    void *packed; /* linear_packed_bytes bytes */
    /* on a GPU: which of cuBLASLt's kernels for this shape, in the order in which it recommends
     * them, the last one where it has fewer; LINEAR_FASTEST or LINEAR_SINGLE.  Of own kernels, from
     * 1 on, which tile; otherwise the one that should be fastest */
    int32_t kernel;
    /* or NULL: then op kv_put, of columns of y: its k and v are in the first row of y, its strides
     * n_out */
    const struct kv_put_args *put;
    /* or NULL: x is y of this norm, which linear_packed forms first, or does not form at all;
     * linear_pack, which must be given the same weight and bias, may make them part of W */
    const struct norm_args *norm;
    row_moments *moments; /* or NULL: those of y, if the backend has them at no cost */
    bool is_fp8; /* products of 8-bit floats; `packed` has linear_fp8_bytes more at its end */
} linear_packed_args;

/* With is_fp8 rows of x, and columns of W with the norm's weight in it, are rounded to e4m3
 * (base/half.h) with a scale each, by which their largest number becomes 448; sums are float32.  A
 * number that is not finite makes its row of y NaN.  The CPU always rounds, and computes in
 * float32, so that it has the errors of a GPU.  A GPU multiplies in bfloat16 where that is faster,
 * as for few rows, and where 8 bits cannot: sides must be multiples of 16 and 8.  Cards without
 * these products refuse linear_pack (ERR_UNSUPPORTED). */
#define LINEAR_FP8_LEAST 1e-30f /* the largest number of a row counts as at least this */
static inline size_t linear_fp8_bytes(int32_t n_in, int32_t n_out) {
    return (((size_t)n_in * (size_t)n_out + 255) & ~(size_t)255) + (size_t)n_out * sizeof(float);
}

/* On a GPU: products of 8 bits for any number of rows, for tests. */
enum { LINEAR_FP8_ALWAYS = -3 };

/* The kernels are timed when a shape is first seen, and the fastest is taken from then on.  Which
 * one that is, and so the last bits of a result, may differ from run to run; in deterministic mode,
 * and while steps are recorded, it is the first of the order. */
enum { LINEAR_FASTEST = -1 };

/* The first of them that is a single kernel: some clear memory beforehand, which costs inference 3
 * us.  Nothing is timed. */
enum { LINEAR_SINGLE = -2 };

/* y = (x - mean) rstd (* weight + bias); statistics over `dim`, biased variance.  With is_rms the
 * mean counts as 0, so that rstd = 1 / sqrt(mean of x^2 + eps); a norm of linear_packed_args has no
 * is_rms. */
typedef struct norm_args {
    int64_t n;
    int32_t dim;
    bool is_rms;
    float eps;
    const void *x;          /* (n, dim) act */
    const float *weight;    /* (dim) or NULL: no affine */
    const float *bias;      /* (dim) or NULL */
    void *y;                /* (n, dim) act */
    float *mean, *rstd;     /* (n) each, kept for the backward pass */
    const void *dy;         /* (n, dim) act */
    void *dx;               /* (n, dim) act */
    bool adds_dx;           /* dx += instead of dx = : dx already holds the residual's gradient */
    float *dweight, *dbias; /* (dim) or NULL */
    /* norm of linear_packed_args, or NULL: of x, if they are known */
    const row_moments *moments;
} norm_args;

/* y = norm(x + shift + residual) in one pass, for inference: norm as above, with weight and bias.
 * shift is the bias of the dense layer that made x. */
typedef struct residual_norm_args {
    int64_t n;
    int32_t dim;
    float eps;
    const void *x;        /* (n, dim) act */
    const float *shift;   /* (dim) or NULL */
    const void *residual; /* (n, dim) act or NULL */
    const float *weight;  /* (dim) */
    const float *bias;    /* (dim) */
    void *y;              /* (n, dim) act; may be x or residual */
} residual_norm_args;

/* A dense layer without bias and activation, and then the norm of the sum: norm.x is the layer's y,
 * whose contents are undefined afterwards, and norm.shift the layer's bias. */
typedef struct linear_norm_args {
    linear_packed_args linear;
    residual_norm_args norm;
} linear_norm_args;

/* Of a gate whose rows are cut over ranks.  `dim` and all columns of gate_args are then those of
 * this rank's part, and the norm is over the parts of all ranks: each pass has two halves, and
 * between them the caller exchanges two numbers a row.
 *
 * Forward: the first half writes mean and variance of the part to this rank's place in `moments`;
 * the parts' moments are gathered; the second half makes mean and rstd of them, then y.
 * Backward: with g the gradient of the normalised row, the first half writes du, adds to dweight
 * and dbias, and leaves sum(g) and sum(g (o - mean)) in `sums`; these are summed over the ranks;
 * the second half makes d_o, which must not be touched in between.  A GPU wants a dim that is a
 * multiple of 8. */
typedef struct gate_cut {
    int32_t part, n_parts; /* all of the same dim */
    bool is_second;        /* which half */
    float *moments;        /* (n_parts, n, 2) */
    float *sums;           /* (n, 2) */
} gate_cut;

/* y = dropped( u * norm(o) ): the gate after the attention; norm as above, over dim = H D. */
typedef struct gate_args {
    int64_t n;
    int32_t dim;
    bool is_rms; /* of norm_args; not of rows that are cut over ranks, nor inside the attention */
    float eps;
    const void *o;       /* (n, dim) act */
    const void *u;       /* rows of dim, stride_u apart, act */
    int64_t stride_u;    /* elements between rows of u and du */
    const float *weight; /* (dim) or NULL */
    const float *bias;   /* (dim) or NULL */
    dropout drop;
    void *y;                /* (n, dim) act */
    float *mean, *rstd;     /* (n) each */
    const void *dy;         /* (n, dim) act */
    void *d_o;              /* (n, dim) act */
    void *du;               /* rows of dim, stride_u apart, act */
    float *dweight, *dbias; /* (dim) or NULL */
    const gate_cut *cut;    /* NULL: rows are whole */
} gate_args;

/* Gated linear units, and residuals behind a gate:
 *     y = f(a) * dropped(b) (+ residual)
 * Backward: da = dy f'(a) dropped(b), db = dropped(dy f(a)), where da may be a and db may be b; the
 * gradient of the residual is dy itself. */
typedef enum { GLU_SILU, GLU_SIGMOID } glu_kind;
typedef struct glu_args {
    glu_kind f;
    int64_t n;
    int32_t dim;
    const void *a, *b;    /* rows of dim act, stride apart */
    int64_t stride;       /* elements; that of da and db, too */
    const void *residual; /* (n, dim) act or NULL */
    dropout drop;
    void *y;        /* (n, dim) act */
    const void *dy; /* (n, dim) act */
    void *da, *db;  /* as a and b */
} glu_args;

/* y = dropped(x) (+ residual), in place allowed; the backward pass is the same with dy for x and no
 * residual.  With is_path all tokens of a user are kept or dropped together (stochastic depth): the
 * factor is that of column 0 at position DROP_PATH, which no token has. */
enum { DROP_PATH = -1 };
typedef struct dropout_args {
    int64_t n;
    int32_t dim;
    const void *x;        /* (n, dim) act */
    const void *residual; /* (n, dim) act or NULL */
    void *y;              /* (n, dim) act */
    dropout drop;
    bool is_path;
} dropout_args;

/* y = x / max(|x|, eps) for each row. */
typedef struct l2_args {
    int64_t n;
    int32_t dim;
    bool is_f32; /* x and y are float32 whatever act is: rows of a table; forward only */
    float eps;
    const void *x;  /* (n, dim) act */
    void *y;        /* (n, dim) act */
    float *scale;   /* (n): 1 / max(|x|, eps), kept for the backward pass */
    const void *dy; /* (n, dim) act */
    void *dx;       /* (n, dim) act */
} l2_args;

/* The head of a ranking model, forward alone: rows of x are chosen, scaled to length 1, and mapped
 * by two dense layers,
 *
 *     y[i] = two(one( x[t] / max(|x[t]|, eps) )), t = index[i]
 *
 * a negative index reads as zeros.  What is in the room afterwards, and in z and y of `one`, is
 * undefined.  A GPU may read the values of both biases and w of `two`. */
typedef struct head_args {
    int64_t n;
    int32_t dim;
    float eps;
    const void *x;               /* (T, dim) act */
    const int32_t *index;        /* (n), or NULL: all rows of x in order */
    void *chosen;                /* (n, dim) act, room; not used without an index */
    float *scale;                /* (n), room */
    void *normed;                /* (n, dim) act, room: x of the first layer */
    linear_packed_args one, two; /* x of two is y of one */
} head_args;

typedef enum { BIAS_NONE, BIAS_TABLE, BIAS_TIME } attn_bias;

enum { ATTN_TIME_BUCKETS = 128 };

/* Keys and values of earlier tokens, kept in pages of page_len rows (op kv_put writes them): key j
 * of sequence b is row j % page_len of page table[b][j / page_len], for the first Lk - n keys,
 * where n = offsets_k[b + 1] - offsets_k[b] is the number of its rows in k and v. */
typedef struct attn_pages {
    const int32_t *table; /* (B, max_pages); NULL: there are no pages */
    const int32_t
        *offsets; /* (B + 1): Lk = offsets[b + 1] - offsets[b]; key_time is laid out by it */
    int32_t page_len, max_pages;
    int32_t n_pages;   /* pages there are; 0: not known on the host */
    const void *k, *v; /* row r of page p: (H, D) act at p * stride + r * H D */
    int64_t stride;    /* elements between pages */
} attn_pages;

/* HSTU attention over jagged sequences; per sequence and head, with i the query's place among the
 * keys (i = query row + Lk - Lq):
 *     a[i, j] = M[i, j] silu(alpha (q_i . k_j + bias[i, j])) * scale,    out_i = sum_j a[i, j] v_j
 * Nothing of size length x length is stored; the backward pass recomputes a.
 *
 * M is 1 where i - window_left <= j <= i + window_right (negative: no bound).  Contexts and targets
 * change that (they need window_left < 0, window_right = 0); with c = n_contexts[b], t =
 * n_targets[b], h = Lk - t:
 *     i < c:   every j < h is seen too
 *     i >= h:  the columns h <= j < h + ((i - h) / target_group) target_group are not seen
 * With func, M is instead 1 where j < func[0][row] or func[2m-1][row] <= j < func[2m][row], with
 * row the row of the jagged queries.
 *
 * bias:
 *     BIAS_TABLE  table[b][head or 0][i][j], rows and columns table_len apart
 *     BIAS_TIME   position_w[N - 1 + j - i] + time_w[bucket(query_time[i] - key_time[j])], shared
 *                 by all heads; bucket(d) = min(128, trunc(ln(max(|d|, 1)) / 0.301)), in float32
 *
 * With pages.table the first keys of a sequence are rows of pages, and the rows of k and v are
 * those that follow: it is the attention over both, one after the other.  Forward only. */
typedef struct attn_args {
    int32_t n_sequences, n_heads, dim_qk, dim_v;
    int32_t max_len_q, max_len_k;         /* no sequence is longer */
    int64_t n_rows_q, n_rows_k;           /* rows of the jagged arrays; 0: not known on the host */
    const int32_t *offsets_q, *offsets_k; /* (B + 1) each; the same where Lq = Lk */
    const void *q, *k, *v;                /* rows of (H, D) act */
    int64_t stride_q, stride_k, stride_v; /* elements between rows; those of dq, dk, dv too */
    attn_pages pages;
    void *out;          /* rows of (H, dim_v) act */
    int64_t stride_out; /* that of dout too */
    /* Sequences and masks are those of the last forward call, but for queries that may be left out,
     * and so are the pages' table and offsets: what was made of them can be used again, and they,
     * and the keys in pages, can be read before the kernels since that call are complete. */
    bool is_repeated;
    /* forward, or NULL: then op gate_fwd, of `out`; what is left in `out` is undefined, and so are
     * y and the statistics of rows that belong to no sequence */
    const struct gate_args *gate;
    float alpha, scale;
    int32_t window_left, window_right;
    const int32_t *n_contexts, *n_targets; /* (B) or NULL */
    int32_t target_group;                  /* >= 1 */
    const int32_t *func;                   /* (n_func, func_stride) or NULL */
    int32_t n_func;                        /* odd */
    int64_t func_stride;
    const struct attn_func_tile *func_tiles; /* a backend's own (attn_mask.h); callers: NULL */
    attn_bias bias;
    const void *table;                    /* (B, table_heads, table_len, table_len) act */
    int32_t table_heads, table_len;       /* heads: 1 or H */
    const float *position_w;              /* (2 bias_len - 1) */
    const float *time_w;                  /* (129) */
    int32_t bias_len;                     /* N */
    const int64_t *query_time, *key_time; /* (Tq), (Tk): seconds */
    const void *dout;                     /* rows of (H, dim_v) act */
    void *dq, *dk, *dv;
    float *dtable;                /* as table, added to; or NULL */
    float *dposition_w, *dtime_w; /* added to */
} attn_args;

/* The three channels of FuXi's attention, maps of the same values.  Rows of out are (H, 3, dim_v):
 *     out[i, h, 0] = sum_j M[i, j] position_w[N - 1 + j - i] v_j
 *     out[i, h, 1] = sum_j M[i, j] time_w[bucket(query_time[i] - key_time[j])] v_j
 *     out[i, h, 2] = sum_j M[i, j] silu(alpha q_i . k_j) * scale v_j
 * with M, N, buckets and pages as above.  In `of` bias is BIAS_TIME, there is no func and no gate,
 * and n_rows_q is known; dout has the rows of out. */
typedef struct attn_channels_args {
    attn_args of;
    void *third; /* (Tq, H dim_v) act, room: the third channel; backward its gradient */
} attn_channels_args;

/* The attention of the third channel. */
static inline attn_args attn_channels_third(const attn_channels_args *a) {
    attn_args third = a->of;
    third.bias = BIAS_NONE;
    third.stride_out = (int64_t)third.n_heads * third.dim_v;
    third.out = a->third;
    third.dout = a->third;
    return third;
}

/* Writes keys and values to pages (attn_pages): row i of k and v to row slot[i] % page_len of page
 * slot[i] / page_len; a negative slot: nowhere.  No two rows have the same slot. */
typedef struct kv_put_args {
    int64_t n; /* rows */
    int32_t dim_k, dim_v, page_len;
    const void *k, *v; /* rows of dim_k and dim_v act */
    int64_t stride_k, stride_v;
    const int32_t *slot;     /* (n) */
    void *pages_k, *pages_v; /* row r of page p: at p * stride + r * dim */
    int64_t stride;
} kv_put_args;

/* Keys and values as 8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa, at most 448), with a
 * power of two for each row and head: the smallest one with which its largest number is at most
 * 448. KV_ROUND    rows of k and v become the nearest such numbers, in place KV_PACK     wide page
 * i, of numbers that are rounded so, becomes narrow page page[i] KV_UNPACK   and back What was
 * packed is unpacked as it was, bit for bit.  A narrow page has page_len rows of H dim_qk bytes,
 * then as many of H dim_v, then the int8 exponents: (page_len, H) of keys, and of values. */
typedef enum { KV_ROUND, KV_PACK, KV_UNPACK } kv_fp8_kind;
typedef struct kv_fp8_args {
    kv_fp8_kind kind;
    int32_t n_heads, dim_qk, dim_v;
    int64_t n;   /* rows, of KV_ROUND */
    void *k, *v; /* rows of (H, D) act */
    int64_t stride_k, stride_v;
    int32_t n_pages, page_len; /* of the others */
    const int32_t *page;       /* (n_pages): different ones */
    void *pages_k, *pages_v;   /* wide: row r of page i at i * stride + r * H D, act */
    int64_t stride;
    uint8_t *narrow; /* page p at p * kv_fp8_page_bytes */
} kv_fp8_args;

/* Bytes of a narrow page: a multiple of 16. */
static inline int64_t kv_fp8_page_bytes(int32_t page_len, int32_t n_heads, int32_t dim_qk,
                                        int32_t dim_v) {
    int64_t bytes = (int64_t)page_len * n_heads * (dim_qk + dim_v + 2);
    return (bytes + 15) / 16 * 16;
}

/* Copies pages of one layer between the device and the host: out[i].device to out[i].host, in
 * order, then in[i].host to in[i].device.  Stage 0 begins when all ops that were called before are
 * done, every other stage after the one before it. */
typedef struct kv_move {
    int32_t device, host;
} kv_move;
enum { KV_MOVE_STAGES = 64 };
typedef struct kv_move_args {
    int stage; /* what kv_wait waits for: below KV_MOVE_STAGES */
    size_t page_bytes;
    void *device, *host;     /* page p at p * page_bytes; host by host_alloc */
    const kv_move *out, *in; /* host memory */
    int32_t n_out, n_in;
} kv_move_args;

enum { SOFTMAX_ATTN_MAX_DIM = 256 };

/* Softmax attention under any mask (mask_rule.h), over jagged sequences:
 *     p = softmax_j(alpha q_i . k_j) over the keys that i sees,    out_i = sum_j dropped(p)[i, j]
 * v_j A row that sees no key has out = 0.  Nothing of size length x length is stored; the backward
 * pass recomputes p and takes delta_i = out_i . dout_i.  The dropout of weight (head h, i, j) uses
 * the counters of row i with column h * max_len + j.
 *
 * With silu_scale not 0 the weights are those of HSTU instead, p = silu_scale silu(alpha q_i .
 * k_j): a row needs no sum, log_sum is neither written nor read, and out is not read. */
typedef struct softmax_attn_args {
    int32_t n_sequences, n_heads, dim; /* D: 1 to 256 */
    int32_t max_len;
    int64_t n_rows;         /* of the jagged arrays; 0: not known on the host */
    const int32_t *offsets; /* (B + 1) */
    mask_view mask;         /* zero: no mask; lists are needed unless mask_rule_is_span */
    const void *q, *k, *v;  /* rows of (H, D) act */
    int64_t stride_q, stride_k, stride_v;
    void *out; /* rows of (H, D) act */
    int64_t stride_out;
    float alpha;
    dropout drop;
    float *log_sum; /* (T, H): ln sum_j exp(alpha q_i . k_j), kept for the backward pass; -infinity
                       for a row without keys.  Forward: may be NULL */
    const void *dout;
    void *dq, *dk, *dv;
    float silu_scale; /* 0: softmax; > 0 */
} softmax_attn_args;

/* index[m][r] = pool[ below(n_pool) ], or below(n_pool) itself where pool is NULL; word r % 4 of
 * rng_draw(key, position[m], user[m], step, r / 4). */
typedef struct negatives_args {
    int64_t n; /* rows */
    int32_t n_negatives;
    int32_t n_pool;
    const int32_t *pool; /* (n_pool) or NULL */
    rng_key key;
    const uint32_t *step;            /* (1) */
    const uint32_t *user, *position; /* (n) */
    int32_t *index;                  /* (n, n_negatives) */
} negatives_args;

/* Sampled softmax, forward and backward in one op: with l2(e) = e / max(|e|, eps) if normalises,
 * else e,
 *     s_0 = query . l2(table[positive]) / temperature,
 *     s_r = query . l2(table[negative_r]) / temperature, or -50000, without gradient, where
 *           row_id[negative_r] == row_id[positive] (row numbers where row_id is NULL),
 *     loss = ln sum_r exp(s_r) - s_0, summed over rows.
 * A row whose positive is negative has loss 0 and dquery 0, and adds nothing to dtable.  No buffer
 * of (rows, negatives, dim) exists.
 *
 * log_q, of every row of the table, corrects for how often rows are drawn: it is subtracted from
 * s_r, and from s_0 too if corrects_positive.
 *
 * The other losses are binary: with softplus(x) = ln(1 + e^x), and A the negatives that count,
 *     loss = (beta softplus(-s_0) + sum over A of softplus(s_r)) / (R + 1).
 * PAIRS_BCE counts the negatives that are not the positive; a row that has none is left out, like
 * one without a positive.  PAIRS_GBCE counts all. */
typedef enum { PAIRS_SOFTMAX, PAIRS_BCE, PAIRS_GBCE } pairs_loss;

typedef struct sampled_softmax_args {
    int64_t n;               /* rows: loss positions */
    int32_t n_negatives;     /* R */
    int32_t dim;             /* E */
    int32_t n_rows;          /* V of the table */
    const void *query;       /* (n, E) act */
    const float *table;      /* (V, E) */
    const int32_t *row_id;   /* (V) or NULL */
    const int32_t *positive; /* (n): rows of the table */
    const int32_t *negative; /* (n, R) */
    bool normalises;
    float eps, temperature;
    pairs_loss kind;
    float beta;              /* of the binary losses */
    const float *log_q;      /* softmax: (V) or NULL */
    bool corrects_positive;  /* where there is log_q */
    const float *grad_scale; /* (1): 1 / loss positions of the whole step, say */
    float *row_loss;         /* (n) or NULL */
    double *loss;            /* (1): the sum, added to */
    void *dquery;            /* (n, E) act, or NULL: no gradients at all */
    float *dtable;           /* (V, E), added to */
    void *scratch;           /* sampled_softmax_scratch bytes */
} sampled_softmax_args;

/* Softmax over a list of items that all rows share, forward and backward in one op: with l2 as
 * above and z(m, c) = query_m . l2(table[item_c]) / temperature,
 *     s_c = z(m, c) - log_q[c] + log_count[c], but without log_count where item_c is the positive,
 *     loss = ln sum_c exp(s_c) - (1 - smoothing) s_positive - smoothing mean_c s_c,
 * summed over rows.  log_count counts an item that stands for several equal ones, such as labels of
 * a batch, of which the positive is one and the others are no negatives of it.  Rows without a
 * positive are as above.  The scores exist for FULL_SOFTMAX_ROWS rows by FULL_SOFTMAX_ITEMS items
 * at a time; longer lists are computed twice. */
enum { FULL_SOFTMAX_ROWS = 2048, FULL_SOFTMAX_ITEMS = 4224 };
typedef struct full_softmax_args {
    int64_t n;                      /* rows: loss positions */
    int32_t dim;                    /* E */
    int32_t n_rows;                 /* V of the table */
    int32_t n_items;                /* C of the list */
    const void *query;              /* (n, E) act */
    const float *table;             /* (V, E) */
    const int32_t *item;            /* (C): rows of the table, ascending, or NULL: all V */
    const float *log_q, *log_count; /* (C) or NULL */
    const int32_t *positive;        /* (n): rows of the table, which are in the list */
    bool normalises;
    float eps, temperature, smoothing;
    const float *grad_scale; /* (1) */
    float *row_loss;         /* (n) or NULL */
    double *loss;            /* (1): the sum, added to */
    void *dquery;            /* (n, E) act, or NULL: no gradients at all */
    float *dtable;           /* (V, E), added to */
    void *scratch;           /* full_softmax_scratch bytes */
} full_softmax_args;

/* Losses of a ranking head.  is_bits: the loss of a row is the sum over tasks k of the binary cross
 * entropy of logit k with bit k of the label; else the cross entropy over the columns, with the
 * label as class.  A row with a negative label has losses and gradients 0. */
typedef struct logits_loss_args {
    int64_t n;
    int32_t n_columns;
    bool is_bits;
    const void *logits;      /* (n, n_columns) act */
    const int32_t *label;    /* (n) */
    const float *grad_scale; /* (1) */
    float *losses;           /* (n, n_columns) for bits, (n) for classes; or NULL */
    double *loss;            /* (1): the sum, added to */
    void *dlogits;           /* (n, n_columns) act, or NULL */
} logits_loss_args;

/* Uses of rows of a table: index[i] + first is a row; a negative index is none. */
typedef struct row_uses {
    int64_t n;
    int32_t *index;
    int32_t first;
} row_uses;

/* Lists the distinct rows that are used: rows = these rows, ascending, then -1; and every index
 * that is not negative becomes the number of its row in the list. */
enum { LIST_ROWS_USES = 3 };
typedef struct list_rows_args {
    int32_t n_table; /* rows of the table */
    int n_uses;
    row_uses use[LIST_ROWS_USES]; /* (n_uses) */
    int32_t *rows;                /* (all n of the uses) */
    int32_t *n;                   /* (1): how many are listed */
} list_rows_args;

/* Missed steps of a table's rows (optimizer_rule.h).  Steps are numbered from the last time that no
 * row had missed any, number 0; numbers of rows are floats, as checkpoints have them. */
enum { LATE_STEPS = 1024, LATE_RULE = 3 };
typedef struct late_rows {
    float *last;          /* (V): the step of each row's last update; NULL: rows miss no steps */
    missed_sums *sums;    /* (LATE_STEPS + 1): from each step up to now, */
    missed_steps *missed; /* (LATE_STEPS + 1): and what they do to a row */
    float *rules;         /* (LATE_STEPS + 1, LATE_RULE): decay, rate, root of each; skipped: 1, 0,
                             0 */
} late_rows;

OPTIMIZER_FN const missed_steps *late_missed(const late_rows *late, int64_t row) {
    return &late->missed[(int)late->last[row]];
}

/* Every step up to now - 1 was missed by who was updated before it, and number now is new: with
 * *grad_scale = 0 (NULL: 1) the step was skipped, and nobody missed it.  now = 0: all begin. */
typedef struct late_step_args {
    late_rows late;
    int32_t now;
    optimizer_rule rule;
    const float *grad_scale;
} late_step_args;

/* y[i] = the weights of row rows[i] (NULL: i) after its missed steps; -1: zeros.  With y NULL the
 * rows and their moments are themselves brought up to date. */
typedef struct read_rows_args {
    int64_t n;
    int32_t dim;
    const int32_t *rows; /* (n) or NULL */
    late_rows late;
    float *w, *m, *v; /* (V, dim) each; m, v: with late.last */
    float *y;         /* (n, dim) or NULL */
} read_rows_args;

/* One update of a weight by its optimizer (optimizer_rule.h), with g = grad * *grad_scale (NULL:
 * 1). Gradients that were used are zeroed.  Where *grad_scale is 0 the step is skipped: nothing is
 * updated, the gradient is zeroed.  With `marks` only the rows of `dim` whose mark is not 0 are
 * touched (lazy), and their marks are zeroed; else all n elements.  With `rows`, grad is that of
 * the listed rows, which alone are updated, after the steps that they missed; it is not zeroed. */
typedef struct update_args {
    opt_kind kind;
    int64_t n;               /* numbers of grad in all */
    int32_t dim;             /* of a row */
    uint8_t *marks;          /* (n / dim), or NULL */
    const int32_t *rows;     /* (n / dim): different rows, or -1; or NULL */
    late_rows late;          /* with rows */
    int32_t now;             /* the number of this step for late rows */
    float *w, *grad, *m, *v; /* (n) each, or (V, dim) with rows, but for grad; s is stored in m, one
                                float a row for rowwise adagrad */
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* t, from 1 */
    const float *grad_scale;
} update_args;

/* The exponential moving average of a weight: average += (1 - decay) (w - average). */
typedef struct average_args {
    int64_t n;
    float *w, *average; /* (n) */
} average_args;

/* The factor of an update, from the sum of squares of its gradient: with norm = base sqrt(sum),
 * factor = base min(1, clip / norm) (clip <= 0: base), or 0 where the sum is not finite. */
typedef struct grad_factor_args {
    const double *sum; /* (1) */
    float base, clip;
    float *factor; /* (1) */
    double *norm;  /* (1) or NULL */
} grad_factor_args;

/* A sparse matrix by rows: row i has the elements begin[i] .. begin[i + 1] - 1. */
typedef struct sparse_rows {
    int32_t n;
    const int32_t *begin; /* (n + 1) */
    const int32_t *index; /* columns */
    const float *weight;
} sparse_rows;

/* Rows of items made of what is known of them:
 *
 *     y[i] = own[i] + sum over its values k of weight[k] table[index[k]] + vector[i] W
 *
 * own[i] is left out where has_own[i] is 0, and at random: it is kept if rng_uniform of the first
 * word of rng_draw(key, i, step, 0, 0) >= rate.  Backward: adds to dtable and dw, then clears the
 * rows of dy whose own row was left out, so that dy is the gradient of own. */
typedef struct content_args {
    int32_t n, dim;
    sparse_rows values;     /* (n, rows of the table) */
    const float *vector;    /* (n, n_vector) */
    int32_t n_vector;       /* 0: no vectors */
    const uint8_t *has_own; /* (n) */
    float rate;
    rng_key key;
    uint32_t step;
    const float *own;       /* (n, dim) */
    const float *table, *w; /* (rows, dim), (n_vector, dim) */
    float *y;               /* (n, dim) */
    /* backward: the transpose of values is items times pieces, because a value may have many items,
     * and sums of pieces of them run beside each other */
    sparse_rows pieces, items; /* (n_pieces, n), (rows, n_pieces) */
    float *sums;               /* (n_pieces, dim), scratch */
    float *dy;                 /* (n, dim) */
    float *dtable, *dw;
} content_args;

RNG_FN bool content_keeps(const content_args *a, int32_t i) {
    if (!a->has_own[i]) return false;
    return a->rate == 0 ||
           rng_uniform(rng_draw(a->key, (uint32_t)i, a->step, 0, 0).word[0]) >= a->rate;
}

/* A corpus in 8 bits, for op `rank` on the CPU: what rules most rows out before their float32 rows
 * are read.
 *
 * Row r is about scale[r] * (its 8-bit numbers), and error[r] bounds the length of the difference,
 * with the rounding of float32 products included: the float32 score of a query differs from the
 * score by these numbers by at most |query| * error[r].  A row whose score by them is lower than
 * the k-th best so far by more than that is none of the k best; all others are scored again by
 * their float32 rows.  The result is the same, bit for bit; a row that cannot be bounded (infinite,
 * not a number) is always scored again. */
enum { RANK_INT8_GROUP = 32 }; /* rows that are scored together */

typedef struct rank_int8 {
    int8_t *rows;         /* (groups, dim, RANK_INT8_GROUP): zeros after the last row */
    float *scale, *error; /* (groups * RANK_INT8_GROUP) */
} rank_int8;

/* Of (n, dim) rows in host memory; workers may be NULL. */
status rank_int8_init(rank_int8 *r, const float *rows, int64_t n, int32_t dim, pool *workers);
void rank_int8_fini(rank_int8 *r); /* zeros, too */

size_t rank_int8_bytes(int64_t n, int32_t dim);

/* y = f(z[:, :dim]) z[:, dim:], f being SiLU or GELU (erf). */
typedef struct mol_glu_args {
    int64_t n;
    int32_t dim;
    epilogue f;
    const void *z; /* (n, 2 dim) act */
    void *y;       /* (n, dim) act */
    const void *dy;
    void *dz;
} mol_glu_args;

/* Mixture of logits: which rows the pairs of a loss and the tables of users read.
 *     item[i, j] = negative[i, j], and positive[i] for j = R; user_row[t, i] = user[i] mod hash[t]
 *     + 1, of tables MOL_USERS at most; -1 for MOL_NOBODY
 * and -1 for all of a row whose positive is negative. */
enum { MOL_USERS = 4 };
#define MOL_NOBODY UINT32_MAX
typedef struct mol_index_args {
    int64_t n;
    int32_t n_negatives; /* R */
    const int32_t *negative;
    const int32_t *positive; /* (n), or NULL: none is negative */
    int32_t *item;           /* (n, R + 1), or NULL */
    int32_t n_user;
    uint32_t hash[MOL_USERS];
    const uint32_t *user;
    int32_t *user_row; /* (n_user, user_stride) */
    int64_t user_stride;
} mol_index_args;

/* Pairs of n queries with n_each items each.  A query has P_Q component vectors, of which the last
 * n_user are of tables of users, an item P_X, all of d numbers; with P = P_Q P_X
 *     s[p P_X + r] = query_p . item_r / temperature
 *     g = query_gate * item_gate + pair_gate
 *     gate = dropped(softmax over P of g sigmoid(g)), divided by max(its sum, 1e-6)
 *     sim = sum over P of gate * s
 *     pair_gate = W2 silu(W1 dropped(s) + b1) + b2
 * Pair (i, j) has the item item[i, j], or j where item is NULL; a negative one reads as zeros and
 * has no gradient.  The column of a dropout is that of (first_pair + j, P).
 *
 * mol_pairs_fwd writes sim and gate; mol_pairs_bwd, after it with the same room, writes dquery,
 * duser and dquery_gate and adds to ditem, ditem_gate and the gradients of the MLP.  Where balance
 * is not 0, the last pair of each query has the gradient of the balance loss, too (mol_balance):
 * grad_scale balance n mi.  A GPU computes pairs in registers and needs no room. */
typedef struct mol_room {
    float *s_dropped; /* (n, n_each, P); NULL without a dropout: s is read instead */
    float *z, *y;     /* (n, n_each, hidden) */
    float *pair_gate; /* (n, n_each, P) */
    float *ds, *dpair_gate, *ds_dropped;
    float *dy; /* (n, n_each, hidden) */
} mol_room;

typedef struct mol_args {
    int64_t n;
    int32_t n_each, first_pair, n_items;
    const int32_t *item;                  /* (n, n_each) */
    int32_t n_query, n_user, n_item, dim; /* P_Q, those of users included; P_X; d */
    float temperature;
    const void *query; /* (n, P_Q - n_user, d) act */
    const void *user;  /* (n_user, user_stride, d) act */
    int64_t user_stride;
    const void *items;      /* (n_items, P_X, d) act */
    const void *query_gate; /* (n, P) act */
    const void *item_gate;  /* (n_items, P) act */
    int32_t pair_hidden;
    const float *pair_w[2], *pair_b[2]; /* (hidden, P), (P, hidden); their rows */
    dropout drop_pair, drop_gate;
    float *s; /* (n, n_each, P), or NULL on a GPU */
    mol_room room;
    float *sim; /* pair (i, j) at i sim_row + j sim_pair */
    int64_t sim_row, sim_pair;
    float *gate;       /* (n, n_each, P) or NULL */
    const float *dsim; /* (n, n_each) */
    const float *mean; /* (P): of mol_balance */
    float balance;
    const float *grad_scale; /* (1) */
    row_groups groups;       /* of the pairs by item */
    void *dquery, *duser, *dquery_gate;
    float *ditem, *ditem_gate, *dpair_w[2], *dpair_b[2];
} mol_args;

/* mean = that of the gates (n, P) of the rows whose item is not negative, N of them, and
 *     mi = sum over P of mean log(mean + 1e-6) - (1 / N) sum over rows, P of gate log(gate + 1e-6),
 * of which weight N mi is added to the loss. */
typedef struct mol_balance_args {
    int64_t n;
    int32_t dim; /* P */
    const int32_t *item;
    const float *gate;
    float *mean, weight;
    double *loss;
} mol_balance_args;

/* A weight on squares: loss += weight sum x^2, dx += 2 grad_scale weight x. */
typedef struct mol_penalty_args {
    int64_t n; /* elements */
    float weight;
    const void *x; /* act */
    void *dx;      /* act */
    const float *grad_scale;
    double *loss;
} mol_penalty_args;

/* Softmax over the pairs of a row, the last of which is the positive: of sim / temperature, -50000
 * without gradient where a negative is the positive's item.  Adds the losses and replaces sim by
 * its gradient; rows whose positive is negative have none. */
typedef struct mol_loss_args {
    int64_t n;
    int32_t n_negatives;
    const int32_t *item; /* (n, R + 1) */
    float temperature;
    const float *grad_scale; /* (1) */
    float *sim;              /* (n, R + 1) */
    double *loss;
} mol_loss_args;

/* Ranks targets in a corpus by score = query . corpus row, excluding the rows of `seen`: rank = 1 +
 * the number of remaining rows with a higher score (of equal scores the smaller row number comes
 * first), or n_corpus + 1 if the target itself was seen.  With k > 0 also the k best rows and their
 * scores. */
typedef struct rank_args {
    int32_t n_queries, dim, n_corpus;
    const void *query;      /* (n_queries, dim) act */
    const float *corpus;    /* (n_corpus, dim), already normalised if needed */
    const void *corpus_act; /* the same rows in act, or NULL; where it is given and there is no
                               target, scores may be of these rows */
    const rank_int8
        *corpus_int8;            /* the same rows in 8 bits, or NULL; where it is given and there is
                                    no target, a CPU may use it to skip rows; results are the same */
    const int32_t *seen_offsets; /* (n_queries + 1), or NULL: nothing was seen */
    const int32_t *seen;         /* rows of the corpus, ascending within a query */
    /* (n_queries) host, or NULL; where there is no target: bit r % 64 of word r / 64, on the host,
     * says whether row r may be found; NULL: all rows may. */
    const uint64_t *const *allowed;
    const int32_t *target; /* (n_queries) rows, or NULL */
    int32_t *rank;         /* (n_queries) host, or NULL */
    int32_t k;
    int32_t *best;     /* (n_queries, k) host: -1 where there are fewer */
    float *best_score; /* (n_queries, k) host: -infinity where there are fewer */
} rank_args;

/* The result of an empty corpus, which has no row for any target. */
status rank_in_nothing(const rank_args *a);

enum { FETCH_MAX = 64, FETCH_PENDING = 16 };

/* What `record` says about the ops that follow. */
typedef enum {
    RECORD_RUN,   /* they run as ever */
    RECORD_TAKE,  /* the ops are recorded, and run when `record_end` is called */
    RECORD_REPLAY /* skip the ops: `record_end` runs what was recorded under this key */
} record_state;

/* The vtable; ops.def lists its members. */
typedef struct ops {
#define OP(result, name, parameters, arguments, test) result(*name) parameters;
#include "ops/ops.def"
} ops;

struct table_ops;

struct backend {
    const ops *ops;
    const struct table_ops *tables; /* dynamic tables (ops/table.h); NULL: it has none */
    struct backend *tables_below; /* the backend that owns `tables`, if it is another one (as in the
                                     tracing layer); or NULL */
    act_type act;
    bool is_host;     /* its memory is the host's: the CPU */
    const char *name; /* "cpu", "cuda:0" */
    const char *card; /* of a GPU: "NVIDIA H200"; else NULL */
    pool *workers;    /* CPU: the threads; may be NULL */
    void *state;      /* the backend's own */
    void (*destroy)(backend *be);
    int32_t n_ahead; /* steps the host may be ahead; 0: an op is done when it returns */
    int32_t
        token_bucket; /* recorded steps are padded to a multiple of this; 0: none are recorded */
};

void backend_destroy(backend *be); /* NULL is fine */

/* copy_out of n activations, converted to float32. */
status backend_read_act(backend *be, float *to_host, const void *from, size_t n);

/* The CPU backend over a pool (NULL: one thread), which must outlive it. */
status backend_create_cpu(backend **out, pool *workers);
/* The kernel of the CPU's matrix products on this machine: "NEON 8x12". */
const char *backend_cpu_products(void);

/* The backend of GPU `device`, in float32 until set_precision says otherwise.  With
 * is_deterministic two runs give the same bits, at some cost.  ERR_DEVICE says what is wrong with
 * the GPU and what to do; ERR_UNSUPPORTED: this build is without CUDA. */
typedef struct cuda_options {
    int device;
    bool is_deterministic;
    bool is_guest; /* A guest: for the attention ops, alloc and copy_in, on the caller's streams. */
} cuda_options;
status backend_create_cuda(backend **out, const cuda_options *options);

/* Sets how the next ops of a guest run, without waiting.  All its ops share scratch memory and
 * counters, so work on one stream must be ordered with work on another.  Graphs that the caller
 * captured stay valid: a guest frees no scratch memory before it is destroyed.  ERR_USAGE if the
 * thread's current device is another one. */
typedef struct cuda_visit {
    void *stream; /* a cudaStream_t */
    act_type act;
    bool is_deterministic;
} cuda_visit;
status backend_visit_cuda(backend *be, const cuda_visit *visit);

static inline size_t act_bytes(act_type act) {
    return act == ACT_F32 ? 4 : 2;
}

/* The checks of the attention's arguments that every backend relies on: of what is on the host, not
 * of the content of the offsets.  ERR_USAGE names the
 * argument. */
status attn_args_check(const attn_args *a);
status attn_channels_args_check(const attn_channels_args *a);
status softmax_attn_args_check(const softmax_attn_args *a);

/* Op head_fwd by the ops that it consists of, for any backend. */
status head_by_steps(backend *be, const head_args *a);

#ifdef __cplusplus
}
#endif
