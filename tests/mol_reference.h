/* The mixture of logits in double, as its formulas read, for a batch of rows with R negatives each:
 * what nn/mol.c is tested against, and what golden vectors test in turn. */
#pragma once

#include <math.h>

#include "nn/mol.h"

enum { REF_PARAMS = 32, REF_LOGITS = 128, REF_WIDE = 2048 };

/* Which dropout a factor belongs to; tables of users count on from REF_USER. */
enum { REF_QUERY, REF_ITEM, REF_PAIR, REF_GATE, REF_USER };

typedef struct mol_ref {
    const mol *m;
    const param_list *l;
    double *w[REF_PARAMS]; /* values of each parameter */
    int64_t n, n_items;
    int32_t n_negatives;
    double *x, *items;                  /* (n, E), (n_items, E) */
    const int32_t *positive, *negative; /* (n), (n, R) */
    const uint32_t *user;               /* (n) */
    /* The factor of element (row, column) of a dropout; rows of REF_ITEM are items. */
    double (*factor)(const void *ctx, int which, int64_t row, int32_t column);
    const void *ctx;
    double *sim, *gates; /* (n, R + 1), (n, R + 1, P), or NULL */
    double mi, user_l2;  /* of the last run */
} mol_ref;

static inline const double *ref_w(const mol_ref *r, const param *p) {
    return p != NULL ? r->w[p - r->l->item] : NULL;
}

/* y = x W^T + b, of (out, in). */
static inline void ref_linear(const mol_ref *r, const param *w, const param *b, const double *x,
                              double *y) {
    for (int64_t o = 0; o < w->shape[0]; o++) {
        y[o] = b != NULL ? ref_w(r, b)[o] : 0;
        for (int64_t i = 0; i < w->shape[1]; i++)
            y[o] += x[i] * ref_w(r, w)[o * w->shape[1] + i];
    }
}

static inline void ref_mlp(const mol_ref *r, param *const w[2], const param *b0, const param *b1,
                           const double *x, double *y) {
    double z[REF_WIDE];
    ref_linear(r, w[0], b0, x, z);
    for (int64_t i = 0; i < w[0]->shape[0]; i++)
        z[i] /= 1 + exp(-z[i]);
    ref_linear(r, w[1], b1, z, y);
}

static inline void ref_unit(double *x, int32_t n, double eps) {
    double sum = 0;
    for (int32_t c = 0; c < n; c++)
        sum += x[c] * x[c];
    for (int32_t c = 0; c < n; c++)
        x[c] /= fmax(sqrt(sum), eps);
}

static inline void ref_side(const mol_ref *r, const mol_side *s, int which, int64_t row,
                            const double *x, double *unit, double *gate) {
    double in[REF_WIDE], z[REF_WIDE], a[REF_WIDE];
    int32_t h = s->config.hidden;
    for (int32_t c = 0; c < s->n_in; c++)
        in[c] = a[c] = x[c] * r->factor(r->ctx, which, row, c);
    for (int32_t c = 0; c < 2 * h; c++) {
        z[c] = ref_w(r, s->glu_b)[c];
        for (int32_t i = 0; i < s->n_in; i++)
            z[c] += in[i] * ref_w(r, s->glu_w)[i * 2 * h + c];
    }
    for (int32_t c = 0; c < h; c++)
        a[c] = z[h + c] * z[c] *
               (s->config.f == EPILOGUE_SILU ? 1 / (1 + exp(-z[c])) : 0.5 * erfc(-z[c] / sqrt(2)));
    ref_linear(r, s->w, s->b, a, unit);
    for (int32_t p = 0; p < s->n_parts; p++)
        ref_unit(unit + p * r->m->config.dim_dot, r->m->config.dim_dot, (double)r->m->config.eps);
    ref_mlp(r, s->gate_w, s->gate_b, NULL, x, gate);
}

/* The components and the gate of a query; its penalty is added. */
static inline void ref_query(mol_ref *r, int64_t i, double *unit, double *gate) {
    const mol_config *c = &r->m->config;
    ref_side(r, &r->m->query, REF_QUERY, i, r->x + i * c->dim, unit, gate);
    for (int t = 0; t < c->n_user; t++) {
        double *to = unit + r->m->query.n_out + (int64_t)t * c->dim_dot;
        int64_t row = r->user[i] == MOL_NOBODY ? -1 : (int64_t)(r->user[i] % c->hash[t]) + 1;
        for (int32_t k = 0; k < c->dim_dot; k++) {
            double x = row < 0 ? 0 : ref_w(r, r->m->user[t])[row * c->dim_dot + k];
            r->user_l2 += x * x;
            to[k] = x * r->factor(r->ctx, REF_USER + t, i, k);
        }
        ref_unit(to, c->dim_dot, (double)c->eps);
    }
}

/* The similarity of query i and its pair j; gate (P). */
static inline double ref_pair(const mol_ref *r, int64_t i, int32_t j, int32_t item,
                              const double *query, const double *query_gate, double *gate) {
    const mol_config *c = &r->m->config;
    double unit[REF_WIDE], own[REF_LOGITS], s[REF_LOGITS], in[REF_LOGITS], sum = 0, kept = 0;
    int32_t n = c->n_query * c->n_item;
    ref_side(r, &r->m->item, REF_ITEM, item, r->items + (int64_t)item * c->dim, unit, own);
    for (int32_t k = 0; k < n; k++) {
        s[k] = 0;
        for (int32_t d = 0; d < c->dim_dot; d++)
            s[k] += query[k / c->n_item * c->dim_dot + d] * unit[k % c->n_item * c->dim_dot + d];
        s[k] /= (double)c->temperature;
        in[k] = s[k] * r->factor(r->ctx, REF_PAIR, i, j * n + k);
    }
    ref_mlp(r, r->m->pair_w, r->m->pair_b[0], r->m->pair_b[1], in, gate);
    for (int32_t k = 0; k < n; k++) {
        double g = query_gate[k] * own[k] + gate[k];
        gate[k] = exp(g / (1 + exp(-g)));
        sum += gate[k];
    }
    for (int32_t k = 0; k < n; k++)
        kept += gate[k] *= r->factor(r->ctx, REF_GATE, i, j * n + k) / sum;
    sum = 0;
    for (int32_t k = 0; k < n; k++)
        sum += (gate[k] /= fmax(kept, 1e-6)) * s[k];
    return sum;
}

/* The mean of the rows' softmax losses; mi and user_l2 (a mean, too) are noted. */
static inline double ref_run(mol_ref *r, double temperature) {
    const mol_config *c = &r->m->config;
    int32_t n_gate = c->n_query * c->n_item, n_each = r->n_negatives + 1;
    double loss = 0, mean[REF_LOGITS] = {0}, entropy = 0;
    r->user_l2 = r->mi = 0;
    for (int64_t i = 0; i < r->n; i++) {
        double unit[REF_WIDE], query_gate[REF_LOGITS], gate[REF_LOGITS], sum = 0, sim = 0;
        ref_query(r, i, unit, query_gate);
        for (int32_t j = 0; j < n_each; j++) {
            bool is_last = j == r->n_negatives;
            int32_t item = is_last ? r->positive[i] : r->negative[i * r->n_negatives + j];
            sim = ref_pair(r, i, j, item, unit, query_gate, gate);
            if (r->sim != NULL) r->sim[i * n_each + j] = sim;
            for (int32_t k = 0; k < n_gate && r->gates != NULL; k++)
                r->gates[(i * n_each + j) * n_gate + k] = gate[k];
            if (is_last || item != r->positive[i]) sum += exp(sim / temperature);
        }
        loss += log(sum) - sim / temperature;
        for (int32_t k = 0; k < n_gate; k++) {
            mean[k] += gate[k] / (double)r->n;
            entropy -= gate[k] * log(gate[k] + 1e-6) / (double)r->n;
        }
    }
    for (int32_t k = 0; k < n_gate; k++)
        r->mi += mean[k] * log(mean[k] + 1e-6);
    r->mi += entropy;
    r->user_l2 /= (double)r->n;
    return loss / (double)r->n;
}
