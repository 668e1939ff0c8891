/* The work of ranks and the sizes of messages, from a config. */
#include <math.h>
#include <string.h>

#include "cli/bench/cluster.h"

/* Weights of a product and its bias. */
static double dense(double from, double to) {
    return from * to + to;
}

/* Parameters that every rank has: layers, input MLPs, the head. */
static double count_dense(const config *c) {
    const config_network *w = &c->network;
    double e = (double)w->hidden_size, inner = (double)(w->n_heads * w->dim_v), from = e, sum;
    double uvqk = 2 * (double)w->n_heads * (double)(w->dim_qk + w->dim_v);
    sum = (double)w->n_layers * (dense(e, uvqk) + dense(inner, e) + 2 * e + 2 * inner);
    if (c->task == TASK_RANKING && w->item_dim > 0)
        sum += dense((double)w->item_dim, e) + dense(e, e);
    if (w->contextual_dim > 0) sum += dense((double)w->contextual_dim, e) + dense(e, e);
    for (size_t i = 0; c->task == TASK_RANKING && i < c->ranking.head.n; i++) {
        sum += dense(from, (double)c->ranking.head.item[i]);
        from = (double)c->ranking.head.item[i];
    }
    return sum;
}

/* The group of generated features with the items. */
static const config_feature *item_feature(const config *c) {
    const config_features *f = &c->benchmark.features;
    for (size_t i = 0; c->is_benchmark && i < f->n; i++)
        for (size_t k = 0; k < f->item[i].feature_names.n; k++)
            if (c->benchmark.item_feature != NULL &&
                strcmp(f->item[i].feature_names.item[k], c->benchmark.item_feature) == 0)
                return &f->item[i];
    return NULL;
}

static double zipf_alpha(const config_distribution *d) {
    return d->kind == DIST_ZIPF ? d->alpha > 1 ? d->alpha : 1.5 : 0;
}

static void read_feature(const config *c, const config_feature *f, cluster_work *w) {
    w->max_length = f->max_sequence_length;
    w->lengths = !f->is_jagged            ? LENGTHS_FIXED
                 : f->seqlen_dist == NULL ? LENGTHS_UNIFORM
                                          : LENGTHS_ZIPF;
    if (w->lengths == LENGTHS_ZIPF) {
        w->length_alpha = zipf_alpha(f->seqlen_dist);
        if (w->length_alpha == 0) w->lengths = LENGTHS_UNIFORM;
    }
    for (size_t i = 0; i < f->value_dists.n; i++)
        if (strcmp(f->value_dists.name[i], c->benchmark.item_feature) == 0)
            w->id_alpha = zipf_alpha(&f->value_dists.item[i]);
}

status cluster_work_of(const config *c, cluster_work *out) {
    const config_feature *f = item_feature(c);
    const config_network *n = &c->network;
    cluster_work w = {.c = c, .batch = c->trainer.train_batch_size, .lengths = LENGTHS_FIXED};
    *out = (cluster_work){0};
    if (w.batch < 1 || w.batch > 1 << 20)
        return fail(ERR_CONFIG, "%s: a batch size from 1 to 2^20 is needed for a prediction",
                    c->file);
    w.max_length = c->data.max_history;
    w.n_context = c->is_benchmark ? (int32_t)c->benchmark.contextual_features.n : 0;
    for (size_t i = 0; i < c->embeddings.n; i++)
        if (c->embeddings.item[i].capacity > w.n_ids) w.n_ids = c->embeddings.item[i].capacity;
    if (f != NULL) read_feature(c, f, &w);
    if (w.max_length < 1 || w.max_length > 1 << 20)
        return fail(ERR_CONFIG, "%s: histories of up to %lld events; 1 to 2^20 can be predicted",
                    c->file, (long long)w.max_length);
    if (w.n_ids < 1) w.n_ids = 1 << 20;
    w.dense_bytes = 4 * count_dense(c);
    w.row_bytes = 4 * (double)(n->item_dim > 0 ? n->item_dim : n->hidden_size);
    *out = w;
    return OK;
}

/* The sum over ids of 1 - (1 - p)^n: the first ids one by one, the rest in bins that grow by 1 %
 * and have the probability of their middle. */
double cluster_unique(double n, double alpha, double n_ids) {
    enum { ONE_BY_ONE = 4096 };
    double total = 0, sum = 0;
    if (!(alpha > 1)) return n_ids * -expm1(n * log1p(-1 / (n_ids > 1 ? n_ids : 2)));
    for (int pass = 0; pass < 2; pass++)
        for (double k = 1; k <= n_ids;) {
            double width = k < ONE_BY_ONE ? 1 : floor(k * .01);
            if (k + width > n_ids + 1) width = n_ids + 1 - k;
            double weight = pow(k + (width - 1) / 2, -alpha);
            if (pass == 0)
                total += width * weight;
            else
                sum += width * -expm1(n * log1p(-weight / total * .9999999999));
            k += width;
        }
    return sum;
}
