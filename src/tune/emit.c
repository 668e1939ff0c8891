#include "tune/emit.h"

/* What stands before every kernel: the type `args`, and the dialect. */
TEXT_FILE(dialect_args, "src/tune/dialect_args.inc");
TEXT_FILE(dialect_c, "src/tune/dialect_c.inc");
TEXT_FILE(dialect_cuda, "src/tune/dialect_cuda.inc");

/* The text of a kernel as it grows. */
typedef struct emitter {
    const kernel_spec *s;
    buf *out;
    status state; /* the first failure */
    int64_t shared_bytes;
    int32_t e; /* model dimension */
    int first, last;
} emitter;

enum { SHARED_ALIGN = 128 };

/* Stages of a product's pipeline: as many as leave room for two blocks on a multiprocessor. */
enum { MAX_STAGES = 4, STAGES_BYTES = 110 << 10 };

static void emit(emitter *m, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void emit(emitter *m, const char *fmt, ...) {
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (m->state == OK) m->state = buf_text(m->out, text);
}

static const chain_op *op_at(const emitter *m, int op) {
    return &m->s->c->op[op];
}

static const chain_tensor *tensor_at(const emitter *m, int tensor) {
    return &m->s->c->tensor[tensor];
}

static int columns_of(const emitter *m, int tensor) {
    return chain_columns(&m->s->shape, tensor_at(m, tensor)->width);
}

/* Elements between the rows of a tensor of tokens. */
static int stride_of(const emitter *m, int tensor) {
    return chain_stride(tensor_at(m, tensor), &m->s->shape);
}

/* Whether an operator's output is scores. */
static bool is_scores(const emitter *m, int op) {
    return tensor_at(m, op_at(m, op)->out[0])->layout == LAYOUT_SCORES;
}

/* Shared memory of an operand of a product, with padding between its rows (PAD of the CUDA
 * dialect). */
static int64_t operand_bytes(const emitter *m, int rows, int depth) {
    int64_t size = (int64_t)act_bytes(m->s->act);
    return rows * (depth * size + 16);
}

/* Declares shared memory: n elements in C, `bytes` in CUDA. */
static void emit_shared(emitter *m, const char *type, const char *name, int64_t n, int64_t bytes) {
    emit(m, "    SHARED(%s, %s, %lld, %lld);\n", type, name, (long long)n,
         (long long)m->shared_bytes);
    m->shared_bytes += (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
}

static void emit_floats(emitter *m, const char *name, int64_t n) {
    emit_shared(m, "float", name, n, n * 4);
}

static int stages_of(const emitter *m) {
    const tile_params *t = &m->s->tile;
    int64_t step = operand_bytes(m, t->tile_m + t->tile_n, t->tile_k);
    int n = 2;
    if (m->s->from != TEMPLATE_PRODUCT) return n; /* others keep rows or tiles in shared memory */
    while (n < MAX_STAGES && (n + 1) * step <= STAGES_BYTES)
        n++;
    return n;
}

/* The operands of TILE_PRODUCT, with room for all its stages. */
static void emit_operands(emitter *m) {
    const tile_params *t = &m->s->tile;
    int n = stages_of(m);
    emit_shared(m, "elem", "as", t->tile_m * t->tile_k, n * operand_bytes(m, t->tile_m, t->tile_k));
    emit_shared(m, "elem", "bs", t->tile_n * t->tile_k, n * operand_bytes(m, t->tile_n, t->tile_k));
}

/* Declares a tile of results, all zero. */
static void emit_acc(emitter *m, const char *name, int columns) {
    int rows = m->s->tile.tile_m;
    emit(m, "    ACC(%s, %d, %d);\n    ACC_ZERO(%s, %d, %d);\n", name, rows, columns, name, rows,
         columns);
}

/* An element of a tensor at the position of the value: (t, col) or (i, j). */
static void emit_place(emitter *m, int tensor) {
    const chain_tensor *x = tensor_at(m, tensor);
    int d = m->s->shape.dim_head;
    if (x->layout == LAYOUT_SCORES)
        emit(m, "a.t[%d], score_base + (long)i * len + j", tensor);
    else if (x->layout == LAYOUT_HEADS)
        emit(m, "a.t[%d], ((long)(col / %d) * a.n_tokens + t) * %d + col %% %d", tensor, d, d, d);
    else
        emit(m, "a.t[%d], t * %d + col", tensor, stride_of(m, tensor));
}

static void emit_load(emitter *m, int tensor) {
    emit(m, "LOAD(");
    emit_place(m, tensor);
    emit(m, ")");
}

/* A float32 vector's element. */
static void emit_vector(emitter *m, int tensor, const char *at) {
    emit(m, "((const float *)a.t[%d])[%s]", tensor, at);
}

static void emit_attended(emitter *m) {
    static const char *const text[] = {
        [ATTEND_ALL] = "1",
        [ATTEND_CAUSAL] = "j <= i",
        [ATTEND_BYTES] = "a.mask[a.score_offsets[b] + (long)i * len + j]",
    };
    emit(m, "%s", text[m->s->attend]);
}

static void emit_biased(emitter *m, const chain_op *op, const char *before, const char *after) {
    emit(m, "v = %s(v + ", before);
    emit_vector(m, op->in[1], "col");
    emit(m, ")%s;", after);
}

/* One elementwise operator on v, where the value is at (t, col) or (i, j). */
static void emit_elementwise(emitter *m, int index) {
    const chain_op *op = op_at(m, index);
    double scale = 1 / sqrt((double)m->s->shape.dim_head);
    emit(m, "        /* %s: %s */ ", op->name, op->formula);
    switch (op->kind) {
    case OP_BIAS:
    case OP_BIAS_SPLIT:
        emit_biased(m, op, "", "");
        break;
    case OP_BIAS_GELU:
        emit_biased(m, op, "gelu", "");
        break;
    case OP_BIAS_RESIDUAL:
        emit_biased(m, op, "", "");
        emit(m, " v += ");
        emit_load(m, op->in[2]);
        emit(m, ";");
        break;
    case OP_RESIDUAL:
    case OP_MULTIPLY:
        emit(m, op->kind == OP_RESIDUAL ? "v += " : "v *= ");
        emit_load(m, op->in[1]);
        emit(m, ";");
        break;
    case OP_SILU:
        emit(m, "v = silu(v);");
        break;
    case OP_RELU:
        emit(m, "v = v > 0 ? v : 0;");
        break;
    case OP_SCALE:
        emit(m, "v *= %.9ef;", scale);
        break;
    case OP_SCALE_BIAS:
        emit(m, "v = (v + ");
        emit_vector(m, op->in[1], "a.max_len - 1 + j - i");
        emit(m, ") * %.9ef;", scale);
        break;
    case OP_SILU_SCALE:
        emit(m, "v = silu(v) / (float)a.max_len;");
        break;
    case OP_MASK_SOFTMAX:
    case OP_MASK_ZERO:
        emit(m, "v = (");
        emit_attended(m);
        emit(m, op->kind == OP_MASK_SOFTMAX ? ") ? v : -INFINITE;" : ") ? v : 0;");
        break;
    default: /* OP_SPLIT and OP_MERGE change the layout only */
        break;
    }
    emit(m, "\n");
}

/* Elementwise operators first..last on v. */
static void emit_chain(emitter *m, int first, int last) {
    for (int op = first; op <= last; op++)
        emit_elementwise(m, op);
}

/* Stores v as the output of the kernel's last operator.  The outputs of a split are one buffer: a
 * column of the value is its column there. */
static void emit_store(emitter *m) {
    const chain_op *op = op_at(m, m->last);
    emit(m, "        STORE(");
    emit_place(m, op->out[0]);
    emit(m, ", v);\n");
}

/* The operators from `first` on, the store, and the end of the loop over results. */
static void emit_end(emitter *m, int first) {
    emit_chain(m, first, m->last);
    emit_store(m);
    emit(m, "    }\n");
}

/* Rows of tokens of this block; `tiles` of them share rows. */
static void emit_token_rows(emitter *m, const char *tiles) {
    emit(m, "    const long m0 = block / (%s) * %d;\n", tiles, m->s->tile.tile_m);
}

/* The sequence, head and query rows of this block. */
static void emit_score_rows(emitter *m, const char *tiles) {
    emit(m,
         "    const int row_tiles = (a.max_len + %d) / %d;\n"
         "    const long at = block / (%s);\n"
         "    const int i0 = (int)(at %% row_tiles) * %d;\n"
         "    const int h = (int)(at / row_tiles %% %d), b = (int)(at / row_tiles / %d);\n"
         "    const long start = a.offsets[b];\n"
         "    const int len = (int)(a.offsets[b + 1] - start);\n"
         "    const long score_base = (long)a.score_offsets[b] * %d + (long)h * len * len;\n"
         "    (void)start, (void)score_base;\n"
         "    if (i0 >= len) return;\n",
         m->s->tile.tile_m - 1, m->s->tile.tile_m, tiles, m->s->tile.tile_m, m->s->shape.n_heads,
         m->s->shape.n_heads, m->s->shape.n_heads);
}

static void emit_elementwise_kernel(emitter *m) {
    int tile = m->s->tile.tile_m;
    const chain_op *op = op_at(m, m->first);
    bool is_score = is_scores(m, m->first);
    int width = columns_of(m, op->in[0]);
    if (is_score) {
        emit_score_rows(m, "1");
        emit(m, "    EACH(e, %d * len) {\n        const int i = i0 + e / len, j = e %% len;\n",
             tile);
        emit(m, "        if (i >= len) continue;\n");
    } else {
        emit_token_rows(m, "1");
        emit(m,
             "    EACH(e, %d * %d) {\n        const long t = m0 + e / %d;\n        const int col = "
             "e %% %d;\n",
             tile, width, width, width);
        emit(m, "        if (t >= a.n_tokens) continue;\n");
    }
    emit(m, "        float v = ");
    emit_load(m, op->in[0]);
    emit(m, ";\n");
    emit_end(m, m->first);
}

/* TILE_PRODUCT of a product per token, columns n0.. of its output: x rows m0.., weights (N, K). */
static void emit_token_product(emitter *m, int index) {
    const chain_op *op = op_at(m, index);
    const tile_params *t = &m->s->tile;
    bool is_qkv = op->kind == OP_PRODUCT_QKV;
    int depth = columns_of(m, op->in[0]);
    char from[64];
    snprintf(from, sizeof from, is_qkv ? "(n0 < %d ? a.t[%d] : a.t[%d])" : "a.t[%d]",
             is_qkv ? m->e : op->in[0], op->in[0], op->in[1]);
    emit(m,
         "    TILE_PRODUCT(acc, %d, %d, %d, as, bs, (const elem *)%s + m0 * %d, %d, a.n_tokens - "
         "m0,\n"
         "                 (const elem *)a.t[%d] + (long)n0 * %d, %d, n_end - n0, %d, 0);\n",
         t->tile_m, t->tile_n, t->tile_k, from, depth, depth, op->in[is_qkv ? 2 : 1], depth, depth,
         depth);
}

/* The bias that belongs to a product itself. */
static void emit_product_bias(emitter *m, int index) {
    const chain_op *op = op_at(m, index);
    if (op->kind != OP_PRODUCT || op->n_in < 3) return;
    emit(m, "        v += ");
    emit_vector(m, op->in[2], "col");
    emit(m, ";\n");
}

/* Query rows i0.. against keys j0..: the scores of one head. */
static void emit_score_product(emitter *m, int index) {
    const chain_op *op = op_at(m, index);
    const tile_params *t = &m->s->tile;
    int d = m->s->shape.dim_head, q = stride_of(m, op->in[0]), k = stride_of(m, op->in[1]);
    emit(
        m,
        "    TILE_PRODUCT(acc, %d, %d, %d, as, bs, (const elem *)a.t[%d] + (start + i0) * %d + h * "
        "%d, %d, len - i0,\n"
        "                 (const elem *)a.t[%d] + (start + j0) * %d + h * %d, %d, len - j0, %d, "
        "0);\n",
        t->tile_m, t->tile_n, t->tile_k, op->in[0], q, d, q, op->in[1], k, d, k, d);
}

static void emit_score_value(emitter *m) {
    emit(m, "        float v = acc[e];\n");
    if (m->s->c->is_scaled_qk)
        emit(m, "        v *= %.9ef;\n", 1 / sqrt((double)m->s->shape.dim_head));
}

/* Begins the loop over a tile of results, at the place of each. */
static void emit_each_result(emitter *m, const char *acc, int columns, const char *place) {
    int rows = m->s->tile.tile_m;
    emit(m,
         "    EACH_ACC(e, %d, %d) {\n        const int r = ACC_ROW(e, %d, %d), c = ACC_COL(e, %d, "
         "%d);\n",
         rows, columns, rows, columns, rows, columns);
    emit(m, "        %s\n", place);
    if (acc != NULL) emit(m, "        float v = %s[e];\n", acc);
}

static const char *const token_place = "const long t = m0 + r; const int col = n0 + c; "
                                       "if (t >= a.n_tokens || col >= n_end) continue;";
static const char *const score_place =
    "const int i = i0 + r, j = j0 + c; if (i >= len || j >= len) continue;";

static void emit_token_product_kernel(emitter *m) {
    const chain_op *op = op_at(m, m->first);
    const tile_params *t = &m->s->tile;
    int n = columns_of(m, op->out[0]), split = op->kind == OP_PRODUCT_QKV ? m->e : n;
    int first_tiles = (split + t->tile_n - 1) / t->tile_n;
    int tiles = first_tiles + (n - split + t->tile_n - 1) / t->tile_n;
    char text[16];
    snprintf(text, sizeof text, "%d", tiles);
    emit_token_rows(m, text);
    emit(m, "    const int tile = (int)(block %% %d);\n", tiles);
    emit(m,
         "    const int n0 = tile < %d ? tile * %d : %d + (tile - %d) * %d, n_end = tile < %d ? %d "
         ": %d;\n",
         first_tiles, t->tile_n, split, first_tiles, t->tile_n, first_tiles, split, n);
    emit_operands(m);
    emit_acc(m, "acc", t->tile_n);
    emit_token_product(m, m->first);
    emit_each_result(m, "acc", t->tile_n, token_place);
    emit_product_bias(m, m->first);
    emit_end(m, m->first + 1);
}

static void emit_score_product_kernel(emitter *m) {
    const tile_params *t = &m->s->tile;
    char tiles[64];
    snprintf(tiles, sizeof tiles, "((a.max_len + %d) / %d)", t->tile_n - 1, t->tile_n);
    emit_score_rows(m, tiles);
    emit(m, "    const int j0 = (int)(block %% %s) * %d;\n    if (j0 >= len) return;\n", tiles,
         t->tile_n);
    emit_operands(m);
    emit_acc(m, "acc", t->tile_n);
    emit_score_product(m, m->first);
    emit_each_result(m, NULL, t->tile_n, score_place);
    emit_score_value(m);
    emit_end(m, m->first + 1);
}

static void emit_weighted_product_kernel(emitter *m) {
    const tile_params *t = &m->s->tile;
    const chain_op *op = op_at(m, m->first);
    int d = m->s->shape.dim_head, tiles = (d + t->tile_n - 1) / t->tile_n;
    int v = stride_of(m, op->in[1]);
    char text[16];
    snprintf(text, sizeof text, "%d", tiles);
    emit_score_rows(m, text);
    emit(m, "    const int d0 = (int)(block %% %d) * %d;\n", tiles, t->tile_n);
    emit_operands(m);
    emit_acc(m, "acc", t->tile_n);
    emit(
        m,
        "    TILE_PRODUCT(acc, %d, %d, %d, as, bs, (const elem *)a.t[%d] + score_base + (long)i0 * "
        "len, len, len - i0,\n"
        "                 (const elem *)a.t[%d] + start * %d + h * %d + d0, %d, %d - d0, len, "
        "1);\n",
        t->tile_m, t->tile_n, t->tile_k, op->in[0], op->in[1], v, d, v, d);
    char place[160];
    snprintf(place, sizeof place,
             "const long t = start + i0 + r; const int col = h * %d + d0 + c; if (i0 + r >= len || "
             "d0 + c >= %d) continue;",
             d, d);
    emit_each_result(m, "acc", t->tile_n, place);
    emit_end(m, m->first + 1);
}

/* Where the rows of a reduction come from: the input of the kernel with elementwise operators on
 * it, or a buffer of whole rows. */
typedef struct row_source {
    bool is_buffer;
    int first, last; /* elementwise operators before the reduction, where not a buffer */
    int width;       /* columns; 0: len */
} row_source;

static void emit_row_value(emitter *m, const row_source *from) {
    if (from->is_buffer) {
        emit(m, "            float v = rows[r * %d + x];\n", from->width);
        return;
    }
    emit(m, "            float v = ");
    emit_load(m, op_at(m, m->first)->in[0]);
    emit(m, ";\n");
    emit_chain(m, from->first, from->last);
}

/* Begins a loop over the columns of a row, with v the value. */
static void emit_each_column(emitter *m, const row_source *from, bool is_score) {
    if (is_score)
        emit(m,
             "        EACH_LANE(x, len) {\n            const int j = x;\n            (void)j;\n");
    else
        emit(m,
             "        EACH_LANE(x, %d) {\n            const int col = x;\n            (void)col;\n",
             from->width);
    emit_row_value(m, from);
}

static void emit_norm_rows(emitter *m, const chain_op *op, const row_source *from) {
    emit(m, "        float sum = 0, square = 0;\n");
    emit_each_column(m, from, false);
    emit(m, "            sum += v;\n        }\n        const float mean = LANES_SUM(sum) / %d;\n",
         from->width);
    emit_each_column(m, from, false);
    emit(m, "            square += (v - mean) * (v - mean);\n        }\n");
    emit(m, "        const float scale = 1 / sqrtf(LANES_SUM(square) / %d + %.9ef);\n", from->width,
         (double)m->s->eps);
    emit_each_column(m, from, false);
    emit(m, "            v = (v - mean) * scale");
    if (op->n_in > 1) {
        emit(m, " * ");
        emit_vector(m, op->in[1], "col");
        emit(m, " + ");
        emit_vector(m, op->in[2], "col");
    }
    emit(m, ";\n");
}

static void emit_softmax_rows(emitter *m, const row_source *from) {
    emit(m, "        float most = -INFINITE, sum = 0;\n");
    emit_each_column(m, from, true);
    emit(m, "            most = fmaxf(most, v);\n        }\n        most = LANES_MAX(most);\n");
    emit_each_column(m, from, true);
    emit(m, "            sum += v > -INFINITE ? expf(v - most) : 0;\n        }\n        sum = "
            "LANES_SUM(sum);\n");
    emit_each_column(m, from, true);
    emit(m, "            v = v > -INFINITE ? expf(v - most) / sum : 0;\n");
}

/* The rows of this block: statistics, then the operators after the reduction, then the store. */
static void emit_reduction(emitter *m, int reduction, const row_source *from) {
    const chain_op *op = op_at(m, reduction);
    bool is_score = op->kind == OP_SOFTMAX;
    emit(m, "    EACH_ROW(r, %d) {\n", m->s->tile.tile_m);
    if (is_score)
        emit(m, "        const int i = i0 + r;\n        if (i >= len) continue;\n");
    else
        emit(m, "        const long t = m0 + r;\n        if (t >= a.n_tokens) continue;\n");
    is_score ? emit_softmax_rows(m, from) : emit_norm_rows(m, op, from);
    emit_chain(m, reduction + 1, m->last);
    emit_store(m);
    emit(m, "        }\n    }\n");
}

static int find_reduction(const emitter *m) {
    int op = m->first;
    while (op_at(m, op)->kind != OP_NORM && op_at(m, op)->kind != OP_SOFTMAX)
        op++;
    return op;
}

static void emit_reduction_kernel(emitter *m) {
    int at = find_reduction(m);
    bool is_score = op_at(m, at)->kind == OP_SOFTMAX;
    row_source from = {.first = m->first, .last = at - 1, .width = is_score ? 0 : m->e};
    is_score ? emit_score_rows(m, "1") : emit_token_rows(m, "1");
    emit_reduction(m, at, &from);
}

static void emit_product_norm_kernel(emitter *m) {
    const tile_params *t = &m->s->tile;
    int at = find_reduction(m);
    bool is_score = op_at(m, at)->kind == OP_SOFTMAX;
    int width = is_score ? m->s->shape.max_len : columns_of(m, op_at(m, m->first)->out[0]);
    row_source from = {.is_buffer = true, .width = width};
    is_score ? emit_score_rows(m, "1") : emit_token_rows(m, "1");
    emit_operands(m);
    emit_floats(m, "rows", (int64_t)t->tile_m * width);
    if (is_score)
        emit(m, "    for (int j0 = 0; j0 < len; j0 += %d) {\n", t->tile_n);
    else
        emit(m, "    for (int n0 = 0; n0 < %d; n0 += %d) {\n    const int n_end = %d;\n", width,
             t->tile_n, width);
    emit_acc(m, "acc", t->tile_n);
    is_score ? emit_score_product(m, m->first) : emit_token_product(m, m->first);
    emit_each_result(m, is_score ? NULL : "acc", t->tile_n, is_score ? score_place : token_place);
    is_score ? emit_score_value(m) : emit_product_bias(m, m->first);
    emit_chain(m, m->first + 1, at - 1);
    emit(m, "        rows[r * %d + %s] = v;\n    }\n    }\n    SYNC\n", width,
         is_score ? "j" : "col");
    emit_reduction(m, at, &from);
}

/* The head dimension as columns of a tile: a multiple of 8 for each warp. */
static int padded_head(const kernel_spec *s) {
    int step = 8 * s->tile.warps_n;
    return (s->shape.dim_head + step - 1) / step * step;
}

/* A softmax over the keys seen so far: rescales what was added up before. */
static void emit_online_softmax(emitter *m) {
    int rows = m->s->tile.tile_m, keys = m->s->tile.tile_n;
    emit(m,
         "    EACH_ROW(r, %d) {\n"
         "        const float before = most[r];\n"
         "        float now = before, sum = 0;\n"
         "        EACH_LANE(c, %d) now = fmaxf(now, ss[r * %d + c]);\n"
         "        now = LANES_MAX(now);\n"
         "        EACH_LANE(c, %d) {\n"
         "            const float v = ss[r * %d + c];\n"
         "            const float p = v > -INFINITE ? expf(v - now) : 0;\n"
         "            sum += p;\n"
         "            A_PUT(ps, r, c, %d, p);\n"
         "        }\n"
         "        sum = LANES_SUM(sum);\n"
         "        FIRST_LANE {\n"
         "            rescale[r] = before > -INFINITE ? expf(before - now) : 0;\n"
         "            total[r] = total[r] * rescale[r] + sum;\n"
         "            most[r] = now;\n"
         "        }\n"
         "    }\n",
         rows, keys, keys, keys, keys, keys);
}

/* The scores of a tile of keys, through the elementwise operators, into ss (softmax) or ps. */
static void emit_score_tile(emitter *m, int last_score, int softmax) {
    int keys = m->s->tile.tile_n;
    const char *nothing = softmax >= 0 ? "-INFINITE" : "0";
    emit_acc(m, "acc", keys);
    emit_score_product(m, m->first);
    emit_each_result(m, NULL, keys, "const int i = i0 + r, j = j0 + c;");
    emit(m, "        float result = %s;\n        if (i < len && j < len) {\n", nothing);
    emit_score_value(m);
    emit_chain(m, m->first + 1, last_score);
    emit(m, "        result = v;\n        }\n");
    if (softmax >= 0)
        emit(m, "        ss[r * %d + c] = result;\n    }\n    SYNC\n", keys);
    else
        emit(m, "        A_PUT(ps, r, c, %d, result);\n    }\n", keys);
    if (softmax >= 0) emit_online_softmax(m);
}

/* Shared memory of the attention: operands, weights of a tile of keys, and a softmax's statistics.
 */
static void emit_attention_memory(emitter *m, bool has_softmax) {
    const tile_params *t = &m->s->tile;
    int d = padded_head(m->s);
    emit_operands(m);
    emit_shared(m, "elem", "ps", t->tile_m * t->tile_n, operand_bytes(m, t->tile_m, t->tile_n));
    emit_shared(m, "elem", "vs", d * t->tile_n, operand_bytes(m, d, t->tile_n));
    if (!has_softmax) return;
    emit_floats(m, "ss", (int64_t)t->tile_m * t->tile_n);
    emit_floats(m, "most", t->tile_m);
    emit_floats(m, "total", t->tile_m);
    emit_floats(m, "rescale", t->tile_m);
    emit(
        m,
        "    EACH(r, %d) {\n        most[r] = -INFINITE;\n        total[r] = 0;\n    }\n    SYNC\n",
        t->tile_m);
}

static void emit_attention_kernel(emitter *m) {
    const chain *c = m->s->c;
    const tile_params *t = &m->s->tile;
    int softmax = -1, weighted = m->first, d = m->s->shape.dim_head, padded = padded_head(m->s);
    for (; c->op[weighted].kind != OP_WEIGHTED; weighted++)
        if (c->op[weighted].kind == OP_SOFTMAX) softmax = weighted;
    emit_score_rows(m, "1");
    emit_attention_memory(m, softmax >= 0);
    emit_acc(m, "o", padded);
    emit(m,
         m->s->attend == ATTEND_CAUSAL ? "    const int end = i0 + %d < len ? i0 + %d : len;\n"
                                       : "    const int end = len;\n",
         t->tile_m, t->tile_m);
    emit(m, "    for (int j0 = 0; j0 < end; j0 += %d) {\n", t->tile_n);
    emit_score_tile(m, (softmax >= 0 ? softmax : weighted) - 1, softmax);
    emit(m,
         "    load_b(vs, %d, %d, (const elem *)a.t[%d] + (start + j0) * %d + h * %d, %d, %d, len - "
         "j0, 1);\n    LOADED\n",
         padded, t->tile_n, c->op[weighted].in[1], stride_of(m, c->op[weighted].in[1]), d,
         stride_of(m, c->op[weighted].in[1]), d);
    if (softmax >= 0)
        emit(m, "    EACH_ACC(e, %d, %d) o[e] *= rescale[ACC_ROW(e, %d, %d)];\n", t->tile_m, padded,
             t->tile_m, padded);
    emit(m, "    ACC_PRODUCT(o, %d, %d, ps, vs, %d);\n    SYNC\n    }\n", t->tile_m, padded,
         t->tile_n);
    char place[160];
    snprintf(place, sizeof place,
             "const long t = start + i0 + r; const int col = h * %d + c; if (i0 + r >= len || c >= "
             "%d) continue;",
             d, d);
    emit_each_result(m, "o", padded, place);
    if (softmax >= 0) emit(m, "        v = total[r] > 0 ? v / total[r] : 0;\n");
    emit_end(m, weighted + 1);
}

/* A tile of the hidden layer at a time: computed, activated, and multiplied into all columns of the
 * output, which is kept in rows. */
static void emit_two_products_kernel(emitter *m) {
    const tile_params *t = &m->s->tile;
    int second = m->first + 1;
    while (op_at(m, second)->kind != OP_PRODUCT)
        second++;
    int hidden = columns_of(m, op_at(m, m->first)->out[0]);
    int n = columns_of(m, op_at(m, second)->out[0]);
    emit_token_rows(m, "1");
    emit_operands(m);
    emit_shared(m, "elem", "hs", t->tile_m * t->tile_n, operand_bytes(m, t->tile_m, t->tile_n));
    emit_shared(m, "elem", "ws", t->tile_n * t->tile_n, operand_bytes(m, t->tile_n, t->tile_n));
    emit_floats(m, "rows", (int64_t)t->tile_m * n);
    emit(m, "    EACH(e, %d) rows[e] = 0;\n", t->tile_m * n);
    emit(m, "    for (int n0 = 0; n0 < %d; n0 += %d) {\n    const int n_end = %d;\n", hidden,
         t->tile_n, hidden);
    emit_acc(m, "acc", t->tile_n);
    emit_token_product(m, m->first);
    emit_each_result(m, NULL, t->tile_n, "const int col = n0 + c; float result = 0;");
    emit(m, "        if (col < n_end) {\n        float v = acc[e];\n");
    emit_product_bias(m, m->first);
    emit_chain(m, m->first + 1, second - 1);
    emit(m,
         "        result = v;\n        }\n        A_PUT(hs, r, c, %d, result);\n    }\n    SYNC\n",
         t->tile_n);
    emit(m, "    for (int c0 = 0; c0 < %d; c0 += %d) {\n", n, t->tile_n);
    emit(m,
         "    load_b(ws, %d, %d, (const elem *)a.t[%d] + (long)c0 * %d + n0, %d, %d - c0, %d - n0, "
         "0);\n    LOADED\n",
         t->tile_n, t->tile_n, op_at(m, second)->in[1], hidden, hidden, n, hidden);
    emit(m, "    ACC_ZERO(acc, %d, %d);\n    ACC_PRODUCT(acc, %d, %d, hs, ws, %d);\n", t->tile_m,
         t->tile_n, t->tile_m, t->tile_n, t->tile_n);
    emit_each_result(m, NULL, t->tile_n, "");
    emit(m,
         "        if (c0 + c < %d) rows[r * %d + c0 + c] += acc[e];\n    }\n    SYNC\n    }\n    "
         "}\n",
         n, n);
    emit(m,
         "    EACH(e, %d) {\n        const long t = m0 + e / %d;\n        const int col = e %% "
         "%d;\n",
         t->tile_m * n, n, n);
    emit(m, "        if (t >= a.n_tokens) continue;\n        float v = rows[e];\n");
    emit_product_bias(m, second);
    emit_end(m, second + 1);
}

static void emit_body(emitter *m) {
    op_kind kind = op_at(m, m->first)->kind;
    switch (m->s->from) {
    case TEMPLATE_ELEMENTWISE:
        emit_elementwise_kernel(m);
        break;
    case TEMPLATE_PRODUCT:
        kind == OP_SCORES     ? emit_score_product_kernel(m)
        : kind == OP_WEIGHTED ? emit_weighted_product_kernel(m)
                              : emit_token_product_kernel(m);
        break;
    case TEMPLATE_PRODUCT_NORM:
        emit_product_norm_kernel(m);
        break;
    case TEMPLATE_REDUCTION:
        emit_reduction_kernel(m);
        break;
    case TEMPLATE_ATTENTION:
        emit_attention_kernel(m);
        break;
    default:
        emit_two_products_kernel(m);
        break;
    }
}

void emit_name(const kernel_spec *s, char name[EMIT_NAME_BYTES]) {
    snprintf(name, EMIT_NAME_BYTES, "%s_%d_%d", s->c->name, s->first + 1, s->last + 1);
}

int emit_threads(const kernel_spec *s) {
    return 32 * s->tile.warps_m * s->tile.warps_n;
}

static const char *const activations =
    "DEVICE float silu(float x) {\n    return x / (1 + expf(-x));\n}\n"
    "DEVICE float gelu(float x) {\n    return x * 0.5f * (1 + erff(x * 0.70710678f));\n}\n\n";

status emit_kernel(const kernel_spec *s, buf *out, int64_t *shared_bytes) {
    char name[EMIT_NAME_BYTES];
    emitter m = {.s = s, .out = out, .e = chain_dim(&s->shape), .first = s->first, .last = s->last};
    emit_name(s, name);
    emit(&m, "/* Layer %s, operators %d to %d:", s->c->name, s->first + 1, s->last + 1);
    for (int op = s->first; op <= s->last; op++)
        emit(&m, " %s", s->c->op[op].name);
    emit(&m, ".  Template: %s. */\n", template_name(s->from));
    if (s->is_cuda)
        emit(&m,
             "#define THREADS %d\n#define WARPS_M %d\n#define WARPS_N %d\n#define ELEM_BITS "
             "%d\n#define IS_BF16 %d\n#define STAGES %d\n",
             emit_threads(s), s->tile.warps_m, s->tile.warps_n, (int)act_bytes(s->act) * 8,
             s->act == ACT_BF16, stages_of(&m));
    if (m.state == OK) m.state = buf_text(out, dialect_args);
    if (m.state == OK) m.state = buf_text(out, s->is_cuda ? dialect_cuda : dialect_c);
    emit(&m, "\n%sDEVICE void %s_block(args a, long block) {\n", activations, name);
    emit_body(&m);
    emit(&m, "}\n\nENTRY(%s, %s_block)\n", name, name);
    if (shared_bytes != NULL) *shared_bytes = m.shared_bytes;
    return m.state;
}

static int64_t divide_up(int64_t x, int64_t by) {
    return (x + by - 1) / by;
}

int64_t emit_blocks(const kernel_spec *s, const chain_shape *batch) {
    const chain_op *op = &s->c->op[s->first];
    const tile_params *t = &s->tile;
    int64_t e = chain_dim(batch);
    bool is_product = s->from == TEMPLATE_PRODUCT;
    bool is_score = s->c->tensor[op->out[0]].layout == LAYOUT_SCORES;
    if (is_score || op->kind == OP_WEIGHTED) {
        int64_t rows = divide_up(batch->max_len, t->tile_m) * batch->n_heads * batch->n_sequences;
        if (!is_product) return rows;
        return rows *
               divide_up(op->kind == OP_WEIGHTED ? batch->dim_head : batch->max_len, t->tile_n);
    }
    int64_t rows = divide_up(batch->n_tokens, t->tile_m),
            n = chain_columns(batch, s->c->tensor[op->out[0]].width);
    if (!is_product) return rows;
    int64_t split = op->kind == OP_PRODUCT_QKV ? e : n;
    return rows * (divide_up(split, t->tile_n) + divide_up(n - split, t->tile_n));
}

static const tile_params product_tiles[] = {{64, 64, 32, 2, 2, 0, 0},   {128, 64, 32, 4, 2, 0, 0},
                                            {128, 128, 32, 2, 4, 0, 0}, {64, 128, 64, 2, 4, 0, 0},
                                            {32, 64, 64, 1, 4, 0, 0},   {128, 128, 64, 4, 2, 0, 0},
                                            {64, 64, 64, 2, 2, 0, 0},   {256, 128, 32, 4, 2, 0, 0}};
static const tile_params row_tiles[] = {{32, 64, 64, 1, 4, 0, 0},  {16, 64, 64, 1, 4, 0, 0},
                                        {16, 128, 64, 1, 4, 0, 0}, {32, 128, 32, 2, 4, 0, 0},
                                        {64, 64, 32, 2, 2, 0, 0},  {16, 128, 128, 1, 8, 0, 0},
                                        {32, 128, 64, 1, 8, 0, 0}};
static const tile_params attention_tiles[] = {{64, 64, 64, 4, 1, 0, 0},  {64, 64, 32, 2, 2, 0, 0},
                                              {128, 64, 64, 4, 1, 0, 0}, {32, 64, 64, 2, 2, 0, 0},
                                              {16, 64, 32, 1, 4, 0, 0},  {64, 128, 32, 4, 1, 0, 0}};
static const tile_params simple_tiles[] = {{8, 8, 16, 2, 4, 0, 0},
                                           {4, 8, 16, 1, 4, 0, 0},
                                           {16, 8, 16, 2, 4, 0, 0},
                                           {32, 8, 16, 2, 4, 0, 0}};
/* Tiles that stay in a CPU's first cache. */
static const tile_params cpu_tiles[] = {
    {16, 64, 64, 1, 1, 0, 0}, {32, 64, 128, 1, 1, 0, 0}, {8, 128, 64, 1, 1, 0, 0}};

#define LIST(tiles) (*out_n = sizeof(tiles) / sizeof(tiles)[0], tiles)

static const tile_params *candidates(const kernel_spec *s, size_t *out_n) {
    bool is_simple = s->from == TEMPLATE_ELEMENTWISE || s->from == TEMPLATE_REDUCTION;
    if (!s->is_cuda) return LIST(cpu_tiles);
    if (is_simple) return LIST(simple_tiles);
    if (s->from == TEMPLATE_PRODUCT) return LIST(product_tiles);
    return s->from == TEMPLATE_ATTENTION ? LIST(attention_tiles) : LIST(row_tiles);
}

static status shared_of(const kernel_spec *s, int64_t *bytes) {
    buf unused = {0};
    status st = emit_kernel(s, &unused, bytes);
    buf_fini(&unused);
    return st;
}

status emit_tiles(const kernel_spec *s, tile_params out[EMIT_MAX_TILES], int *out_n) {
    size_t n_all;
    const tile_params *all = candidates(s, &n_all);
    *out_n = 0;
    for (size_t i = 0; i < n_all; i++) {
        kernel_spec tried = *s;
        int64_t bytes;
        tried.tile = all[i];
        TRY(shared_of(&tried, &bytes));
        if (s->shared_limit == 0 || bytes <= s->shared_limit) out[(*out_n)++] = all[i];
    }
    return OK;
}
