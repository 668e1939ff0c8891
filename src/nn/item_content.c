#include "nn/item_content.h"

/* Items of a value that are summed by one piece. */
enum { PIECE_ITEMS = 256 };

bool content_is_there(const seq_file *data) {
    return data->n_content > 0 || data->item_vector != NULL;
}

int32_t content_n_values(const seq_file *data) {
    uint64_t n = 1;
    for (int f = 0; f < data->n_content; f++)
        n += data->content[f].values.n - 1;
    return n > INT32_MAX ? -1 : n > 1 ? (int32_t)n : 0;
}

uint64_t content_value_key(const item_content *c, uint64_t v) {
    const uint64_t *at = &c->values.offsets[v];
    return hash64(c->values.bytes + at[0], at[1] - at[0], hash64(c->name, strlen(c->name), 0));
}

void content_value_keys(const seq_file *data, uint64_t *keys) {
    *keys++ = 0;
    for (int f = 0; f < data->n_content; f++)
        for (uint64_t v = 1; v < data->content[f].values.n; v++)
            *keys++ = content_value_key(&data->content[f], v);
}

/* Sparse matrices on the host, while they are made. */
typedef struct sparse_host {
    int64_t n, n_elements;
    int32_t *begin, *index;
    float *weight;
} sparse_host;

typedef struct maker {
    arena memory;
    const seq_file *data;
    sparse_host values, pieces, items;
} maker;

static status sparse_new(maker *m, sparse_host *s, int64_t n, int64_t n_elements) {
    s->n = n;
    s->n_elements = n_elements;
    TRY(ARENA_NEW(&m->memory, &s->begin, (size_t)n + 1));
    TRY(ARENA_NEW(&m->memory, &s->index, (size_t)n_elements));
    return ARENA_NEW(&m->memory, &s->weight, (size_t)n_elements);
}

/* (V, values): the mean over the values of each feature. */
static status list_values(maker *m) {
    const seq_file *d = m->data;
    uint64_t n = 0;
    for (int f = 0; f < d->n_content; f++)
        n += d->content[f].offsets[d->n_items + 1];
    if (n > INT32_MAX || content_n_values(d) < 0)
        return fail(ERR_CONFIG, "the items have %llu values of features; 2^31 - 1 are the most",
                    (unsigned long long)n);
    TRY(sparse_new(m, &m->values, (int64_t)d->n_items, (int64_t)n));
    int32_t at = 0;
    for (uint64_t i = 1; i <= d->n_items; i++) {
        int32_t row = 0;
        m->values.begin[i - 1] = at;
        for (int f = 0; f < d->n_content; f++) {
            const item_content *c = &d->content[f];
            uint64_t first = c->offsets[i], end = c->offsets[i + 1];
            for (uint64_t k = first; k < end; k++) {
                m->values.index[at] = row + (int32_t)c->value[k];
                m->values.weight[at++] = 1 / (float)(end - first);
            }
            row += (int32_t)c->values.n - 1;
        }
    }
    m->values.begin[d->n_items] = at;
    return OK;
}

/* The items of each value, in order, and what follows from their number: pieces. */
static status list_items(maker *m) {
    const sparse_host *v = &m->values;
    int32_t n_values = content_n_values(m->data), n_pieces = 0, *next;
    TRY(ARENA_NEW(&m->memory, &next, (size_t)n_values + 1));
    for (int64_t k = 0; k < v->n_elements; k++)
        next[v->index[k] + 1]++;
    for (int32_t r = 0; r < n_values; r++)
        n_pieces += (next[r + 1] + PIECE_ITEMS - 1) / PIECE_ITEMS;
    TRY(sparse_new(m, &m->pieces, n_pieces, v->n_elements));
    TRY(sparse_new(m, &m->items, n_values, n_pieces));
    int32_t piece = 0;
    for (int32_t r = 0; r < n_values; r++) {
        m->items.begin[r] = piece;
        for (int32_t k = 0; k < next[r + 1]; k += PIECE_ITEMS, piece++) {
            m->pieces.begin[piece] = next[r] + k;
            m->items.index[piece] = piece;
            m->items.weight[piece] = 1;
        }
        next[r + 1] += next[r];
    }
    m->items.begin[n_values] = piece;
    m->pieces.begin[piece] = (int32_t)v->n_elements;
    for (int64_t i = 0; i < v->n; i++)
        for (int32_t k = v->begin[i]; k < v->begin[i + 1]; k++) {
            int32_t to = next[v->index[k]]++;
            m->pieces.index[to] = (int32_t)i;
            m->pieces.weight[to] = v->weight[k];
        }
    return OK;
}

#define SEND(memory, to, host, n)                                                                  \
    (NN_NEW((memory), (to), (n)) != OK                                                             \
         ? ERR_NOMEM                                                                               \
         : (memory)->be->ops->copy_in((memory)->be, *(to), (host), (size_t)(n) * sizeof **(to)))

static status send_sparse(nn_memory *memory, const sparse_host *s, sparse_rows *to) {
    int32_t *begin, *index;
    float *weight;
    TRY(SEND(memory, &begin, s->begin, s->n + 1));
    TRY(SEND(memory, &index, s->index, s->n_elements));
    TRY(SEND(memory, &weight, s->weight, s->n_elements));
    *to = (sparse_rows){(int32_t)s->n, begin, index, weight};
    return OK;
}

static status send(content_rows *c, maker *m, nn_memory *memory) {
    content_args *a = &c->args;
    const seq_file *d = m->data;
    int32_t dim = a->dim;
    float *vector = NULL;
    TRY(list_values(m));
    TRY(list_items(m));
    TRY(send_sparse(memory, &m->values, &a->values));
    TRY(send_sparse(memory, &m->pieces, &a->pieces));
    TRY(send_sparse(memory, &m->items, &a->items));
    TRY(NN_NEW(memory, &a->sums, m->pieces.n * dim));
    TRY(NN_NEW(memory, &c->has_own, a->n));
    TRY(NN_NEW(memory, &c->warm, a->n));
    a->has_own = c->has_own;
    if (d->item_vector == NULL) return OK;
    a->n_vector = d->item_vector_dim;
    TRY(SEND(memory, &vector, d->item_vector + a->n_vector, (int64_t)a->n * a->n_vector));
    a->vector = vector;
    return OK;
}

/* Values and W start at 0, so that a model starts as it would without content. */
static status add_part(param_list *params, const char *name, int64_t n, int32_t dim, param **out) {
    param_spec spec = {CONTENT_PREFIX, name, 2, {n, dim}, {.kind = INIT_ZERO}, false};
    return n > 0 ? param_add(params, &spec, out) : OK;
}

status content_add_params(content_rows *c, param *item, const seq_file *data, float rate,
                          param_list *params) {
    int32_t dim = (int32_t)item->shape[1];
    maker m = {.data = data};
    *c = (content_rows){.be = params->memory->be,
                        .item = item,
                        .rate = rate,
                        .args = {.n = (int32_t)data->n_items, .dim = dim}};
    status st = send(c, &m, params->memory);
    arena_fini(&m.memory);
    TRY(st);
    TRY(NN_NEW(params->memory, &item->own, item->n));
    TRY(add_part(params, "values.weight", c->args.items.n, dim, &c->values));
    TRY(add_part(params, "vector.weight", c->args.n_vector, dim, &c->w));
    uint8_t *all;
    TRY(MEM_NEW(&all, (size_t)c->args.n));
    memset(all, 1, (size_t)c->args.n);
    st = content_set_warm(c, all);
    mem_free(all);
    return st;
}

status content_set_warm(content_rows *c, const uint8_t *is_warm) {
    backend *be = c->be;
    int32_t n = c->args.n, *warm;
    TRY(MEM_NEW_RAW(&warm, (size_t)n));
    c->n_warm = 0;
    for (int32_t i = 0; i < n; i++)
        if (is_warm[i]) warm[c->n_warm++] = i;
    status st = be->ops->copy_in(be, c->warm, warm, (size_t)c->n_warm * sizeof *warm);
    if (st == OK) st = be->ops->copy_in(be, c->has_own, is_warm, (size_t)n);
    mem_free(warm);
    return st;
}

/* Rows of items, from that of item 1 on. */
static content_args args_of(const content_rows *c) {
    content_args a = c->args;
    a.own = c->item->own + a.dim;
    a.y = c->item->value + a.dim;
    if (c->values != NULL) a.table = c->values->value, a.dtable = c->values->grad;
    if (c->w != NULL) a.w = c->w->value, a.dw = c->w->grad;
    if (c->item->grad != NULL) a.dy = c->item->grad + a.dim;
    return a;
}

status content_make(content_rows *c) {
    if (c->item == NULL) return OK;
    c->args.rate = 0;
    content_args a = args_of(c);
    return c->be->ops->content_fwd(c->be, &a);
}

status content_make_for_step(content_rows *c, uint64_t seed, uint32_t step) {
    if (c->item == NULL || c->rate == 0) return OK;
    c->args.rate = c->rate;
    c->args.key = rng_make_key(seed, RNG_CONTENT);
    c->args.step = step;
    content_args a = args_of(c);
    return c->be->ops->content_fwd(c->be, &a);
}

status content_bwd(content_rows *c) {
    if (c->item == NULL) return OK;
    content_args a = args_of(c);
    return c->be->ops->content_bwd(c->be, &a);
}

status content_start(content_rows *c) {
    if (c->item == NULL) return OK;
    TRY(c->be->ops->copy(c->be, c->item->own, c->item->value, (size_t)c->item->n * sizeof(float)));
    return content_make(c);
}
