#include "encode/encoder.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "encode/encoder_files.h"
#include "encode/encoder_int.h"

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
    status st = encoder_load(e, files, seed);
    if (st == OK && files != NULL) st = encoder_files_finish(files);
    if (st == OK) st = alloc_pass(e, o);
    if (st == OK)
        *out = e;
    else
        encoder_destroy(e);
    return st;
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

/* layers_key: of encoder_layers.begin; visit: called after each layer, or NULL. */
static status forward(encoder *e, const sequences *s, const mask_view *view, uint64_t layers_key,
                      encoder_visit_fn visit, void *ctx) {
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

status encoder_run_visited(encoder *e, encoder_visit_fn visit, void *ctx) {
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
    if (be->token_bucket == 0) return encoder_run_visited(e, NULL, NULL);
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
