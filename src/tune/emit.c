#include "tune/emit.h"

/* The text of a kernel: the type `args`, the dialect, what differs between kernels, and the
 * templates. */
TEXT_FILE(dialect_args, "src/tune/dialect_args.inc");
TEXT_FILE(dialect_c, "src/tune/dialect_c.inc");
TEXT_FILE(dialect_cuda, "src/tune/dialect_cuda.inc");
TEXT_FILE(dialect_kernels, "src/tune/dialect_kernels.inc");

/* The text of a kernel as it grows. */
typedef struct emitter {
    const kernel_spec *s;
    buf *out;
    status state; /* the first failure */
    int64_t shared_bytes;
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

static void define(emitter *m, const char *name, int64_t value) {
    emit(m, "#define %s %lld\n", name, (long long)value);
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

/* The first operator after `first` of this kind, else `first`. */
static int find_after(const emitter *m, bool (*is_kind)(op_kind kind)) {
    for (int op = m->s->first + 1; op <= m->s->last; op++)
        if (is_kind(op_at(m, op)->kind)) return op;
    return m->s->first;
}

/* Shared memory of an operand of a product, with padding between its rows (PAD of the CUDA
 * dialect). */
static int64_t operand_bytes(const emitter *m, int rows, int depth) {
    int64_t size = (int64_t)act_bytes(m->s->act);
    return rows * (depth * size + 16);
}

static void define_shared(emitter *m, const char *name, int64_t bytes) {
    define(m, name, m->shared_bytes);
    m->shared_bytes += (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
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

/* The head dimension as columns of a tile: a multiple of 8 for each warp. */
static int padded_head(const kernel_spec *s) {
    int step = 8 * s->tile.warps_n;
    return (s->shape.dim_head + step - 1) / step * step;
}

/* The arrays of a kernel, operands of TILE_PRODUCT with room for all its stages; row: columns of
 * those that keep whole rows. */
static void define_arrays(emitter *m, int row, bool is_softmax) {
    const tile_params *t = &m->s->tile;
    kernel_template from = m->s->from;
    int n_stages = stages_of(m), head = padded_head(m->s);
    if (from == TEMPLATE_ELEMENTWISE || from == TEMPLATE_REDUCTION) return;
    define_shared(m, "AT_AS", n_stages * operand_bytes(m, t->tile_m, t->tile_k));
    define_shared(m, "AT_BS", n_stages * operand_bytes(m, t->tile_n, t->tile_k));
    if (from == TEMPLATE_ATTENTION) {
        define_shared(m, "AT_PS", operand_bytes(m, t->tile_m, t->tile_n));
        define_shared(m, "AT_VS", operand_bytes(m, head, t->tile_n));
    }
    if (from == TEMPLATE_ATTENTION && is_softmax) {
        define_shared(m, "AT_SS", (int64_t)t->tile_m * t->tile_n * 4);
        define_shared(m, "AT_MOST", t->tile_m * 4);
        define_shared(m, "AT_TOTAL", t->tile_m * 4);
        define_shared(m, "AT_RESCALE", t->tile_m * 4);
    }
    if (from == TEMPLATE_TWO_PRODUCTS) {
        define_shared(m, "AT_HS", operand_bytes(m, t->tile_m, t->tile_n));
        define_shared(m, "AT_WS", operand_bytes(m, t->tile_n, t->tile_n));
    }
    if (from == TEMPLATE_TWO_PRODUCTS || from == TEMPLATE_PRODUCT_NORM)
        define_shared(m, "AT_ROWS", (int64_t)t->tile_m * row * 4);
}

/* Pointer and index of a tensor's element at the place of the value. */
static void emit_place(emitter *m, int tensor) {
    tensor_layout layout = tensor_at(m, tensor)->layout;
    emit(m, "a.t[%d], ", tensor);
    if (layout == LAYOUT_TOKENS)
        emit(m, "IN_TOKENS(%d)", stride_of(m, tensor));
    else
        emit(m, layout == LAYOUT_SCORES ? "IN_SCORES" : "IN_HEADS");
}

static void emit_operand(emitter *m, int tensor) {
    tensor_layout layout = tensor_at(m, tensor)->layout;
    if (layout >= LAYOUT_MATRIX) {
        emit(m, layout == LAYOUT_TABLE ? "TABLE(%d)" : "VECTOR(%d)", tensor);
        return;
    }
    emit(m, "LOAD(");
    emit_place(m, tensor);
    emit(m, ")");
}

/* An operator on v; of a product what belongs to it: a bias, or the scale of scores. */
static void emit_operator(emitter *m, const chain_op *op) {
    static const char *const names[] = {[OP_PRODUCT] = "BIAS",
                                        [OP_SCORES] = "SCALE",
                                        [OP_BIAS] = "BIAS",
                                        [OP_BIAS_GELU] = "BIAS_GELU",
                                        [OP_BIAS_SPLIT] = "BIAS",
                                        [OP_BIAS_RESIDUAL] = "BIAS_RESIDUAL",
                                        [OP_RESIDUAL] = "RESIDUAL",
                                        [OP_SILU] = "SILU",
                                        [OP_RELU] = "RELU",
                                        [OP_MULTIPLY] = "MULTIPLY",
                                        [OP_SCALE] = "SCALE",
                                        [OP_SCALE_BIAS] = "SCALE_BIAS",
                                        [OP_SILU_SCALE] = "SILU_SCALE",
                                        [OP_MASK_SOFTMAX] = "MASK_SOFTMAX",
                                        [OP_MASK_ZERO] = "MASK_ZERO",
                                        [OP_NORM] = NULL};
    int n_skipped = op_is_product(op->kind) ? 2 : 1; /* the value, and a product's other factor */
    bool is_plain = (op->kind == OP_PRODUCT && op->n_in == 2) ||
                    (op->kind == OP_SCORES && !m->s->c->is_scaled_qk);
    emit(m, " \\\n    /* %s: %s */", op->name, op->formula);
    if (names[op->kind] == NULL || is_plain) return;
    emit(m, " %s(", names[op->kind]);
    for (int i = n_skipped; i < op->n_in; i++) {
        if (i > n_skipped) emit(m, ", ");
        emit_operand(m, op->in[i]);
    }
    emit(m, ")");
}

static void define_operators(emitter *m, const char *name, int first, int last) {
    emit(m, "#define %s", name);
    for (int op = first; op <= last; op++)
        emit_operator(m, op_at(m, op));
    emit(m, "\n");
}

static bool is_no_element(op_kind kind) {
    return !op_is_elementwise(kind);
}

/* What the kernel reads and stores, and its operators.  The outputs of a split are one buffer: a
 * column of the value is its column there. */
static void define_values(emitter *m) {
    int first = m->s->first, last = m->s->last, middle = find_after(m, is_no_element);
    bool is_reduced = op_at(m, first)->kind == OP_NORM || op_at(m, first)->kind == OP_SOFTMAX;
    if (middle == first && !is_reduced) middle = last + 1;
    const chain_op *norm = op_at(m, middle <= last ? middle : first);
    define_operators(m, "BEFORE", first, middle - 1);
    define_operators(m, "AFTER", middle, last);
    emit(m, "#define INPUT ");
    emit_operand(m, op_at(m, first)->in[0]);
    emit(m, "\n#define RESULT STORE(");
    emit_place(m, op_at(m, last)->out[0]);
    emit(m, ", v);\n");
    if (norm->kind == OP_NORM && norm->n_in > 1)
        emit(m, "#define WEIGHTED_NORM(x) x * VECTOR(%d) + VECTOR(%d)\n", norm->in[1], norm->in[2]);
    else
        emit(m, "#define WEIGHTED_NORM(x) x\n");
}

/* The tensors of both products, where there are some.  Those that one reads in two columns of
 * weights (OP_PRODUCT_QKV) are chosen by n0. */
static void define_products(emitter *m) {
    const chain_op *one = op_at(m, m->s->first), *two = op_at(m, find_after(m, op_is_product));
    bool is_qkv = one->kind == OP_PRODUCT_QKV, is_product = op_is_product(one->kind);
    int e = chain_dim(&m->s->shape), depth = columns_of(m, one->in[0]);
    int width = columns_of(m, is_product ? one->out[0] : one->in[0]);
    int next_width = columns_of(m, two->out[0]);
    bool has_scores = is_scores(m, m->s->first);
    int row = has_scores                            ? m->s->shape.max_len
              : m->s->from == TEMPLATE_TWO_PRODUCTS ? next_width
                                                    : width;
    if (is_qkv)
        emit(m, "#define X (n0 < %d ? a.t[%d] : a.t[%d])\n", e, one->in[0], one->in[1]);
    else
        emit(m, "#define X a.t[%d]\n", one->in[0]);
    emit(m, "#define W a.t[%d]\n#define NEXT a.t[%d]\n", one->in[is_qkv ? 2 : 1], two->in[1]);
    define(m, "X_STRIDE", stride_of(m, one->in[0]));
    define(m, "W_STRIDE", stride_of(m, one->in[1]));
    define(m, "NEXT_STRIDE", stride_of(m, two->in[1]));
    define(m, "NEXT_WIDTH", next_width);
    define(m, "DEPTH", depth);
    define(m, "WIDTH", width);
    define(m, "SPLIT", is_qkv ? e : width);
    define(m, "ROW", row);
    define(m, "IS_SCORES", has_scores);
    define(m, "IS_WEIGHTED", one->kind == OP_WEIGHTED);
    define_arrays(m, row, m->s->c->is_softmax);
}

static void define_kernel(emitter *m) {
    static const char *const templates[] = {[TEMPLATE_ELEMENTWISE] = "TEMPLATE_ELEMENTWISE",
                                            [TEMPLATE_PRODUCT] = "TEMPLATE_PRODUCT",
                                            [TEMPLATE_PRODUCT_NORM] = "TEMPLATE_PRODUCT_NORM",
                                            [TEMPLATE_REDUCTION] = "TEMPLATE_REDUCTION",
                                            [TEMPLATE_ATTENTION] = "TEMPLATE_ATTENTION",
                                            [TEMPLATE_TWO_PRODUCTS] = "TEMPLATE_TWO_PRODUCTS"};
    static const char *const attended[] = {
        [ATTEND_ALL] = "1",
        [ATTEND_CAUSAL] = "j <= i",
        [ATTEND_BYTES] = "a.mask[a.score_offsets[b] + (long)i * len + j]",
    };
    const kernel_spec *s = m->s;
    define(m, templates[s->from], 1);
    define(m, "TILE_M", s->tile.tile_m);
    define(m, "TILE_N", s->tile.tile_n);
    define(m, "TILE_K", s->tile.tile_k);
    define(m, "HEADS", s->shape.n_heads);
    define(m, "HEAD_DIM", s->shape.dim_head);
    define(m, "PADDED_DIM", padded_head(s));
    define(m, "IS_SOFTMAX", s->c->is_softmax);
    define(m, "IS_CAUSAL", s->attend == ATTEND_CAUSAL);
    emit(m, "#define ATTENDED %s\n#define ROOT_SCALE %.9ef\n#define EPS %.9ef\n",
         attended[s->attend], 1 / sqrt((double)s->shape.dim_head), (double)s->eps);
    define_products(m);
    define_values(m);
}

void emit_name(const kernel_spec *s, char name[EMIT_NAME_BYTES]) {
    snprintf(name, EMIT_NAME_BYTES, "%s_%d_%d", s->c->name, s->first + 1, s->last + 1);
}

int emit_threads(const kernel_spec *s) {
    return 32 * s->tile.warps_m * s->tile.warps_n;
}

status emit_kernel(const kernel_spec *s, buf *out, int64_t *shared_bytes) {
    char name[EMIT_NAME_BYTES];
    emitter m = {.s = s, .out = out};
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
    emit(&m, "\n");
    define_kernel(&m);
    emit(&m, "\n");
    if (m.state == OK) m.state = buf_text(out, dialect_kernels);
    emit(&m, "\nENTRY(%s, kernel)\n", name);
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
