#include "nn/params.h"

#include "ops/table.h"

uint64_t init_table_seed(uint64_t seed, uint32_t table) {
    return seed + ((uint64_t)table << 32);
}

init_rule init_xavier_uniform(int64_t n_in, int64_t n_out) {
    return (init_rule){.kind = INIT_UNIFORM, .scale = sqrt(6.0 / (double)(n_in + n_out))};
}

init_rule init_xavier_normal(int64_t n_in, int64_t n_out) {
    return (init_rule){.kind = INIT_NORMAL, .scale = sqrt(2.0 / (double)(n_in + n_out))};
}

status param_list_init(param_list *l, nn_memory *memory, int capacity) {
    memset(l, 0, sizeof *l);
    l->memory = memory;
    TRY(NN_NEW_HOST(memory, &l->item, capacity));
    TRY(NN_NEW_HOST(memory, &l->rule, capacity));
    TRY(NN_NEW_HOST(memory, &l->draw, capacity));
    l->capacity = capacity;
    return OK;
}

static int64_t count(const param_spec *spec) {
    int64_t n = 1;
    for (int i = 0; i < spec->n_dims; i++)
        n *= spec->shape[i];
    return n;
}

status param_add_at(param_list *l, const param_spec *spec, float *value, param **out) {
    *out = NULL;
    if (l->n == l->capacity) return fail(ERR_CONFIG, "the model has too many parameters");
    param *p = &l->item[l->n];
    int n_bytes = snprintf(p->name, sizeof p->name, "%s%s", spec->prefix, spec->name);
    if (n_bytes >= (int)sizeof p->name)
        return fail(ERR_CONFIG, "a parameter's name is too long: %s%s", spec->prefix, spec->name);
    p->n_dims = spec->n_dims;
    memcpy(p->shape, spec->shape, sizeof p->shape);
    p->n = count(spec);
    p->value = value;
    p->is_table = spec->is_table;
    l->draw[l->n] = l->n_draws++;
    l->rule[l->n++] = spec->rule;
    l->n_numbers += p->n;
    *out = p;
    return OK;
}

status param_add(param_list *l, const param_spec *spec, param **out) {
    float *value;
    *out = NULL;
    TRY(NN_NEW(l->memory, &value, count(spec)));
    return param_add_at(l, spec, value, out);
}

status param_add_cut(param_list *l, const param_spec *spec, const param_cut *cut, param **out) {
    TRY(param_add(l, spec, out));
    (*out)->cut = *cut;
    l->n_numbers += param_whole_n(*out) - (*out)->n;
    return OK;
}

/* Elements of a parameter in the range of gradients, including the gap after it. */
static int64_t count_aligned(const param *p) {
    enum { ALIGNED = 256 / (int)sizeof(float) };
    return (p->n + ALIGNED - 1) / ALIGNED * ALIGNED;
}

status param_list_alloc_grads(param_list *l) {
    param_range all = {0};
    if (l->dense_grads.first != NULL) return OK;
    for (int i = 0; i < l->n; i++)
        if (!l->item[i].is_table) all.n += count_aligned(&l->item[i]);
    TRY(NN_NEW(l->memory, &all.first, all.n));
    float *at = all.first;
    for (int i = 0; i < l->n; i++) {
        if (l->item[i].is_table) continue;
        l->item[i].grad = at;
        at += count_aligned(&l->item[i]);
    }
    l->dense_grads = all;
    return OK;
}

static status clear_table(backend *be, const param *p) {
    if (p->grad != NULL) TRY(be->ops->zero(be, p->grad, (size_t)p->n * sizeof *p->grad));
    return p->marks != NULL ? be->ops->zero(be, p->marks, (size_t)p->shape[0]) : OK;
}

status param_list_clear_grads(param_list *l) {
    backend *be = l->memory->be;
    const param_range *all = &l->dense_grads;
    if (all->n > 0) TRY(be->ops->zero(be, all->first, (size_t)all->n * sizeof *all->first));
    for (int i = 0; i < l->n; i++)
        if (l->item[i].is_table) TRY(clear_table(be, &l->item[i]));
    return OK;
}

void param_leave_out(param_list *l) {
    l->n_draws++;
}

/* Two normal deviates from two random words, by Box and Muller. */
static void normal_pair(uint32_t a, uint32_t b, double out[2]) {
    double radius = sqrt(-2 * log(1 - (double)rng_uniform(a)));
    double angle = 6.283185307179586 * (double)rng_uniform(b);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

static double first_value(const init_rule *rule, rng_key key, uint32_t index, uint64_t element) {
    if (rule->kind == INIT_ZERO || rule->kind == INIT_ONE) return rule->kind == INIT_ONE;
    rng_block w = rng_draw(key, (uint32_t)element, (uint32_t)(element >> 32), index, 0);
    if (rule->kind == INIT_UNIFORM) return rule->scale * (2 * (double)rng_uniform(w.word[0]) - 1);
    double draw[4];
    normal_pair(w.word[0], w.word[1], draw);
    if (rule->kind == INIT_NORMAL) return rule->scale * draw[0];
    normal_pair(w.word[2], w.word[3], draw + 2);
    for (int i = 0; i < 4; i++)
        if (fabs(draw[i]) < 2) return rule->scale * draw[i];
    return rule->scale * draw[0];
}

/* First values of n elements of a whole parameter from element `at` on. */
static void first_values(const param_list *l, int i, uint64_t seed, int64_t at, int64_t n,
                         float *out) {
    const init_rule *rule = &l->rule[i];
    rng_key key = rng_make_key(seed, RNG_INIT);
    if (rule->kind != INIT_ROWS) {
        for (int64_t k = 0; k < n; k++)
            out[k] = (float)first_value(rule, key, l->draw[i], (uint64_t)(at + k));
        return;
    }
    int64_t dim = l->item[i].shape[1];
    table_first first = {FIRST_UNIFORM, rng_make_key(init_table_seed(seed, rule->table), RNG_TABLE),
                         (float)table_first_unit(FIRST_UNIFORM, rule->scale), 0};
    for (int64_t k = 0; k < n; k++)
        out[k] = table_first_value(&first, (uint64_t)((at + k) / dim), (uint32_t)((at + k) % dim));
}

/* Values are made on the host in pieces and sent: the same on every backend. */
status param_list_start(param_list *l, uint64_t seed) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    backend *be = l->memory->be;
    for (int i = 0; i < l->n; i++) {
        param *p = &l->item[i];
        for (int64_t at = 0, n_piece; at < p->n; at += n_piece) {
            n_piece = 0;
            for (int64_t n; at + n_piece < p->n && n_piece < PIECE; n_piece += n) {
                int64_t whole = param_cut_run(p, at + n_piece, &n);
                if (n > PIECE - n_piece) n = PIECE - n_piece;
                first_values(l, i, seed, whole, n, piece + n_piece);
            }
            TRY(be->ops->copy_in(be, p->value + at, piece, (size_t)n_piece * sizeof *piece));
        }
    }
    return param_list_clear_grads(l);
}

static bool is_cut(const param *p) {
    return p->cut.n_parts > 1;
}

/* Elements of a row where ranks hold the rows of a table. */
static int64_t row_len(const param *p) {
    int64_t n = 1;
    for (int d = 1; d < p->n_dims; d++)
        n *= p->shape[d];
    return n;
}

void param_whole_shape(const param *p, int64_t shape[4]) {
    memcpy(shape, p->shape, sizeof p->shape);
    if (is_cut(p)) shape[p->cut.dim] *= p->cut.n_parts;
    if (p->rows != NULL) shape[0] = p->whole_rows;
}

int64_t param_whole_n(const param *p) {
    if (p->rows != NULL) return p->whole_rows * row_len(p);
    return p->n * (is_cut(p) ? p->cut.n_parts : 1);
}

/* A row is what the cut dimension and those after it span. */
static int64_t find_run(const param *p, int part, int64_t at, int64_t *n) {
    const param_cut *c = &p->cut;
    int64_t inner = 1, first = 0;
    *n = p->n - at;
    if (p->rows != NULL) {
        int64_t len = row_len(p);
        *n = len - at % len;
        return p->rows[at / len] * len + at % len;
    }
    if (!is_cut(p)) return at;
    for (int d = c->dim + 1; d < p->n_dims; d++)
        inner *= p->shape[d];
    int64_t len_all = p->shape[c->dim] * inner, row = at / len_all, column = at % len_all;
    int b = 0;
    for (; column >= first + c->block[b] * inner; b++)
        first += c->block[b] * inner;
    int64_t len = c->block[b] * inner;
    *n = first + len - column;
    return row * len_all * c->n_parts + first * c->n_parts + part * len + column - first;
}

int64_t param_cut_run(const param *p, int64_t at, int64_t *n) {
    return find_run(p, p->cut.part, at, n);
}

/* Short runs, such as single rows, are put together on the host before they are sent. */
status param_cut_take(const param *p, backend *be, const void *whole, float *to) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    for (int64_t at = 0, n, n_piece; at < p->n; at += n_piece) {
        const char *from = (const char *)whole + param_cut_run(p, at, &n) * (int64_t)sizeof *to;
        n_piece = n;
        if (n <= PIECE) {
            memcpy(piece, from, (size_t)n * sizeof *to);
            for (; at + n_piece < p->n; n_piece += n) {
                int64_t next = param_cut_run(p, at + n_piece, &n);
                if (n_piece + n > PIECE) break;
                memcpy(piece + n_piece, (const char *)whole + next * (int64_t)sizeof *to,
                       (size_t)n * sizeof *to);
            }
            from = (const char *)piece;
        }
        TRY(be->ops->copy_in(be, to + at, from, (size_t)n_piece * sizeof *to));
    }
    return OK;
}
