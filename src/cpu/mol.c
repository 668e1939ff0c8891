/* Mixture of logits (ops.h).  A query and BLOCK of its pairs are a unit of work: the item vectors
 * of the pairs are gathered next to each other, and one small product (product.h) gives their
 * logits. The gradient of an item sums its pairs in order (row_groups), so no bits depend on
 * threads. */
#include "cpu/cpu.h"
#include "cpu/product.h"
#include "cpu/vec.h"

enum { BLOCK = 64, SMALL = 1024 };

static float glu_f(epilogue f, float x, float *slope) {
    if (f == EPILOGUE_SILU) {
        float s = 1 / (1 + vec_exp(-x));
        *slope = s * (1 + x * (1 - s));
        return x * s;
    }
    float cdf = 0.5f * (1 + erff(x * 0.70710678f));
    *slope = cdf + x * 0.39894228f * expf(-0.5f * x * x);
    return x * cdf;
}

static status glu_chunk(const cpu_rows *w) {
    const mol_glu_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const float *z = (const float *)a->z + 2 * i * a->dim, *up = z + a->dim;
        float *y = (float *)a->y + i * a->dim, slope;
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = glu_f(a->f, z[c], &slope) * up[c];
    }
    return OK;
}

static status glu_bwd_chunk(const cpu_rows *w) {
    const mol_glu_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        const float *z = (const float *)a->z + 2 * i * a->dim, *dy = (const float *)a->dy;
        float *dz = (float *)a->dz + 2 * i * a->dim, slope;
        for (int32_t c = 0; c < a->dim; c++) {
            float g = dy[i * a->dim + c], up = z[a->dim + c];
            dz[a->dim + c] = g * glu_f(a->f, z[c], &slope);
            dz[c] = g * up * slope;
        }
    }
    return OK;
}

status cpu_mol_glu_fwd(backend *be, const mol_glu_args *a) {
    return cpu_each_row(be, a->n, a->dim, glu_chunk, a);
}

status cpu_mol_glu_bwd(backend *be, const mol_glu_args *a) {
    return cpu_each_row(be, a->n, a->dim, glu_bwd_chunk, a);
}

status cpu_mol_index(backend *be, const mol_index_args *a) {
    int32_t n_each = a->n_negatives + 1;
    for (int64_t i = 0; i < a->n; i++) {
        bool is_empty = a->positive != NULL && a->positive[i] < 0;
        for (int32_t j = 0; j < n_each && a->item != NULL; j++)
            a->item[i * n_each + j] = is_empty             ? -1
                                      : j < a->n_negatives ? a->negative[i * a->n_negatives + j]
                                                           : a->positive[i];
        for (int32_t t = 0; t < a->n_user; t++)
            a->user_row[t * a->user_stride + i] =
                is_empty || a->user[i] == MOL_NOBODY ? -1 : (int32_t)(a->user[i] % a->hash[t]) + 1;
    }
    return OK;
}

/* What a unit of work needs. */
typedef struct unit {
    int64_t i;      /* the query */
    int32_t j, n;   /* its pairs j .. j + n - 1 */
    int32_t logits; /* P */
    int64_t at;     /* the first one's number */
} unit;

static unit unit_of(const mol_args *a, int64_t number) {
    int32_t n_blocks = (a->n_each + BLOCK - 1) / BLOCK, j = (int32_t)(number % n_blocks) * BLOCK;
    unit u = {.i = number / n_blocks, .j = j, .logits = a->n_query * a->n_item};
    u.n = a->n_each - j < BLOCK ? a->n_each - j : BLOCK;
    u.at = u.i * a->n_each + j;
    return u;
}

static int64_t n_units(const mol_args *a) {
    return a->n * ((a->n_each + BLOCK - 1) / BLOCK);
}

static int32_t item_of(const mol_args *a, const unit *u, int32_t j) {
    return a->item != NULL ? a->item[u->at + j] : u->j + j;
}

/* The component vectors of query i, next to each other. */
static void gather_query(const mol_args *a, int64_t i, float *to) {
    int64_t n_own = (int64_t)(a->n_query - a->n_user) * a->dim;
    memcpy(to, (const float *)a->query + i * n_own, (size_t)n_own * sizeof *to);
    for (int32_t t = 0; t < a->n_user; t++)
        memcpy(to + n_own + (int64_t)t * a->dim,
               (const float *)a->user + (t * a->user_stride + i) * a->dim,
               (size_t)a->dim * sizeof *to);
}

static void gather_items(const mol_args *a, const unit *u, float *to) {
    int64_t size = (int64_t)a->n_item * a->dim;
    for (int32_t j = 0; j < u->n; j++) {
        int32_t item = item_of(a, u, j);
        if (item >= 0)
            memcpy(to + j * size, (const float *)a->items + item * size, (size_t)size * sizeof *to);
        else
            memset(to + j * size, 0, (size_t)size * sizeof *to);
    }
}

/* Scratch of a unit: PRODUCT_ROOM, the query's vectors, the items', and the products. */
typedef struct unit_room {
    float *product, *query, *items, *out;
} unit_room;

static status take_room(const cpu_rows *w, const mol_args *a, unit_room *r) {
    int64_t n_query = (int64_t)a->n_query * a->dim, n_item = (int64_t)a->n_item * a->dim;
    int64_t n_out = (int64_t)BLOCK * a->n_query * a->n_item, n = PRODUCT_ROOM + 2 * n_query;
    TRY(cpu_scratch(w->be, w->worker, (size_t)(n + BLOCK * n_item + n_out) * sizeof(float),
                    (void **)&r->product));
    r->query = r->product + PRODUCT_ROOM;
    r->items = r->query + 2 * n_query;
    r->out = r->items + BLOCK * n_item;
    return OK;
}

static void drop_pairs(const mol_args *a, const dropout *d, const unit *u, int32_t j,
                       float *factor) {
    cpu_dropout_factors(d, u->i, (int64_t)(a->first_pair + u->j + j) * u->logits, u->logits,
                        factor);
}

static status pairs_unit(const cpu_rows *w) {
    const mol_args *a = w->ctx;
    unit u = unit_of(a, w->first);
    float scale = 1 / a->temperature, factor[SMALL];
    unit_room r;
    TRY(take_room(w, a, &r));
    gather_query(a, u.i, r.query);
    gather_items(a, &u, r.items);
    product_run_once(product_choose(), matrix_rows(r.items, a->dim),
                     matrix_transposed(matrix_rows(r.query, a->dim)), (int64_t)u.n * a->n_item,
                     a->dim, a->n_query, false, r.out, a->n_query, r.product);
    for (int32_t j = 0; j < u.n; j++) {
        const float *from = r.out + (int64_t)j * u.logits;
        float *s = a->s + (u.at + j) * u.logits;
        for (int32_t p = 0; p < a->n_query; p++)
            for (int32_t x = 0; x < a->n_item; x++)
                s[p * a->n_item + x] = scale * from[x * a->n_query + p];
        if (a->room.s_dropped == NULL) continue;
        drop_pairs(a, &a->drop_pair, &u, j, factor);
        for (int32_t c = 0; c < u.logits; c++)
            a->room.s_dropped[(u.at + j) * u.logits + c] = s[c] * factor[c];
    }
    return OK;
}

/* A row of P logits is at most SMALL. */
static status check_size(const mol_args *a) {
    if ((int64_t)a->n_query * a->n_item <= SMALL) return OK;
    return fail(ERR_UNSUPPORTED, "more than %d logits of a pair", SMALL);
}

/* One pair's gate. */
typedef struct mixture {
    float g[SMALL], soft[SMALL], gate[SMALL], factor[SMALL], sum;
} mixture;

static void mix(const mol_args *a, const unit *u, int32_t j, mixture *m) {
    int32_t n = u->logits, item = item_of(a, u, j);
    const float *pair = a->room.pair_gate + (u->at + j) * n;
    const float *query = (const float *)a->query_gate + u->i * n;
    const float *own = (const float *)a->item_gate + (int64_t)(item < 0 ? 0 : item) * n;
    float largest = -INFINITY, sum = 0, kept = 0;
    for (int32_t c = 0; c < n; c++) {
        m->g[c] = (item < 0 ? 0 : query[c] * own[c]) + pair[c];
        m->soft[c] = m->g[c] / (1 + vec_exp(-m->g[c]));
    }
    for (int32_t c = 0; c < n; c++)
        largest = m->soft[c] > largest ? m->soft[c] : largest;
    for (int32_t c = 0; c < n; c++)
        m->soft[c] = vec_exp(m->soft[c] - largest);
    for (int32_t c = 0; c < n; c++)
        sum += m->soft[c];
    drop_pairs(a, &a->drop_gate, u, j, m->factor);
    for (int32_t c = 0; c < n; c++) {
        m->soft[c] /= sum;
        m->gate[c] = m->soft[c] * m->factor[c];
    }
    for (int32_t c = 0; c < n; c++)
        kept += m->gate[c];
    m->sum = kept > 1e-6f ? kept : 1e-6f;
    for (int32_t c = 0; c < n; c++)
        m->gate[c] /= m->sum;
}

static status mix_unit(const cpu_rows *w) {
    const mol_args *a = w->ctx;
    unit u = unit_of(a, w->first);
    mixture m;
    for (int32_t j = 0; j < u.n; j++) {
        const float *s = a->s + (u.at + j) * u.logits;
        float sum = 0;
        mix(a, &u, j, &m);
        for (int32_t c = 0; c < u.logits; c++)
            sum += m.gate[c] * s[c];
        a->sim[u.i * a->sim_row + (u.j + j) * a->sim_pair] = sum;
        if (a->gate != NULL)
            memcpy(a->gate + (u.at + j) * u.logits, m.gate, (size_t)u.logits * sizeof *m.gate);
    }
    return OK;
}

static linear_args mlp_layer(const mol_args *a, int layer, const float *x, float *y) {
    int32_t n_logits = a->n_query * a->n_item;
    return (linear_args){.n = a->n * a->n_each,
                         .n_in = layer == 0 ? n_logits : a->pair_hidden,
                         .n_out = layer == 0 ? a->pair_hidden : n_logits,
                         .is_transposed = true,
                         .f = layer == 0 ? EPILOGUE_SILU : EPILOGUE_NONE,
                         .x = x,
                         .w = a->pair_w[layer],
                         .bias = a->pair_b[layer],
                         .z = layer == 0 ? a->room.z : NULL,
                         .y = y,
                         .dw = a->dpair_w[layer],
                         .dbias = a->dpair_b[layer]};
}

status cpu_mol_pairs_fwd(backend *be, const mol_args *a) {
    const float *in = a->room.s_dropped != NULL ? a->room.s_dropped : a->s;
    linear_args hidden = mlp_layer(a, 0, in, a->room.y);
    linear_args gate = mlp_layer(a, 1, a->room.y, a->room.pair_gate);
    TRY(check_size(a));
    if (n_units(a) == 0) return OK;
    TRY(cpu_each(be, n_units(a), 1, pairs_unit, a));
    TRY(cpu_linear_fwd(be, &hidden));
    TRY(cpu_linear_fwd(be, &gate));
    return cpu_each(be, n_units(a), 1, mix_unit, a);
}

/* From d (P), the gradient of the gates, to that of g. */
static void mix_gradient(const mixture *m, int32_t n, const float *d, float *dg) {
    float along = 0;
    for (int32_t c = 0; c < n && m->sum > 1e-6f; c++)
        along += d[c] * m->gate[c];
    for (int32_t c = 0; c < n; c++)
        dg[c] = (d[c] - along) / m->sum * m->factor[c];
    along = 0;
    for (int32_t c = 0; c < n; c++)
        along += dg[c] * m->soft[c];
    for (int32_t c = 0; c < n; c++) {
        float s = 1 / (1 + vec_exp(-m->g[c]));
        dg[c] = m->soft[c] * (dg[c] - along) * s * (1 + m->g[c] * (1 - s));
    }
}

static status mix_bwd_unit(const cpu_rows *w) {
    const mol_args *a = w->ctx;
    unit u = unit_of(a, w->first);
    mixture m;
    float d[SMALL];
    for (int32_t j = 0; j < u.n; j++) {
        int64_t at = (u.at + j) * u.logits;
        const float *s = a->s + at;
        float *ds = a->room.ds + at, *dg = a->room.dpair_gate + at, g = a->dsim[u.at + j];
        bool is_empty = item_of(a, &u, j) < 0, is_last = u.j + j == a->n_each - 1;
        mix(a, &u, j, &m);
        for (int32_t c = 0; c < u.logits; c++) {
            d[c] = g * s[c];
            ds[c] = g * m.gate[c];
        }
        for (int32_t c = 0; c < u.logits && a->balance > 0 && is_last && !is_empty; c++) {
            float mean = a->mean[c], gate = m.gate[c], e = 1e-6f;
            d[c] += *a->grad_scale * a->balance *
                    (logf(mean + e) + mean / (mean + e) - logf(gate + e) - gate / (gate + e));
        }
        mix_gradient(&m, u.logits, d, dg);
        if (is_empty) memset(ds, 0, (size_t)u.logits * sizeof *ds);
        if (is_empty) memset(dg, 0, (size_t)u.logits * sizeof *dg);
    }
    return OK;
}

/* ds of a block: what comes back through the MLP joins it.  Also as (P_Q, n, P_X), for the product
 * with the items. */
static void join_ds(const mol_args *a, const unit *u, float *turned) {
    float factor[SMALL];
    for (int32_t j = 0; j < u->n; j++) {
        int64_t at = (u->at + j) * u->logits;
        float *ds = a->room.ds + at;
        const float *more = a->room.ds_dropped + at;
        drop_pairs(a, &a->drop_pair, u, j, factor);
        for (int32_t c = 0; c < u->logits; c++)
            ds[c] += more[c] * factor[c];
        for (int32_t p = 0; p < a->n_query; p++)
            memcpy(turned + ((int64_t)p * u->n + j) * a->n_item, ds + p * a->n_item,
                   (size_t)a->n_item * sizeof *ds);
    }
}

static void put_query(const mol_args *a, int64_t i, const float *sum) {
    int64_t n_own = (int64_t)(a->n_query - a->n_user) * a->dim;
    float scale = 1 / a->temperature;
    for (int64_t c = 0; c < n_own; c++)
        ((float *)a->dquery)[i * n_own + c] = scale * sum[c];
    for (int32_t t = 0; t < a->n_user; t++)
        for (int32_t c = 0; c < a->dim; c++)
            ((float *)a->duser)[(t * a->user_stride + i) * a->dim + c] =
                scale * sum[n_own + (int64_t)t * a->dim + c];
}

/* The gradients of a query, block by block. */
static status query_bwd(const cpu_rows *w) {
    const mol_args *a = w->ctx;
    int32_t n_blocks = (a->n_each + BLOCK - 1) / BLOCK, n = a->n_query * a->n_item;
    float *dgate = (float *)a->dquery_gate + w->first * n;
    unit_room r;
    TRY(take_room(w, a, &r));
    memset(dgate, 0, (size_t)n * sizeof *dgate);
    for (int32_t b = 0; b < n_blocks; b++) {
        unit u = unit_of(a, w->first * n_blocks + b);
        gather_items(a, &u, r.items);
        join_ds(a, &u, r.out);
        product_run_once(product_choose(), matrix_rows(r.out, (ptrdiff_t)u.n * a->n_item),
                         matrix_rows(r.items, a->dim), a->n_query, (int64_t)u.n * a->n_item, a->dim,
                         b > 0, r.query, a->dim, r.product);
        for (int32_t j = 0; j < u.n; j++) {
            int32_t item = item_of(a, &u, j);
            const float *dg = a->room.dpair_gate + (u.at + j) * n;
            const float *own = (const float *)a->item_gate + (int64_t)(item < 0 ? 0 : item) * n;
            for (int32_t c = 0; c < n && item >= 0; c++)
                dgate[c] += dg[c] * own[c];
        }
    }
    put_query(a, w->first, r.query);
    return OK;
}

/* The gradients of an item: its pairs in order. */
static status item_bwd(const cpu_rows *w) {
    const mol_args *a = w->ctx;
    int32_t n = a->n_query * a->n_item;
    float scale = 1 / a->temperature;
    unit_room r;
    TRY(take_room(w, a, &r));
    for (int64_t item = w->first; item < w->end; item++)
        for (int32_t k = a->groups.begin[item]; k < a->groups.begin[item + 1]; k++) {
            int64_t pair = a->groups.order[k], i = pair / a->n_each;
            const float *ds = a->room.ds + pair * n, *gate = a->query_gate;
            const float *dg = a->room.dpair_gate + pair * n;
            float *to = a->ditem + item * a->n_item * a->dim, *dgate = a->ditem_gate + item * n;
            gather_query(a, i, r.query);
            for (int32_t p = 0; p < a->n_query; p++)
                for (int32_t x = 0; x < a->n_item; x++) {
                    float weight = scale * ds[p * a->n_item + x];
                    const float *from = r.query + (int64_t)p * a->dim;
                    for (int32_t c = 0; c < a->dim; c++)
                        to[x * a->dim + c] += weight * from[c];
                }
            for (int32_t c = 0; c < n; c++)
                dgate[c] += dg[c] * gate[i * n + c];
        }
    return OK;
}

status cpu_mol_pairs_bwd(backend *be, const mol_args *a) {
    const float *in = a->room.s_dropped != NULL ? a->room.s_dropped : a->s;
    linear_args hidden = mlp_layer(a, 0, in, a->room.y);
    linear_args gate = mlp_layer(a, 1, a->room.y, a->room.pair_gate);
    TRY(check_size(a));
    if (n_units(a) == 0) return OK;
    TRY(cpu_each(be, n_units(a), 1, mix_bwd_unit, a));
    /* dpair_gate stays: a layer without activation leaves the gradient it is given. */
    gate.dy = a->room.dpair_gate;
    gate.dx = hidden.dy = a->room.dy;
    hidden.dx = a->room.ds_dropped;
    TRY(cpu_linear_bwd(be, &gate));
    TRY(cpu_linear_bwd(be, &hidden));
    TRY(cpu_each(be, a->n, 1, query_bwd, a));
    return cpu_each(be, a->groups.n_rows, 16, item_bwd, a);
}

status cpu_mol_balance(backend *be, const mol_balance_args *a) {
    double sum = 0, mi = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++)
        n += a->item[i] >= 0;
    for (int32_t c = 0; c < a->dim; c++) {
        sum = 0;
        for (int64_t i = 0; i < a->n; i++) {
            double gate = a->item[i] < 0 ? 0 : (double)a->gate[i * a->dim + c];
            sum += gate;
            mi -= gate * log(gate + 1e-6);
        }
        sum /= n > 0 ? (double)n : 1;
        a->mean[c] = (float)sum;
        mi += (double)n * sum * log(sum + 1e-6);
    }
    *a->loss += (double)a->weight * mi;
    return OK;
}

status cpu_mol_penalty(backend *be, const mol_penalty_args *a) {
    const float *x = a->x;
    float *dx = a->dx, factor = 2 * *a->grad_scale * a->weight;
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) {
        sum += (double)x[i] * (double)x[i];
        dx[i] += factor * x[i];
    }
    *a->loss += (double)a->weight * sum;
    return OK;
}

/* The loss of a row, whose scores become their gradients. */
static double row_loss(const mol_loss_args *a, int64_t i) {
    int32_t n = a->n_negatives;
    const int32_t *item = a->item + i * (n + 1);
    float *sim = a->sim + i * (n + 1), largest = -INFINITY, scale = 1 / a->temperature;
    double sum = 0;
    if (item[n] < 0) {
        memset(sim, 0, (size_t)(n + 1) * sizeof *sim);
        return 0;
    }
    for (int32_t j = 0; j <= n; j++) {
        sim[j] = j < n && item[j] == item[n] ? -50000 : sim[j] * scale;
        largest = sim[j] > largest ? sim[j] : largest;
    }
    float positive = sim[n];
    for (int32_t j = 0; j <= n; j++) {
        sim[j] = vec_exp(sim[j] - largest);
        sum += (double)sim[j];
    }
    for (int32_t j = 0; j <= n; j++)
        sim[j] = j < n && item[j] == item[n]
                     ? 0
                     : *a->grad_scale * scale * ((float)(sim[j] / sum) - (j == n ? 1.0f : 0.0f));
    return log(sum) + (double)largest - (double)positive;
}

typedef struct loss_job {
    const mol_loss_args *a;
    double *loss; /* (n) */
} loss_job;

static status loss_chunk(const cpu_rows *w) {
    const loss_job *j = w->ctx;
    for (int64_t i = w->first; i < w->end; i++)
        j->loss[i] = row_loss(j->a, i);
    return OK;
}

status cpu_mol_loss(backend *be, const mol_loss_args *a) {
    loss_job j = {.a = a};
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)a->n * sizeof *j.loss, (void **)&j.loss));
    TRY(cpu_each_row(be, a->n, a->n_negatives + 1, loss_chunk, &j));
    for (int64_t i = 0; i < a->n; i++)
        *a->loss += j.loss[i];
    return OK;
}
