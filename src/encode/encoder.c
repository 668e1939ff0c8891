#include "encode/encoder.h"

#include "encode/bert_layer.h"
#include "encode/encoder_files.h"
#include "format/json.h"
#include "ops/mask_tiles.h"

struct encoder {
    encoder_config config;
    bert_layer_config layer_config;
    const encoder_layers *layers; /* or NULL */
    backend *be;
    nn_memory memory;
    uint64_t n_parameters;
    bool has_int8_weights;
    double int8_moved, int8_size; /* sums of squares over the weights: of what rounding changed */

    float *words;  /* (n_words, E) */
    float *places; /* (max(n_types, 1), n_positions, E): position + type */
    bert_norm input_norm;
    bert_layer *layer; /* (n_layers) */
    bert_dense pooler;
    bool has_pooler;

    int64_t capacity;       /* tokens */
    staged_i32 word, place; /* (capacity): rows of words and places; -1 pads */
    staged_i32 offsets;     /* (capacity + 1) */
    staged_i32 input;       /* (3 capacity + 1): the three one after the other, for one copy */
    int32_t *lengths;       /* (capacity) host */
    int32_t n_sequences, max_len;
    int64_t n_tokens, n_before; /* n_before: sequences of earlier batches */
    mask_batch *mask;           /* or NULL */
    bert_acts acts;
    void *x;              /* (capacity, E) act */
    void *first, *pooled; /* (capacity, E) act: first tokens, and pooled; only with a pooler */
};

/* Weights: read tensor by tensor, as float32, into one host buffer; copied to the backend and
 * packed there. */

enum { NAME_BYTES = 256 };

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
    st_floats(t, 0, n, to);
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
        st_floats(t, 0, dim, l->host);
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
            st_floats(t, row * dim, n, l->host);
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
    MEM_FREE(position, type, sum);
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

/* Fills everything up to the pooler: from files, or random where files is NULL. */
static status load_weights(encoder *e, encoder_files *files, uint64_t seed) {
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
    MEM_FREE(l.host, l.bias);
    return st;
}

/* Batches. */

/* Shapes of recorded steps are rounded up by at most one part in 16, so that few graphs serve
 * batches of any size. */
enum { MIN_UNIT = 16 };

static int64_t round_up(int64_t n) {
    int64_t unit = MIN_UNIT;
    while (unit * 32 <= n)
        unit *= 2;
    return (n + unit - 1) / unit * unit;
}

static status alloc_pass(encoder *e, const encoder_options *o) {
    const encoder_config *c = &e->config;
    int64_t longest = encoder_max_len(c), n = o->batch_tokens > longest ? o->batch_tokens : longest;
    if (n > INT32_MAX / 4)
        return fail(ERR_USAGE, "a batch of %lld tokens is too large", (long long)n);
    e->capacity = n;
    n = round_up(n);
    TRY(NN_NEW_HOST(&e->memory, &e->word.host, n));
    TRY(NN_NEW_HOST(&e->memory, &e->place.host, n));
    TRY(NN_NEW_HOST(&e->memory, &e->offsets.host, round_up(n) + 1));
    TRY(STAGED_NEW(&e->memory, &e->input, 2 * n + round_up(n) + 1));
    TRY(NN_NEW_HOST(&e->memory, &e->lengths, round_up(n)));
    TRY(bert_acts_alloc(&e->acts, &e->layer_config, &e->memory, n));
    TRY(nn_new_act(&e->memory, &e->x, n + 1, c->dim)); /* (pool_first) */
    if (e->has_pooler) {
        TRY(nn_new_act(&e->memory, &e->first, n, c->dim));
        TRY(nn_new_act(&e->memory, &e->pooled, n, c->dim));
    }
    if (o->mask == NULL) return OK;
    return mask_batch_create(&e->mask, e->be, o->mask, (int32_t)round_up(n));
}

const char *const encoder_dtypes[] = {"float32", "bfloat16", "float16", "int8", NULL};

status encoder_set_dtype(backend *be, int dtype, encoder_options *o) {
    o->has_int8_weights = dtype == ENCODER_INT8;
    return be->ops->set_precision(be, dtype <= ACT_F16 ? (act_type)dtype : ACT_F16, false);
}

static status create(encoder **out, const encoder_config *c, encoder_files *files, uint64_t seed,
                     backend *be, const encoder_options *o) {
    encoder *e = NULL;
    *out = NULL;
    TRY(MEM_NEW(&e, 1));
    e->config = *c;
    e->layer_config = (bert_layer_config){c->dim, c->n_heads, c->dim_ffn, c->f, c->eps};
    e->be = be;
    e->layers = o->layers;
    e->has_int8_weights = o->has_int8_weights;
    nn_memory_init(&e->memory, be);
    status st = load_weights(e, files, seed);
    if (st == OK && files != NULL) st = encoder_files_finish(files, o->has_head);
    if (st == OK) st = alloc_pass(e, o);
    return CREATED(st, out, e, encoder_destroy);
}

status encoder_create(encoder **out, const char *folder, backend *be, const encoder_options *o) {
    encoder_config c;
    encoder_files *files;
    *out = NULL;
    TRY(encoder_config_read(&c, folder));
    TRY(encoder_files_open(&files, folder, c.family));
    status st = create(out, &c, files, 0, be, o);
    encoder_files_close(files);
    return st;
}

status encoder_create_random(encoder **out, const encoder_config *c, uint64_t seed, backend *be,
                             const encoder_options *o) {
    return create(out, c, NULL, seed, be, o);
}

void encoder_destroy(encoder *e) {
    if (e == NULL) return;
    mask_batch_destroy(e->mask);
    nn_memory_fini(&e->memory);
    mem_free(e);
}

const encoder_config *encoder_config_of(const encoder *e) {
    return &e->config;
}

bool encoder_has_pooler(const encoder *e) {
    return e->has_pooler;
}

uint64_t encoder_n_parameters(const encoder *e) {
    return e->n_parameters;
}

double encoder_int8_error(const encoder *e) {
    return e->int8_size > 0 ? sqrt(e->int8_moved / e->int8_size) : 0;
}

int64_t encoder_capacity(const encoder *e) {
    return e->capacity;
}

int32_t encoder_n_sequences(const encoder *e) {
    return e->n_sequences;
}

const int32_t *encoder_offsets(const encoder *e) {
    return e->offsets.host;
}

bool encoder_fits(const encoder *e, int64_t n) {
    return e->n_sequences == 0 || n <= e->capacity - e->n_tokens;
}

static status check_sequence(const encoder_config *c, const int32_t *ids, const int32_t *types,
                             int64_t n) {
    if (n < 1) return fail(ERR_FORMAT, "a sequence without tokens");
    if (n > encoder_max_len(c))
        return fail(ERR_FORMAT, "%lld tokens: the model has positions for %d", (long long)n,
                    encoder_max_len(c));
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= c->n_words)
            return fail(ERR_FORMAT, "token %lld: id %d is not in the vocabulary of %d",
                        (long long)i, ids[i], c->n_words);
        if (types == NULL || types[i] == 0) continue;
        if (types[i] < 0 || types[i] >= c->n_types)
            return fail(ERR_FORMAT, "token %lld: type %d is not one of the %d of the model",
                        (long long)i, types[i], c->n_types);
    }
    return OK;
}

/* RoBERTa counts positions from the id after the padding's on, and padding tokens not at all. */
static int32_t next_position(const encoder_config *c, int32_t id, int32_t *count) {
    if (c->family != ENCODER_ROBERTA) return (*count)++;
    if (id == c->padding_id) return c->padding_id;
    return c->padding_id + 1 + (*count)++;
}

status encoder_add(encoder *e, const int32_t *ids, const int32_t *types, int64_t n) {
    const encoder_config *c = &e->config;
    int32_t count = 0;
    TRY(check_sequence(c, ids, types, n));
    if (!encoder_fits(e, n))
        return fail(ERR_USAGE, "a batch of %lld tokens has no room for %lld more",
                    (long long)e->n_tokens, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        int32_t type = types != NULL ? types[i] : 0, position = next_position(c, ids[i], &count);
        e->word.host[e->n_tokens + i] = ids[i];
        e->place.host[e->n_tokens + i] = type * c->n_positions + position;
    }
    e->lengths[e->n_sequences] = (int32_t)n;
    e->offsets.host[e->n_sequences] = (int32_t)e->n_tokens;
    e->n_tokens += n;
    e->offsets.host[++e->n_sequences] = (int32_t)e->n_tokens;
    if (n > e->max_len) e->max_len = (int32_t)n;
    return OK;
}

void encoder_clear(encoder *e) {
    e->n_before += e->n_sequences;
    e->n_sequences = e->max_len = 0;
    e->n_tokens = 0;
}

/* The next n of the numbers that are sent. */
static void stage(encoder *e, staged_i32 *x, int64_t n, int64_t *at) {
    memcpy(e->input.host + *at, x->host, (size_t)n * sizeof *x->host);
    x->device = e->input.device + *at;
    *at += n;
}

/* Sends the batch, padded to the shape s where steps are recorded: padding tokens have no index,
 * padding sequences no tokens.  Where the arrays are depends on the shape alone. */
static status send(encoder *e, sequences *s) {
    int64_t n = 0;
    for (int64_t i = e->n_tokens; i < s->n_tokens; i++)
        e->word.host[i] = e->place.host[i] = -1;
    for (int32_t b = e->n_sequences; b < s->n_sequences; b++) {
        e->offsets.host[b + 1] = (int32_t)e->n_tokens;
        e->lengths[b] = 0;
    }
    stage(e, &e->word, s->n_tokens, &n);
    stage(e, &e->place, s->n_tokens, &n);
    stage(e, &e->offsets, s->n_sequences + 1, &n);
    s->offsets = e->offsets.device;
    TRY(STAGED_SEND(e->be, &e->input, n));
    if (e->mask == NULL) return OK;
    return mask_batch_set(e->mask, e->n_before, s->n_sequences, e->lengths);
}

/* Words, positions and types, normalised. */
static status embed(const encoder *e, int64_t n) {
    backend *be = e->be;
    gather_args gather = {.n = n,
                          .dim = e->config.dim,
                          .table = e->words,
                          .index = e->word.device,
                          .scale = 1,
                          .other = e->places,
                          .other_index = e->place.device,
                          .y = e->x};
    residual_norm_args norm = {.n = n,
                               .dim = e->config.dim,
                               .eps = e->config.eps,
                               .x = e->x,
                               .weight = e->input_norm.weight,
                               .bias = e->input_norm.bias,
                               .y = e->x};
    TRY(be->ops->gather(be, &gather));
    return be->ops->residual_norm(be, &norm);
}

/* tanh of a dense layer over the first token of each sequence.  The offset of a padding sequence is
 * the end of the tokens: x has a row more than tokens. */
static status pool_first(const encoder *e, const sequences *s) {
    backend *be = e->be;
    gather_args first = {.n = s->n_sequences,
                         .dim = e->config.dim,
                         .is_act = true,
                         .table = e->x,
                         .index = s->offsets,
                         .scale = 1,
                         .y = e->first};
    TRY(be->ops->gather(be, &first));
    return bert_dense_forward(&e->pooler, be, s->n_sequences, e->first, EPILOGUE_TANH, true,
                              e->pooled);
}

typedef status (*visit_fn)(void *ctx, encoder *e, int32_t layer);

/* layers_key: of encoder_layers.begin; visit: called after each layer, or NULL. */
static status forward(encoder *e, const sequences *s, const mask_view *view, uint64_t layers_key,
                      visit_fn visit, void *ctx) {
    const encoder_layers *other = layers_key != 0 ? e->layers : NULL;
    TRY(embed(e, s->n_tokens));
    for (int32_t i = 0; i < e->config.n_layers; i++) {
        TRY(other != NULL ? other->run(other->ctx, &e->layer[i], s, view, e->x)
                          : bert_layer_forward(&e->layer[i], &e->layer_config, &e->acts, e->be, s,
                                               view, e->x));
        if (visit != NULL) TRY(visit(ctx, e, i));
    }
    return e->has_pooler ? pool_first(e, s) : OK;
}

/* All that recorded ops depend on. */
static uint64_t record_key(const encoder *e, const sequences *s, const mask_view *view,
                           uint64_t layers_key) {
    uint64_t key[] = {(uint64_t)(uintptr_t)e, (uint64_t)s->n_tokens, (uint64_t)s->n_sequences,
                      (uint64_t)s->max_len,   view->epoch,           layers_key};
    return hash64(key, sizeof key, 0);
}

/* The batch as it is, or rounded up where steps are recorded; `send` adds the offsets. */
static sequences shape_of(const encoder *e, bool is_rounded) {
    sequences s = {
        .n_sequences = e->n_sequences, .n_tokens = (int32_t)e->n_tokens, .max_len = e->max_len};
    if (!is_rounded) return s;
    s.n_sequences = (int32_t)round_up(s.n_sequences);
    s.n_tokens = (int32_t)round_up(s.n_tokens);
    s.max_len = (int32_t)round_up(s.max_len);
    return s;
}

static mask_view view_of(const encoder *e) {
    return e->mask != NULL ? *mask_batch_view(e->mask) : (mask_view){0};
}

static status begin_layers(const encoder *e, const sequences *s, uint64_t *key) {
    *key = 0;
    return e->layers != NULL ? e->layers->begin(e->layers->ctx, s, key) : OK;
}

/* Runs the batch and calls visit after each layer; nothing is recorded. */
static status run_visited(encoder *e, visit_fn visit, void *ctx) {
    sequences s = shape_of(e, false);
    uint64_t layers_key;
    if (e->n_sequences == 0) return OK;
    TRY(begin_layers(e, &s, &layers_key));
    TRY(send(e, &s));
    mask_view view = view_of(e);
    return forward(e, &s, &view, layers_key, visit, ctx);
}

status encoder_run(encoder *e) {
    backend *be = e->be;
    record_state state = RECORD_RUN;
    if (be->token_bucket == 0) return run_visited(e, NULL, NULL);
    if (e->n_sequences == 0) return OK;
    sequences s = shape_of(e, true);
    uint64_t layers_key;
    TRY(begin_layers(e, &s, &layers_key));
    TRY(send(e, &s));
    mask_view view = view_of(e);
    TRY(be->ops->record(be, record_key(e, &s, &view, layers_key), &state));
    status st = state == RECORD_REPLAY ? OK : forward(e, &s, &view, layers_key, NULL, NULL);
    status end = be->ops->record_end(be);
    return st != OK ? st : end;
}

status encoder_read(encoder *e, float *hidden, float *pooled) {
    size_t dim = (size_t)e->config.dim;
    if (hidden != NULL) TRY(backend_read_act(e->be, hidden, e->x, (size_t)e->n_tokens * dim));
    if (pooled != NULL && e->has_pooler)
        TRY(backend_read_act(e->be, pooled, e->pooled, (size_t)e->n_sequences * dim));
    return OK;
}

/* Scores: the attention weights of a batch, counted. */

const double score_thresholds[SCORE_THRESHOLDS] = {1e-5, 1e-4, 1e-3, 1e-2};
const int32_t score_windows[SCORE_WINDOWS] = {0, 4, 16, 32, 64};

struct encoder_scores {
    int32_t n_layers, n_heads, head_dim;
    const mask *rule;  /* or NULL */
    head_scores *head; /* (n_layers, n_heads) */
    int64_t n_sequences, n_tokens;
    float *qkv; /* (T, 3 E) of a layer */
    size_t qkv_capacity;
    uint64_t *seen; /* (n, words of a row) of a sequence */
    size_t seen_capacity;
    float *weights; /* (n_heads, max length) */
    size_t weights_capacity;
};

status encoder_scores_create(encoder_scores **out, const encoder *e, const mask *m) {
    const encoder_config *c = encoder_config_of(e);
    encoder_scores *s = NULL;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    *s = (encoder_scores){
        .n_layers = c->n_layers, .n_heads = c->n_heads, .head_dim = c->dim / c->n_heads, .rule = m};
    status st = MEM_NEW(&s->head, (size_t)c->n_layers * (size_t)c->n_heads);
    return CREATED(st, out, s, encoder_scores_destroy);
}

void encoder_scores_destroy(encoder_scores *s) {
    if (s == NULL) return;
    MEM_FREE(s->head, s->qkv, s->seen, s->weights, s);
}

const head_scores *encoder_scores_at(const encoder_scores *s, int32_t layer, int32_t head) {
    return &s->head[(int64_t)layer * s->n_heads + head];
}

/* One sequence of one layer. */
typedef struct scored_sequence {
    encoder_scores *s;
    head_scores *head; /* (n_heads) of the layer */
    const float *qkv;  /* its first row */
    int32_t n;
    int64_t stride, n_words; /* words of a row of `seen` */
} scored_sequence;

static bool sees(const scored_sequence *q, int32_t i, int32_t j) {
    if (q->s->rule == NULL) return true;
    return (q->s->seen[i * q->n_words + j / 64] >> (j % 64) & 1) != 0;
}

/* p = the weights of query i, 0 where it does not see; false: it sees nothing. */
static bool row_weights(const scored_sequence *q, int32_t head, int32_t i, float *p) {
    int32_t dim = q->s->head_dim;
    int64_t width = (int64_t)q->s->n_heads * dim;
    const float *query = q->qkv + i * q->stride + (int64_t)head * dim;
    float alpha = 1 / sqrtf((float)dim), largest = -INFINITY;
    double sum = 0;
    for (int32_t j = 0; j < q->n; j++) {
        const float *key = q->qkv + j * q->stride + width + (int64_t)head * dim;
        float dot = 0;
        for (int32_t d = 0; d < dim; d++)
            dot += query[d] * key[d];
        p[j] = sees(q, i, j) ? alpha * dot : -INFINITY;
        largest = p[j] > largest ? p[j] : largest;
    }
    if (largest == -INFINITY) return false;
    for (int32_t j = 0; j < q->n; j++) {
        p[j] = expf(p[j] - largest);
        sum += (double)p[j];
    }
    for (int32_t j = 0; j < q->n; j++)
        p[j] = (float)(p[j] / sum);
    return true;
}

static void count_row(const scored_sequence *q, int32_t i, const float *p, head_scores *to) {
    to->n_rows++;
    to->first += (double)p[0];
    for (int32_t j = 0; j < q->n; j++) {
        int32_t distance = j < i ? i - j : j - i;
        if (!sees(q, i, j)) continue;
        to->n_pairs++;
        if (p[j] > 0) to->entropy -= (double)p[j] * log((double)p[j]);
        for (int k = 0; k < SCORE_WINDOWS; k++)
            if (distance <= score_windows[k]) to->within[k] += (double)p[j];
        for (int k = 0; k < SCORE_THRESHOLDS; k++)
            to->below[k] += (double)p[j] < score_thresholds[k];
    }
}

static status head_chunk(void *ctx, int64_t head, int worker) {
    const scored_sequence *q = ctx;
    float *p = q->s->weights + head * q->n;
    for (int32_t i = 0; i < q->n; i++)
        if (row_weights(q, (int32_t)head, i, p)) count_row(q, i, p, &q->head[head]);
    return OK;
}

static status count_sequence(encoder *e, encoder_scores *s, int32_t layer, int32_t b) {
    int32_t first = e->offsets.host[b], n = e->offsets.host[b + 1] - first;
    scored_sequence q = {.s = s,
                         .head = s->head + (int64_t)layer * s->n_heads,
                         .qkv = s->qkv + (int64_t)first * 3 * e->config.dim,
                         .n = n,
                         .stride = 3 * (int64_t)e->config.dim,
                         .n_words = (n + 63) / 64};
    TRY(MEM_RESERVE(&s->weights, &s->weights_capacity, (size_t)s->n_heads * (size_t)n));
    if (s->rule != NULL) {
        TRY(MEM_RESERVE(&s->seen, &s->seen_capacity, (size_t)(n * q.n_words)));
        mask_fill_rows(s->rule, e->n_before + b, n, 0, n, s->seen, q.n_words);
    }
    return pool_run(e->be->workers, s->n_heads, head_chunk, &q);
}

/* After a layer, while its queries and keys are there. */
static status count_layer(void *ctx, encoder *e, int32_t layer) {
    encoder_scores *s = ctx;
    size_t n = (size_t)e->n_tokens * 3 * (size_t)e->config.dim;
    TRY(MEM_RESERVE(&s->qkv, &s->qkv_capacity, n));
    TRY(backend_read_act(e->be, s->qkv, e->acts.qkv, n));
    for (int32_t b = 0; b < e->n_sequences; b++)
        TRY(count_sequence(e, s, layer, b));
    return OK;
}

status encoder_run_scored(encoder *e, encoder_scores *s) {
    s->n_sequences += e->n_sequences;
    s->n_tokens += e->n_tokens;
    return run_visited(e, count_layer, s);
}

static double mean(double sum, int64_t n) {
    return n > 0 ? sum / (double)n : 0;
}

static void put_head(json_writer *w, const head_scores *h, int32_t layer, int32_t head) {
    json_object_open(w);
    JSON_FIELDS(w, FIELD("layer", layer), FIELD("head", head),
                FIELD("entropy", mean(h->entropy, h->n_rows)),
                FIELD("first", mean(h->first, h->n_rows)));
    json_key_array(w, "within");
    for (int k = 0; k < SCORE_WINDOWS; k++)
        json_double(w, mean(h->within[k], h->n_rows));
    json_array_close(w);
    json_key_array(w, "below");
    for (int k = 0; k < SCORE_THRESHOLDS; k++)
        json_double(w, mean((double)h->below[k], h->n_pairs));
    json_array_close(w);
    json_object_close(w);
}

status encoder_scores_json(const encoder_scores *s, buf *to) {
    json_writer w;
    json_begin_object(&w, to, 2);
    json_key_int(&w, "sequences", s->n_sequences);
    json_key_int(&w, "tokens", s->n_tokens);
    json_key_array(&w, "windows");
    for (int k = 0; k < SCORE_WINDOWS; k++)
        json_int(&w, score_windows[k]);
    json_array_close(&w);
    json_key_array(&w, "thresholds");
    for (int k = 0; k < SCORE_THRESHOLDS; k++)
        json_double(&w, score_thresholds[k]);
    json_array_close(&w);
    json_key_array(&w, "heads");
    for (int32_t l = 0; l < s->n_layers; l++)
        for (int32_t h = 0; h < s->n_heads; h++)
            put_head(&w, encoder_scores_at(s, l, h), l, h);
    json_array_close(&w);
    TRY(json_finish_object(&w));
    return buf_char(to, '\n');
}

enum { CELL = 34, MARGIN = 46, GAP = 40, WINDOW_SHOWN = 2 };

/* One map: a cell for each head, darker for more; shares are shown in percent. */
static status put_map(const encoder_scores *s, buf *to, int left, const char *title,
                      bool is_entropy) {
    TRY(buf_printf(to, "<text x=\"%d\" y=\"18\" font-weight=\"bold\">%s</text>\n", left, title));
    for (int32_t h = 0; h < s->n_heads; h++)
        TRY(buf_printf(to, "<text x=\"%d\" y=\"38\" text-anchor=\"middle\">%d</text>\n",
                       left + h * CELL + CELL / 2, h));
    for (int32_t l = 0; l < s->n_layers; l++)
        for (int32_t h = 0; h < s->n_heads; h++) {
            const head_scores *x = encoder_scores_at(s, l, h);
            double value =
                is_entropy ? mean(x->entropy, x->n_rows) : mean(x->within[WINDOW_SHOWN], x->n_rows);
            double shade = is_entropy ? value / 6 : value;
            int light = (int)(245 - 190 * (shade < 0 ? 0 : shade > 1 ? 1 : shade));
            int px = left + h * CELL, py = MARGIN + l * CELL;
            TRY(buf_printf(to,
                           "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                           "fill=\"rgb(%d,%d,245)\"/>\n",
                           px, py, CELL - 2, CELL - 2, light, light));
            TRY(buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">",
                           px + CELL / 2 - 1, py + CELL / 2 + 4, light < 130 ? "white" : "black"));
            TRY(is_entropy ? buf_printf(to, "%.1f</text>\n", value)
                           : buf_printf(to, "%.0f</text>\n", 100 * value));
        }
    return OK;
}

status encoder_scores_svg(const encoder_scores *s, buf *to) {
    int width = s->n_heads * CELL, height = MARGIN + s->n_layers * CELL + 10;
    int second = MARGIN + (width > 230 ? width : 230) + GAP;
    TRY(buf_printf(to,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                   "font-family=\"sans-serif\" font-size=\"11\">\n"
                   "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                   second + (width > 230 ? width : 230) + GAP, height));
    for (int32_t l = 0; l < s->n_layers; l++)
        TRY(buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n", MARGIN - 8,
                       MARGIN + l * CELL + CELL / 2 + 4, l));
    TRY(put_map(s, to, MARGIN, "% of the weight within 16 tokens", false));
    TRY(put_map(s, to, second, "entropy of a row, nats", true));
    return buf_text(to, "</svg>\n");
}
