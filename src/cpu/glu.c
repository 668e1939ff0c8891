/* Gated linear units, and residuals behind a gate (ops.h), in one pass over the rows.  Bound by
 * bytes; the last elements of a row are a vector too, so that every element has the same bits at
 * any place. */
#include "cpu/cpu.h"

#include "cpu/vec.h"

/* f and its slope. */
static inline vec value_of(glu_kind f, vec a, vec sigmoid) {
    return f == GLU_SILU ? a * sigmoid : sigmoid;
}

static inline vec slope_of(glu_kind f, vec a, vec sigmoid) {
    vec steep = sigmoid * (1.0f - sigmoid);
    return f == GLU_SILU ? sigmoid + a * steep : steep;
}

static status forward_chunk(const cpu_rows *w) {
    const glu_args *a = w->ctx;
    float *factor;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof *factor, (void **)&factor));
    for (int64_t i = w->first; i < w->end; i++) {
        const float *x = (const float *)a->a + i * a->stride,
                    *b = (const float *)a->b + i * a->stride;
        const float *residual =
            a->residual != NULL ? (const float *)a->residual + i * a->dim : NULL;
        float *y = (float *)a->y + i * a->dim;
        cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c += VEC) {
            int32_t n = a->dim - c;
            vec z = vec_load_part(x + c, n), sum = {0};
            if (residual != NULL) sum = vec_load_part(residual + c, n);
            vec kept = vec_load_part(b + c, n) * vec_load_part(factor + c, n);
            vec_store_part(y + c, sum + value_of(a->f, z, vecs_sigmoid(z)) * kept, n);
        }
    }
    return OK;
}

static status backward_chunk(const cpu_rows *w) {
    const glu_args *a = w->ctx;
    float *factor;
    TRY(cpu_scratch(w->be, w->worker, (size_t)a->dim * sizeof *factor, (void **)&factor));
    for (int64_t i = w->first; i < w->end; i++) {
        const float *x = (const float *)a->a + i * a->stride,
                    *b = (const float *)a->b + i * a->stride;
        const float *dy = (const float *)a->dy + i * a->dim;
        float *da = (float *)a->da + i * a->stride, *db = (float *)a->db + i * a->stride;
        cpu_dropout_factors(&a->drop, i, 0, a->dim, factor);
        for (int32_t c = 0; c < a->dim; c += VEC) {
            int32_t n = a->dim - c;
            vec z = vec_load_part(x + c, n), sigmoid = vecs_sigmoid(z);
            vec kept = vec_load_part(dy + c, n) * vec_load_part(factor + c, n);
            vec of_b = vec_load_part(b + c, n);
            vec_store_part(da + c, kept * slope_of(a->f, z, sigmoid) * of_b, n);
            vec_store_part(db + c, kept * value_of(a->f, z, sigmoid), n);
        }
    }
    return OK;
}

status cpu_glu_fwd(backend *be, const glu_args *a) {
    return cpu_each_row(be, a->n, a->dim, forward_chunk, a);
}

status cpu_glu_bwd(backend *be, const glu_args *a) {
    return cpu_each_row(be, a->n, a->dim, backward_chunk, a);
}
