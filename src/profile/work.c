#include "profile/work.h"

#include "ops/attn_mask.h"

static bool is_on_cpu(const backend *be) {
    return be->is_host;
}

/* All sequences have the longest length, or nearly: arrays of a step that is recorded have up to
 * some hundred rows more than there are tokens. */
enum { PADDING = 512 };
static bool is_even(int64_t n_rows, int32_t n, int32_t len) {
    int64_t all = (int64_t)n * len;
    return n_rows > 0 && n_rows >= all && n_rows < all + PADDING &&
           (n_rows == all || all >= 8 * PADDING);
}

/* The keys in any of the spans that func gives a row; they may overlap, in any order. */
static int64_t count_func(const attn_args *a, const attn_sequence *s, int row) {
    int64_t n = 0;
    for (int32_t at = 0; at < s->len_k;) {
        int32_t end = at, next = s->len_k;
        for (int m = 0; 2 * m < a->n_func; m++) {
            attn_span span = attn_func_span(a, s, row, m);
            if (span.begin <= at && span.end > end) end = span.end;
            if (span.begin > at && span.begin < span.end && span.begin < next) next = span.begin;
        }
        n += end - at;
        at = end > at ? end : next;
    }
    return n;
}

static int64_t count_span(int begin, int end) {
    return begin < end ? end - begin : 0;
}

static int64_t count_row(const attn_args *a, const attn_sequence *s, int row) {
    if (a->func != NULL) return count_func(a, s, row);
    attn_row_mask m = attn_row_spans(a, s, row); /* its two spans are apart */
    return count_span(m.first0, m.end0) + count_span(m.first1, m.end1);
}

static int64_t count_sequence(const attn_args *a, const attn_sequence *s) {
    int64_t n = 0;
    for (int row = 0; row < s->len_q; row++)
        n += count_row(a, s, row);
    return n;
}

/* All sequences, with arrays in the memory of the host.  The commonest mask needs no rows, and of
 * sequences that are alike one is counted. */
static double count_batch(const attn_args *a) {
    attn_sequence last = {.len_q = -1};
    int64_t n_last = 0;
    double n = 0;
    for (int32_t b = 0; b < a->n_sequences; b++) {
        attn_sequence s = attn_paged_sequence_of(a, b);
        int64_t q = s.len_q;
        if (s.len_q < 0 || s.len_k < 0) return 0; /* not offsets: somebody else wrote there */
        bool is_alike = a->func == NULL && last.len_q == s.len_q && last.len_k == s.len_k &&
                        last.n_contexts == s.n_contexts && last.history == s.history;
        if (attn_mask_is_causal(a) && s.shift >= 0)
            n_last = q * s.shift + q * (q + 1) / 2;
        else if (!is_alike)
            n_last = count_sequence(a, &s);
        last = s;
        n += (double)n_last;
    }
    return n;
}

static double count_softmax(const mask_rule *rule, const int32_t *offsets, int32_t n_sequences) {
    double n = 0;
    for (int32_t b = 0; b < n_sequences; b++) {
        if (offsets[b + 1] < offsets[b]) return 0; /* not offsets */
        n += (double)mask_rule_pairs(rule, offsets[b + 1] - offsets[b]);
    }
    return n;
}

void work_pairs_ask_attn(pairs_ask *out, const attn_args *a) {
    memset(out, 0, sizeof *out);
    if (a->func != NULL || a->pages.table != NULL) return;
    out->offsets_q = a->offsets_q;
    out->offsets_k = a->offsets_k;
    out->n_contexts = a->n_contexts;
    out->n_targets = a->n_targets;
    out->n_sequences = a->n_sequences;
    out->window_left = a->window_left;
    out->window_right = a->window_right;
    out->target_group = a->target_group;
}

static void ask_softmax(pairs_ask *out, const softmax_attn_args *a) {
    memset(out, 0, sizeof *out);
    if (!mask_rule_is_span(&a->mask.rule)) return;
    out->offsets_q = out->offsets_k = a->offsets;
    out->n_sequences = a->n_sequences;
    out->is_softmax = true;
    memcpy(&out->rule, &a->mask.rule, sizeof out->rule);
}

double work_pairs_answer(const pairs_ask *ask) {
    const attn_args a = {.n_sequences = ask->n_sequences,
                         .offsets_q = ask->offsets_q,
                         .offsets_k = ask->offsets_k,
                         .n_contexts = ask->n_contexts,
                         .n_targets = ask->n_targets,
                         .window_left = ask->window_left,
                         .window_right = ask->window_right,
                         .target_group = ask->target_group};
    if (ask->is_softmax) return count_softmax(&ask->rule, ask->offsets_q, ask->n_sequences);
    return count_batch(&a);
}

double work_pairs_attn(const backend *be, const attn_args *a) {
    if (is_on_cpu(be)) return count_batch(a);
    if (a->func != NULL || a->pages.table != NULL ||
        !is_even(a->n_rows_q, a->n_sequences, a->max_len_q) ||
        !is_even(a->n_rows_k, a->n_sequences, a->max_len_k))
        return 0;
    const attn_sequence s = {.len_q = a->max_len_q,
                             .len_k = a->max_len_k,
                             .shift = a->max_len_k - a->max_len_q,
                             .history = a->max_len_k};
    return (double)a->n_sequences * (double)count_sequence(a, &s);
}

static double pairs_softmax(const backend *be, const softmax_attn_args *a) {
    const mask_rule *r = &a->mask.rule;
    bool is_known = is_even(a->n_rows, a->n_sequences, a->max_len);
    if (!mask_rule_is_span(r)) {
        /* The lists of a recorded step are replaced before it is replayed; those of one length are
         * the same then, but a file's may be of other sequences. */
        return is_on_cpu(be) || (is_known && r->kind != MASK_BITS) ? (double)a->mask.n_pairs : 0;
    }
    if (!is_on_cpu(be))
        return is_known ? a->n_sequences * (double)mask_rule_pairs(r, a->max_len) : 0;
    return count_softmax(r, a->offsets, a->n_sequences);
}

/* Where the pairs are not known, the bytes alone would say nothing. */
static op_work by_pairs(const backend *be, const op_work *asked, double pairs, double of_pair,
                        double n_bytes) {
    op_work w = *asked;
    if (pairs > 0) w.flop = pairs * of_pair;
    if (pairs > 0) w.bytes = n_bytes;
    if (w.ask.n_sequences > 0 && !is_on_cpu(be)) {
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

/* Three maps of the values; two of them have no scores. */
static op_work channels(const backend *be, const attn_channels_args *a, bool is_bwd, char *shape) {
    attn_args wide = a->of;
    wide.dim_v *= 3;
    return attention(be, &wide, is_bwd, shape);
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

/* Bytes are those of the scores, which are written and read by each product. */
static op_work full(const full_softmax_args *a, char *shape) {
    double scores = (double)a->n * a->n_items, passes = a->dquery != NULL ? 3 : 1;
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%lld, %d] of %d items", (long long)a->n, a->dim,
                 a->n_items);
    return (op_work){.flop = 2 * scores * a->dim * passes, .bytes = scores * 4 * 2 * passes};
}

static op_work softmax(const backend *be, const softmax_attn_args *a, bool is_bwd, char *shape) {
    double d = a->dim, act = (double)act_bytes(be->act), pairs = pairs_softmax(be, a);
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%d x %d, %d, %d]", a->n_sequences, a->max_len,
                 a->n_heads, a->dim);
    op_work w = {0};
    ask_softmax(&w.ask, a);
    return by_pairs(be, &w, pairs, a->n_heads * 2 * d * (is_bwd ? 5 : 2),
                    (double)a->n_rows * 4 * d * a->n_heads * act * (is_bwd ? 2 : 1));
}

/* Each edge reads its rows once a product; the backward pass again for dq. */
static op_work graph(const backend *be, const graph_attn_args *a, bool is_bwd, char *shape) {
    double edges = (double)a->g.n_edges * a->n_heads, qk = a->q != NULL ? a->dim_qk : 0;
    double v = a->v != NULL ? a->dim_v : 0, products = is_bwd ? 3 * qk + 2 * v : qk + v;
    if (shape != NULL)
        snprintf(shape, WORK_SHAPE_BYTES, "[%d x %d, %lld edges, %d, %d]", a->g.rows.n,
                 a->g.columns.n, (long long)a->g.n_edges, a->n_heads, a->dim_v);
    return (op_work){.flop = 2 * edges * products,
                     .bytes = edges * (qk + v + (is_bwd ? qk : 0)) * (double)act_bytes(be->act)};
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
    case WORK_linear_packed:
        w = product(be, &((const linear_packed_args *)a)->layer, false, shape);
        break;
    case WORK_linear_fwd:
    case WORK_linear_bwd:
        w = product(be, a, op == WORK_linear_bwd, shape);
        break;
    case WORK_attn_fwd:
    case WORK_attn_bwd:
        w = attention(be, a, op == WORK_attn_bwd, shape);
        break;
    case WORK_attn_channels_fwd:
    case WORK_attn_channels_bwd:
        w = channels(be, a, op == WORK_attn_channels_bwd, shape);
        break;
    case WORK_softmax_attn_fwd:
    case WORK_softmax_attn_bwd:
        w = softmax(be, a, op == WORK_softmax_attn_bwd, shape);
        break;
    case WORK_graph_attn_fwd:
    case WORK_graph_attn_bwd:
        w = graph(be, a, op == WORK_graph_attn_bwd, shape);
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
        w = product(be, &l->linear.layer, false, shape);
        w.bytes += rows(be, l->norm.n, l->norm.dim, 3, NULL).bytes;
        break;
    }
    case WORK_head_fwd: {
        const head_args *h = (const head_args *)a;
        w = product(be, &h->one.layer, false, shape);
        w.flop += product(be, &h->two.layer, false, NULL).flop;
        break;
    }
    case WORK_gate_fwd:
    case WORK_gate_bwd:
        w = rows(be, ((const gate_args *)a)->n, ((const gate_args *)a)->dim,
                 op == WORK_gate_bwd ? 5 : 3, shape);
        break;
    case WORK_glu_fwd:
    case WORK_glu_bwd:
        w = rows(be, ((const glu_args *)a)->n, ((const glu_args *)a)->dim,
                 op == WORK_glu_bwd ? 5 : 3, shape);
        break;
    case WORK_gather:
        w = gathered(be, a, shape);
        break;
    case WORK_sampled_softmax:
        w = sampled(a, shape);
        break;
    case WORK_full_softmax:
        w = full(a, shape);
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

enum { MAX_PIECE_BYTES = 1 << 20 };

void lengths_fini(lengths *l) {
    for (int i = 0; i < l->n_pieces; i++)
        mem_free(l->pieces[i].host);
    *l = (lengths){0};
}

void lengths_note_copy(lengths *l, const void *to, const void *from_host, size_t bytes) {
    const char *first = to, *end = first + bytes;
    for (int i = 0; i < l->n_pieces; i++) {
        lengths_piece *p = &l->pieces[i];
        if (p->at >= end || p->at + p->bytes <= first) continue;
        p->is_known = p->at >= first && p->at + p->bytes <= end;
        if (p->is_known) memcpy(p->host, (const char *)from_host + (p->at - first), p->bytes);
        l->version++;
    }
}

void lengths_forget(lengths *l) {
    for (int i = 0; i < l->n_pieces; i++)
        l->pieces[i].is_known = false;
    l->version++;
}

/* From now on this piece is kept.  Without memory it is not. */
static void begin_to_keep(lengths *l, const char *at, size_t bytes) {
    char *host;
    if (bytes > MAX_PIECE_BYTES || mem_alloc_raw((void **)&host, bytes, 1) != OK) return;
    int i = l->n_pieces < LENGTHS_MAX_PIECES ? l->n_pieces++ : l->next_piece++ % LENGTHS_MAX_PIECES;
    mem_free(l->pieces[i].host);
    l->pieces[i] = (lengths_piece){at, bytes, host, false};
}

/* The numbers at a place of the device, as the host has them.  NULL stays NULL; false: not known.
 */
static bool find(lengths *l, const int32_t **numbers, size_t n) {
    const char *at = (const char *)*numbers;
    size_t bytes = n * sizeof **numbers;
    if (at == NULL) return true;
    for (int i = 0; i < l->n_pieces; i++) {
        const lengths_piece *p = &l->pieces[i];
        if (p->at != at || p->bytes < bytes) continue;
        *numbers = (const int32_t *)(const void *)p->host;
        return p->is_known;
    }
    begin_to_keep(l, at, bytes);
    return false;
}

static bool is_same(const pairs_ask *a, const pairs_ask *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

double lengths_pairs(lengths *l, const pairs_ask *ask) {
    if (l->has_answer && l->answer_version == l->version && is_same(&l->asked, ask))
        return l->answer;
    pairs_ask here = *ask;
    size_t n = (size_t)ask->n_sequences;
    /* All of them are asked for, so that the next batch has all. */
    bool is_known = find(l, &here.offsets_q, n + 1);
    is_known = find(l, &here.offsets_k, n + 1) && is_known;
    is_known = find(l, &here.n_contexts, n) && is_known;
    is_known = find(l, &here.n_targets, n) && is_known;
    l->asked = *ask;
    l->answer = is_known ? work_pairs_answer(&here) : 0;
    l->answer_version = l->version;
    l->has_answer = true;
    return l->answer;
}

static lengths_graph *find_graph(lengths *l, uint64_t key) {
    for (int i = 0; i < l->n_graphs; i++)
        if (l->graphs[i].key == key) return &l->graphs[i];
    return NULL;
}

void lengths_begin_graph(lengths *l, uint64_t key) {
    lengths_graph *g = find_graph(l, key);
    if (g != NULL) *g = l->graphs[--l->n_graphs];
}

void lengths_note_graph(lengths *l, uint64_t key, const pairs_ask *ask) {
    lengths_graph *g = find_graph(l, key);
    if (g != NULL) {
        g->is_mixed = g->is_mixed || !is_same(&g->ask, ask);
        return;
    }
    int i = l->n_graphs < LENGTHS_MAX_GRAPHS ? l->n_graphs++ : l->next_graph++ % LENGTHS_MAX_GRAPHS;
    l->graphs[i] = (lengths_graph){key, *ask, false};
}

double lengths_graph_pairs(lengths *l, uint64_t key) {
    const lengths_graph *g = find_graph(l, key);
    return g != NULL && !g->is_mixed ? lengths_pairs(l, &g->ask) : 0;
}
