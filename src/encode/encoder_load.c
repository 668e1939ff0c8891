/* Weights of an encoder: read tensor by tensor, as float32, into one host buffer; copied to the
 * backend and packed there. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/rng.h"
#include "encode/encoder_files.h"
#include "encode/encoder_int.h"

enum { NAME_BYTES = 200 };

typedef struct loader {
    encoder *e;
    encoder_files *files; /* NULL: random weights */
    rng_key key;
    uint64_t n_drawn; /* tensors */
    float *host;      /* the tensor being loaded */
    float *bias;
    float *room; /* the same on the backend */
} loader;

/* Numbers like those of a trained model: weights of deviation .02, as BERT's start. */
static void draw(loader *l, int64_t n, float centre, float *to) {
    for (int64_t i = 0; i < n; i += 4) {
        rng_block four = rng_draw64(l->key, (uint64_t)i, l->n_drawn);
        for (int64_t k = 0; k < 4 && i + k < n; k++)
            to[i + k] = centre + 0.0692820323f * (rng_uniform(four.word[k]) - 0.5f);
    }
    l->n_drawn++;
}

/* A tensor (rows, columns), or (rows) where columns is 0. */
static status fetch(loader *l, const char *name, int64_t rows, int64_t columns, float *to) {
    int64_t n = columns > 0 ? rows * columns : rows;
    const st_tensor *t;
    l->e->n_parameters += (uint64_t)n;
    if (l->files == NULL) {
        draw(l, n, 0, to);
        return OK;
    }
    TRY(encoder_files_get(l->files, name, rows, columns, &t));
    encoder_tensor_floats(t, 0, n, to);
    return OK;
}

static status fetch_norm_part(loader *l, const char *name, const char *part, float centre,
                              float **out) {
    int32_t dim = l->e->config.dim;
    const st_tensor *t;
    l->e->n_parameters += (uint64_t)dim;
    TRY(NN_NEW(&l->e->memory, out, dim));
    if (l->files == NULL) {
        draw(l, dim, centre, l->host);
    } else {
        TRY(encoder_files_get_norm(l->files, name, part, dim, &t));
        encoder_tensor_floats(t, 0, dim, l->host);
    }
    return l->e->be->ops->copy_in(l->e->be, *out, l->host, (size_t)dim * sizeof *l->host);
}

static status load_norm(loader *l, const char *name, bert_norm *out) {
    TRY(fetch_norm_part(l, name, "weight", 1, &out->weight));
    return fetch_norm_part(l, name, "bias", 0, &out->bias);
}

/* The words' embeddings, usually the largest tensor: copied in pieces of the host buffer. */
static status load_words(loader *l) {
    encoder *e = l->e;
    int64_t dim = e->config.dim, n_words = e->config.n_words, step = e->config.dim_ffn;
    const st_tensor *t = NULL;
    if (l->files != NULL)
        TRY(encoder_files_get(l->files, "embeddings.word_embeddings.weight", n_words, dim, &t));
    TRY(NN_NEW(&e->memory, &e->words, n_words * dim));
    e->n_parameters += (uint64_t)(n_words * dim);
    for (int64_t row = 0; row < n_words; row += step) {
        int64_t n = (row + step < n_words ? step : n_words - row) * dim;
        if (t != NULL)
            encoder_tensor_floats(t, row * dim, n, l->host);
        else
            draw(l, n, 0, l->host);
        TRY(e->be->ops->copy_in(e->be, e->words + row * dim, l->host, (size_t)n * sizeof *l->host));
    }
    return OK;
}

/* position + type for each pair of them, so that one gather adds both: `position` (n_positions, E),
 * `type` (n_types, E) or zeros, `sum` room for a type's rows. */
static status add_places(loader *l, int64_t n_types, const float *position, const float *type,
                         float *sum) {
    encoder *e = l->e;
    int64_t dim = e->config.dim, n = (int64_t)e->config.n_positions * dim;
    TRY(NN_NEW(&e->memory, &e->places, n_types * n));
    for (int64_t k = 0; k < n_types; k++) {
        for (int64_t i = 0; i < n; i++)
            sum[i] = position[i] + type[k * dim + i % dim];
        TRY(e->be->ops->copy_in(e->be, e->places + k * n, sum, (size_t)n * sizeof *sum));
    }
    return OK;
}

static status load_places(loader *l) {
    const encoder_config *c = &l->e->config;
    int64_t dim = c->dim, n_types = c->n_types > 0 ? c->n_types : 1;
    float *position = NULL, *type = NULL, *sum = NULL;
    status st = MEM_NEW_RAW(&position, (size_t)(c->n_positions * dim));
    if (st == OK) st = MEM_NEW_RAW(&sum, (size_t)(c->n_positions * dim));
    if (st == OK) st = MEM_NEW(&type, (size_t)(n_types * dim));
    if (st == OK)
        st = fetch(l, "embeddings.position_embeddings.weight", c->n_positions, dim, position);
    if (st == OK && c->n_types > 0)
        st = fetch(l, "embeddings.token_type_embeddings.weight", c->n_types, dim, type);
    if (st == OK) st = add_places(l, n_types, position, type, sum);
    mem_free(position);
    mem_free(type);
    mem_free(sum);
    return st;
}

/* The names of the parts of a layer, after "encoder.layer.0." */
typedef struct layer_names {
    const char *prefix, *q, *k, *v, *out, *attn_norm, *up, *down, *ffn_norm;
} layer_names;

static const layer_names BERT_NAMES = {
    "encoder.layer",        "attention.self.query",   "attention.self.key",
    "attention.self.value", "attention.output.dense", "attention.output.LayerNorm",
    "intermediate.dense",   "output.dense",           "output.LayerNorm"};
static const layer_names DISTIL_NAMES = {
    "transformer.layer", "attention.q_lin",   "attention.k_lin",
    "attention.v_lin",   "attention.out_lin", "sa_layer_norm",
    "ffn.lin1",          "ffn.lin2",          "output_layer_norm"};

/* The output channel's largest weight becomes 127 steps. */
static void round_channel(encoder *e, int64_t n_in, float *w) {
    float largest = 0;
    for (int64_t k = 0; k < n_in; k++)
        largest = fmaxf(largest, fabsf(w[k]));
    float scale = largest / INT8_MAX;
    for (int64_t k = 0; k < n_in; k++) {
        float rounded = scale > 0 ? rintf(w[k] / scale) * scale : 0;
        e->int8_moved += ((double)rounded - w[k]) * ((double)rounded - w[k]);
        e->int8_size += (double)w[k] * w[k];
        w[k] = rounded;
    }
}

static status fetch_dense(loader *l, const char *name, int32_t n_out, int32_t n_in, float *w,
                          float *bias) {
    char whole[2 * NAME_BYTES];
    snprintf(whole, sizeof whole, "%s.weight", name);
    TRY(fetch(l, whole, n_out, n_in, w));
    for (int64_t n = 0; l->e->has_int8_weights && n < n_out; n++)
        round_channel(l->e, n_in, w + n * n_in);
    snprintf(whole, sizeof whole, "%s.bias", name);
    return fetch(l, whole, n_out, 0, bias);
}

static status load_dense(loader *l, const char *name, int32_t n_in, int32_t n_out,
                         bert_dense *out) {
    TRY(fetch_dense(l, name, n_out, n_in, l->host, l->bias));
    return bert_dense_init(out, &l->e->memory, l->host, l->bias, n_in, n_out, l->e->layers != NULL,
                           l->room);
}

/* Queries, keys and values by one product. */
static status load_qkv(loader *l, const layer_names *names, int index, bert_dense *out) {
    int32_t dim = l->e->config.dim;
    const char *part[3] = {names->q, names->k, names->v};
    for (int i = 0; i < 3; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s.%d.%s", names->prefix, index, part[i]);
        TRY(fetch_dense(l, name, dim, dim, l->host + (int64_t)i * dim * dim, l->bias + i * dim));
    }
    return bert_dense_init(out, &l->e->memory, l->host, l->bias, dim, 3 * dim, l->e->layers != NULL,
                           l->room);
}

static status load_layer(loader *l, int index, bert_layer *to) {
    const encoder_config *c = &l->e->config;
    const layer_names *names = c->family == ENCODER_DISTILBERT ? &DISTIL_NAMES : &BERT_NAMES;
    char name[NAME_BYTES];
#define NAME(part) (snprintf(name, sizeof name, "%s.%d.%s", names->prefix, index, part), name)
    TRY(load_qkv(l, names, index, &to->qkv));
    TRY(load_dense(l, NAME(names->out), c->dim, c->dim, &to->out));
    TRY(load_norm(l, NAME(names->attn_norm), &to->attn_norm));
    TRY(load_dense(l, NAME(names->up), c->dim, c->dim_ffn, &to->up));
    TRY(load_dense(l, NAME(names->down), c->dim_ffn, c->dim, &to->down));
    return load_norm(l, NAME(names->ffn_norm), &to->ffn_norm);
#undef NAME
}

static status load_pooler(loader *l) {
    encoder *e = l->e;
    e->has_pooler = l->files != NULL ? encoder_files_has(l->files, "pooler.dense.weight")
                                     : e->config.family != ENCODER_DISTILBERT;
    if (!e->has_pooler) return OK;
    return load_dense(l, "pooler.dense", e->config.dim, e->config.dim, &e->pooler);
}

static status load_all(loader *l) {
    encoder *e = l->e;
    TRY(load_words(l));
    TRY(load_places(l));
    TRY(load_norm(l, "embeddings.LayerNorm", &e->input_norm));
    TRY(NN_NEW_HOST(&e->memory, &e->layer, e->config.n_layers));
    for (int i = 0; i < e->config.n_layers; i++)
        TRY(load_layer(l, i, &e->layer[i]));
    return load_pooler(l);
}

status encoder_load(encoder *e, encoder_files *files, uint64_t seed) {
    const encoder_config *c = &e->config;
    int64_t widest = c->dim_ffn > 3 * c->dim ? c->dim_ffn : 3 * (int64_t)c->dim;
    loader l = {.e = e, .files = files, .key = rng_make_key(seed, RNG_INIT)};
    status st = MEM_NEW_RAW(&l.host, (size_t)(widest * c->dim));
    if (st == OK) st = MEM_NEW_RAW(&l.bias, (size_t)widest);
    if (st == OK)
        st = e->be->ops->alloc(e->be, (void **)&l.room, (size_t)(widest * c->dim) * sizeof *l.room);
    if (st == OK) st = load_all(&l);
    if (st == OK) st = e->be->ops->sync(e->be); /* before its room is released */
    e->be->ops->release(e->be, l.room);
    mem_free(l.host);
    mem_free(l.bias);
    return st;
}
