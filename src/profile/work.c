#include "profile/work.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "profile/work_pairs.h"

/* Where the pairs are not known, the bytes alone would say nothing. */
static op_work by_pairs(const backend *be, const op_work *asked, double pairs, double of_pair,
                        double n_bytes) {
    op_work w = *asked;
    if (pairs > 0) w.flop = pairs * of_pair;
    if (pairs > 0) w.bytes = n_bytes;
    if (w.ask.n_sequences > 0 && !be->is_host) {
        w.of_pair = of_pair;
        w.pair_bytes = n_bytes;
    }
    return w;
}

/* Forward two products; backward five, one of which computes the scores again. */
static op_work attention(const backend *be, const attn_args *a, bool is_bwd, char *shape) {
    double d = a->dim_qk, v = a->dim_v, act = (double)act_bytes(be->act);
    double of_pair = is_bwd ? 2 * (3 * d + 2 * v) : 2 * (d + v);
    double rows = (double)a->n_rows_q * (d + v) + (double)a->n_rows_k * (d + v);
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%d x %d, %d, %d]", a->n_sequences, a->max_len_q,
                 a->n_heads, a->dim_qk);
    double pairs = work_pairs_attn(be, a), bytes = rows * a->n_heads * act * (is_bwd ? 2 : 1);
    op_work w = {0};
    work_pairs_ask_attn(&w.ask, a);
    return by_pairs(be, &w, pairs, of_pair * a->n_heads, bytes);
}

static op_work product(const backend *be, const linear_args *a, bool is_bwd, char *shape) {
    double n = (double)a->n, in = a->n_in, out = a->n_out, act = (double)act_bytes(be->act);
    int n_products = is_bwd ? (a->dx != NULL) + (a->dw != NULL) : 1;
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%lld, %d] x [%d, %d]", (long long)a->n, a->n_in,
                 a->n_in, a->n_out);
    return (op_work){.flop = 2 * n * in * out * n_products,
                     .bytes = n_products * (n * in * act + in * out * 4 + n * out * act)};
}

/* n rows of dim, read or written so many times as activations. */
static op_work rows(const backend *be, int64_t n, int32_t dim, double times, char *shape) {
    if (shape != NULL) snprintf(shape, WORK_SHAPE_BYTES, "[%lld, %d]", (long long)n, dim);
    return (op_work){.bytes = (double)n * dim * (double)act_bytes(be->act) * times};
}

static op_work bytes(double n, char *shape) {
    if (shape != NULL) snprintf(shape, WORK_SHAPE_BYTES, "[%.0f bytes]", n);
    return (op_work){.bytes = n};
}

static op_work updates(const update_args *a, int n, char *shape) {
    double floats = 0;
    for (int i = 0; i < n; i++)
        floats += (double)a[i].n * (a[i].v != NULL ? 7 : a[i].m != NULL ? 5 : 3);
    if (shape != NULL) snprintf(shape, WORK_SHAPE_BYTES, "[%d weights]", n);
    return (op_work){.bytes = 4 * floats};
}

static op_work sampled(const sampled_softmax_args *a, char *shape) {
    double scores = (double)a->n * (a->n_negatives + 1), passes = a->dquery != NULL ? 3 : 1;
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%lld, %d] of %d, %d negatives", (long long)a->n, a->dim,
                 a->n_rows, a->n_negatives);
    return (op_work){.flop = 2 * scores * a->dim * passes,
                     .bytes = scores * a->dim * 4 * (passes > 1 ? 2 : 1)};
}

static op_work softmax(const backend *be, const softmax_attn_args *a, bool is_bwd, char *shape) {
    double d = a->dim, act = (double)act_bytes(be->act), pairs = work_pairs_softmax(be, a);
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%d x %d, %d, %d]", a->n_sequences, a->max_len,
                 a->n_heads, a->dim);
    op_work w = {0};
    work_pairs_ask_softmax(&w.ask, a);
    return by_pairs(be, &w, pairs, a->n_heads * 2 * d * (is_bwd ? 5 : 2),
                    (double)a->n_rows * 4 * d * a->n_heads * act * (is_bwd ? 2 : 1));
}

static op_work gathered(const backend *be, const gather_args *a, char *shape) {
    op_work w = rows(be, a->n, a->dim, 1, shape);
    w.bytes += (double)a->n * a->dim * (a->is_act ? (double)act_bytes(be->act) : 4);
    return w;
}

op_work work_of(work_op op, char shape[WORK_SHAPE_BYTES], ...) {
    op_work w = {0};
    va_list args;
    if (shape != NULL) shape[0] = '\0';
    va_start(args, shape);
    const backend *be = va_arg(args, backend *);
    const void *a = va_arg(args, const void *); /* of most ops; the others read on */
    switch (op) {
    case WORK_linear_fwd:
    case WORK_linear_bwd:
        w = product(be, a, op == WORK_linear_bwd, shape);
        break;
    case WORK_attn_fwd:
    case WORK_attn_bwd:
        w = attention(be, a, op == WORK_attn_bwd, shape);
        break;
    case WORK_softmax_attn_fwd:
    case WORK_softmax_attn_bwd:
        w = softmax(be, a, op == WORK_softmax_attn_bwd, shape);
        break;
    case WORK_norm_fwd:
    case WORK_norm_bwd:
        w = rows(be, ((const norm_args *)a)->n, ((const norm_args *)a)->dim,
                 op == WORK_norm_bwd ? 3 : 2, shape);
        break;
    case WORK_residual_norm:
        w = rows(be, ((const residual_norm_args *)a)->n, ((const residual_norm_args *)a)->dim, 3,
                 shape);
        break;
    case WORK_linear_norm: {
        const linear_norm_args *l = (const linear_norm_args *)a;
        w = product(be, &l->linear, false, shape);
        w.bytes += rows(be, l->norm.n, l->norm.dim, 3, NULL).bytes;
        break;
    }
    case WORK_head_fwd: {
        const head_args *h = (const head_args *)a;
        w = product(be, &h->one, false, shape);
        w.flop += product(be, &h->two, false, NULL).flop;
        break;
    }
    case WORK_gate_fwd:
    case WORK_gate_bwd:
        w = rows(be, ((const gate_args *)a)->n, ((const gate_args *)a)->dim,
                 op == WORK_gate_bwd ? 5 : 3, shape);
        break;
    case WORK_gather:
        w = gathered(be, a, shape);
        break;
    case WORK_sampled_softmax:
        w = sampled(a, shape);
        break;
    case WORK_update:
        w = updates(a, va_arg(args, int), shape);
        break;
    case WORK_zero:
        w = bytes((double)va_arg(args, size_t), shape);
        break;
    case WORK_copy_in:
    case WORK_copy_out:
    case WORK_copy: {
        (void)va_arg(args, const void *);
        w = bytes((double)va_arg(args, size_t) * (op == WORK_copy ? 2 : 1), shape);
        break;
    }
    default:
        break;
    }
    va_end(args);
    return w;
}
