/* Elementwise operators, loads and stores of generated kernels. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "tune/emit_int.h"

enum { SHARED_ALIGN = 128 };

/* Stages of a product's pipeline: as many as leave room for two blocks on a multiprocessor. */
enum { MAX_STAGES = 4, STAGES_BYTES = 110 << 10 };

void say(emitter *m, const char *fmt, ...) {
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (m->state == OK) m->state = buf_text(m->out, text);
}

const chain_op *op_at(const emitter *m, int op) {
    return &m->s->c->op[op];
}

const chain_tensor *tensor_at(const emitter *m, int tensor) {
    return &m->s->c->tensor[tensor];
}

int columns_of(const emitter *m, int tensor) {
    return chain_columns(&m->s->shape, tensor_at(m, tensor)->width);
}

int stride_of(const emitter *m, int tensor) {
    return chain_stride(tensor_at(m, tensor), &m->s->shape);
}

bool is_scores(const emitter *m, int op) {
    return tensor_at(m, op_at(m, op)->out[0])->layout == LAYOUT_SCORES;
}

/* Padding between the rows of operands in shared memory (PAD of the CUDA dialect). */
int64_t operand_bytes(const emitter *m, int rows, int depth) {
    int64_t size = (int64_t)act_bytes(m->s->act);
    return rows * (depth * size + 16);
}

/* n elements in C; `bytes` of shared memory in CUDA. */
void say_shared(emitter *m, const char *type, const char *name, int64_t n, int64_t bytes) {
    say(m, "    SHARED(%s, %s, %lld, %lld);\n", type, name, (long long)n,
        (long long)m->shared_bytes);
    m->shared_bytes += (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
}

void say_floats(emitter *m, const char *name, int64_t n) {
    say_shared(m, "float", name, n, n * 4);
}

int stages_of(const emitter *m) {
    const tile_params *t = &m->s->tile;
    int64_t step = operand_bytes(m, t->tile_m + t->tile_n, t->tile_k);
    int n = 2;
    if (m->s->from != TEMPLATE_PRODUCT) return n; /* others keep rows or tiles in shared memory */
    while (n < MAX_STAGES && (n + 1) * step <= STAGES_BYTES)
        n++;
    return n;
}

/* The operands of TILE_PRODUCT, with room for all its stages. */
void say_operands(emitter *m) {
    const tile_params *t = &m->s->tile;
    int n = stages_of(m);
    say_shared(m, "elem", "as", t->tile_m * t->tile_k, n * operand_bytes(m, t->tile_m, t->tile_k));
    say_shared(m, "elem", "bs", t->tile_n * t->tile_k, n * operand_bytes(m, t->tile_n, t->tile_k));
}

/* An element of a tensor at the position of the value: (t, col) or (i, j). */
static void say_place(emitter *m, int tensor) {
    const chain_tensor *x = tensor_at(m, tensor);
    int d = m->s->shape.dim_head;
    if (x->layout == LAYOUT_SCORES)
        say(m, "a.t[%d], score_base + (long)i * len + j", tensor);
    else if (x->layout == LAYOUT_HEADS)
        say(m, "a.t[%d], ((long)(col / %d) * a.n_tokens + t) * %d + col %% %d", tensor, d, d, d);
    else
        say(m, "a.t[%d], t * %d + col", tensor, stride_of(m, tensor));
}

void say_load(emitter *m, int tensor) {
    say(m, "LOAD(");
    say_place(m, tensor);
    say(m, ")");
}

/* A float32 vector's element. */
void say_vector(emitter *m, int tensor, const char *at) {
    say(m, "((const float *)a.t[%d])[%s]", tensor, at);
}

static void say_attended(emitter *m) {
    static const char *const text[] = {
        [ATTEND_ALL] = "1",
        [ATTEND_CAUSAL] = "j <= i",
        [ATTEND_BYTES] = "a.mask[a.score_offsets[b] + (long)i * len + j]",
    };
    say(m, "%s", text[m->s->attend]);
}

static void say_biased(emitter *m, const chain_op *op, const char *before, const char *after) {
    say(m, "v = %s(v + ", before);
    say_vector(m, op->in[1], "col");
    say(m, ")%s;", after);
}

/* One elementwise operator on v, where the value is at (t, col) or (i, j). */
static void say_elementwise(emitter *m, int index) {
    const chain_op *op = op_at(m, index);
    double scale = 1 / sqrt((double)m->s->shape.dim_head);
    say(m, "        /* %s: %s */ ", op->name, op->formula);
    switch (op->kind) {
    case OP_BIAS:
    case OP_BIAS_SPLIT:
        say_biased(m, op, "", "");
        break;
    case OP_BIAS_GELU:
        say_biased(m, op, "gelu", "");
        break;
    case OP_BIAS_RESIDUAL:
        say_biased(m, op, "", "");
        say(m, " v += ");
        say_load(m, op->in[2]);
        say(m, ";");
        break;
    case OP_RESIDUAL:
    case OP_MULTIPLY:
        say(m, op->kind == OP_RESIDUAL ? "v += " : "v *= ");
        say_load(m, op->in[1]);
        say(m, ";");
        break;
    case OP_SILU:
        say(m, "v = silu(v);");
        break;
    case OP_RELU:
        say(m, "v = v > 0 ? v : 0;");
        break;
    case OP_SCALE:
        say(m, "v *= %.9ef;", scale);
        break;
    case OP_SCALE_BIAS:
        say(m, "v = (v + ");
        say_vector(m, op->in[1], "a.max_len - 1 + j - i");
        say(m, ") * %.9ef;", scale);
        break;
    case OP_SILU_SCALE:
        say(m, "v = silu(v) / (float)a.max_len;");
        break;
    case OP_MASK_SOFTMAX:
    case OP_MASK_ZERO:
        say(m, "v = (");
        say_attended(m);
        say(m, op->kind == OP_MASK_SOFTMAX ? ") ? v : -INFINITE;" : ") ? v : 0;");
        break;
    default: /* OP_SPLIT and OP_MERGE change the layout only */
        break;
    }
    say(m, "\n");
}

void say_chain(emitter *m, int first, int last) {
    for (int op = first; op <= last; op++)
        say_elementwise(m, op);
}

/* Stores v as the output of the kernel's last operator.  The outputs of a split are one buffer: a
 * column of the value is its column there. */
void say_store(emitter *m) {
    const chain_op *op = op_at(m, m->last);
    say(m, "        STORE(");
    say_place(m, op->out[0]);
    say(m, ", v);\n");
}
