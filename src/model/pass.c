#include "model/pass.h"

#include <stdatomic.h>

#include "model/kv_store.h"
#include "model/model_int.h"
#include "nn/hstu_rows.h"

/* Such a large batch gains nothing from recording: its kernel launches are hidden by the
 * kernels. */
enum { MAX_RECORDED_EVENTS = 1 << 16 };

/* Tokens of a batch for inference that is recorded, at most: the launches of larger ones are
 * hidden, the first ones too. */
enum { MOST_RECORDED = 8192 };

/* Tokens that a last layer leaves out, if they are less than two thirds (can_choose). */
enum { MANY_OTHERS = 1024 };

/* Whether all tokens have results, so that there is nothing to choose and to round up. */
static bool has_all_rows(const model *m) {
    return m->is_ranking && !m->plan.has_candidates;
}

/* Of so many events, rounded up as recorded steps are. */
static int32_t most_tokens(const layout_config *p, int64_t n_events) {
    int64_t n = n_events * (p->has_actions ? 2 : 1), bucket = p->bucket > 0 ? p->bucket : 1;
    n = (n + bucket - 1) / bucket * bucket;
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

static layout_config plan_of(const model *m, const pass_config *c) {
    layout_config p = m->plan;
    bool is_large = (int64_t)c->max_users * p.max_events > MAX_RECORDED_EVENTS;
    p.max_users = c->max_users;
    if (c->max_targets > 0 && p.has_candidates) {
        p.max_events += c->max_targets - p.max_targets;
        p.max_targets = c->max_targets;
    }
    p.max_tokens = c->max_tokens;
    if (c->has_cache) {
        int64_t longest = p.n_context + (p.has_actions ? 2 : 1) * (int64_t)p.max_events;
        p.page_len = KV_PAGE_LEN;
        p.max_pages = (int32_t)((longest + KV_PAGE_LEN - 1) / KV_PAGE_LEN);
    }
    p.is_training = c->is_training;
    if (c->is_training) { /* rows may move */
        p.items = (layout_rows){0};
        p.contexts = NULL;
    }
    /* Ranks that share a batch exchange numbers in the middle of a pass. */
    bool is_shared = m->tensor != NULL || m->sequence != NULL;
    p.is_rounded = c->is_recorded && !is_shared && m->be->token_bucket > 0 && !has_all_rows(m);
    p.bucket = c->is_training && m->can_record && !is_large && !is_shared ? m->be->token_bucket : 0;
    if (c->max_events > 0) p.max_tokens = most_tokens(&p, c->max_events);
    return p;
}

static status alloc_layers(pass *p, const nn_room *room) {
    const model *m = p->m;
    TRY(NN_NEW_HOST(&p->memory, &p->layers, m->n_layers));
    if (m->n_layers == 0) return OK;
    const layer_kind *kind = m->layers[0].kind;
    if (room->is_training) TRY(kind->alloc_scratch(&p->scratch, &m->layers[0], room));
    for (int i = 0; i < m->n_layers; i++) {
        if (i == 0 || room->is_training)
            TRY(kind->alloc(&p->layers[i], &m->layers[i], &p->scratch, room));
        else
            p->layers[i] = p->layers[0];
    }
    return OK;
}

static status alloc_hidden(pass *p, const nn_room *room) {
    const model *m = p->m;
    TRY(NN_NEW_HOST(&p->memory, &p->hidden, m->n_layers + 1));
    for (int i = 0; i <= m->n_layers; i++) {
        bool is_whole = !room->is_training || i == 0 || i == m->n_layers;
        int64_t n = is_whole ? room->max_tokens : rows_most(room->max_tokens, m->sequence);
        if (i < 2 || room->is_training)
            TRY(nn_new_act(&p->memory, &p->hidden[i], n, m->dim));
        else
            p->hidden[i] = p->hidden[i - 2];
    }
    if (!room->is_training) return OK;
    TRY(nn_new_act(&p->memory, &p->d_hidden, room->max_tokens, m->dim));
    return NN_NEW(&p->memory, &p->loss, 1);
}

static status alloc_head(pass *p, const nn_room *room) {
    const model *m = p->m;
    if (m->is_ranking) return ranking_alloc(&p->ranking, &m->ranking, room);
    TRY(retrieval_alloc(&p->retrieval, &m->retrieval, room));
    if (room->is_training) return OK;
    if (m->retrieval.loss.mol != NULL)
        TRY(mol_search_alloc(&p->search, &m->mol, &p->memory, m->corpus.n, room->max_users));
    int64_t n_events = room->max_users * m->plan.max_events;
    /* Offsets, targets, and the rows to leave out. */
    return STAGED_NEW(&p->memory, &p->lists, 2 * room->max_users + 1 + n_events);
}

static status alloc_all(pass *p, const pass_config *c) {
    layout_config layout = plan_of(p->m, c);
    TRY(NN_NEW_HOST(&p->memory, &p->n_skipped, c->max_users));
    TRY(batch_layout_alloc(&p->plan, &layout, &p->memory));
    nn_room room = {.memory = &p->memory,
                    .max_tokens = p->plan.max_tokens,
                    .max_users = c->max_users,
                    .max_loss = batch_layout_max_loss(&layout),
                    .is_training = c->is_training};
    if (!p->m->is_ranking) room.max_items = retrieval_max_items(&p->m->retrieval, room.max_loss);
    TRY(input_alloc(&p->input, &p->m->input, &room));
    if (c->is_training) {
        p->m->input.events.max_step = p->input.event_list.max_rows;
        p->m->input.contexts.max_step = p->input.context_list.max_rows;
    }
    TRY(alloc_layers(p, &room));
    TRY(alloc_hidden(p, &room));
    return alloc_head(p, &room);
}

/* The number of a pass is part of the keys of what it records. */
static uint64_t next_id(void) {
    static atomic_uint_fast64_t n_made;
    return atomic_fetch_add(&n_made, 1);
}

status pass_create(pass **out, model *m, const pass_config *c) {
    pass *p;
    *out = NULL;
    if (c->is_training && (c->max_tokens != 0 || c->max_targets != 0 || c->has_cache))
        return fail(ERR_USAGE, "a pass that trains takes every batch of the model's limits");
    if (c->max_users < 1 || c->max_users > m->plan.max_users)
        return fail(ERR_CONFIG, "a pass for %d users; the model was made for 1 to %d", c->max_users,
                    m->plan.max_users);
    TRY(MEM_NEW(&p, 1));
    p->m = m;
    p->id = next_id();
    nn_memory_init(&p->memory, m->be);
    status st = c->lender != NULL ? nn_memory_borrow(&p->memory, &c->lender->memory) : OK;
    if (st == OK && c->is_training) st = model_alloc_grads(m);
    range_begin("activations", RANGE_NO_NUMBER);
    if (st == OK) st = alloc_all(p, c);
    range_end();
    return CREATED(st, out, p, pass_destroy);
}

void pass_destroy(pass *p) {
    if (p == NULL) return;
    nn_memory_fini(&p->memory);
    mem_free(p);
}

void pass_set_fp8_kv(pass *p, bool has_fp8_kv) {
    p->has_fp8_kv = has_fp8_kv;
}

uint64_t pass_memory_bytes(const pass *p) {
    return p->memory.device_bytes;
}

int64_t pass_n_unlabelled(const pass *p) {
    return p->plan.n_unlabelled;
}

/* This rank's rows of (T, E) act. */
static void *own_rows(const model *m, const sequences *s, void *rows) {
    int64_t n, first = rows_own(s->n_tokens, m->sequence, &n);
    return nn_act_at(m->be, rows, first * m->dim);
}

/* Rows that go into layer i, or for i = n_layers come out of the last. */
static void *hidden_rows(const pass *p, const sequences *s, int i) {
    bool is_whole = i == 0 || i == p->m->n_layers;
    return is_whole ? own_rows(p->m, s, p->hidden[i]) : p->hidden[i];
}

/* What other ranks have computed of (T, E) act. */
static status gather_rows(const model *m, const sequences *s, void *rows) {
    if (m->sequence == NULL || m->n_layers == 0) return OK;
    return rows_gather(m->sequence, s->n_tokens, m->dim * (int64_t)act_bytes(m->be->act), rows);
}

static choice *choice_of(pass *p) {
    return p->m->is_ranking ? &p->ranking.tokens : &p->retrieval.tokens;
}

/* Whether the last layer computes the tokens of the head alone: where they are a third of all, or
 * half and many are left out.  Of 512 tokens half takes an H200 longer, with two kernels more, than
 * all (2026-11-17).  Training needs all. */
static bool can_choose(const pass *p) {
    const model *m = p->m;
    const batch_layout *b = &p->plan;
    if (b->config.is_training || !b->takes_last || m->n_layers == 0) return false;
    const layer *last = &m->layers[m->n_layers - 1];
    bool can = last->kind->can_choose != NULL && last->kind->can_choose(last);
    int64_t chosen = b->n_loss, others = b->n_tokens - chosen;
    bool pays = others >= 2 * chosen || (others >= chosen && others >= MANY_OTHERS);
    return can && chosen > 0 && pays;
}

static chosen_rows chosen_of(pass *p) {
    return (chosen_rows){.n = p->plan.n_loss,
                         .max_len = p->plan.max_chosen,
                         .offsets = p->plan.chosen_offsets.device,
                         .token = p->plan.loss_token.device,
                         .x = choice_of(p)->x};
}

/* Runs the tokens of the plan through all layers: p->hidden. */
static status forward(pass *p, const sequences *s) {
    const model *m = p->m;
    token_asks asks = {0};
    if (m->n_layers > 0 && m->layers[0].kind->ask != NULL)
        m->layers[0].kind->ask(&m->layers[0], &p->layers[0], s, &asks);
    TRY(input_fwd(&m->input, &p->input, m->be, &p->plan, s, &asks, p->hidden[0]));
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        sequences own = *s;
        own.has_moments = asks.moments != NULL;
        if (i == m->n_layers - 1 && choice_of(p)->is_done) own.chosen = chosen_of(p);
        own.kv.is_fp8 = p->has_fp8_kv;
        /* pages that were copied for this layer are not there early */
        own.is_repeated = i > 0 && (p->store == NULL || kv_store_can_record(p->store));
        if (p->store != NULL) TRY(kv_store_begin_layer(p->store, i, &own.kv));
        range_begin("layer forward", i);
        status st = l->kind->forward(l, &p->layers[i], m->be, &own, hidden_rows(p, s, i),
                                     hidden_rows(p, s, i + 1));
        if (st == OK && p->store != NULL) st = kv_store_end_layer(p->store, i);
        range_end();
        TRY(st);
    }
    return gather_rows(m, s, p->hidden[m->n_layers]);
}

static status tell_grads(const pass *p, int part) {
    return p->on_grads != NULL ? p->on_grads(p->grads_ctx, part) : OK;
}

/* From the gradient of the last hidden state, in p->d_hidden, to those of all parameters. */
static status backward(pass *p, const sequences *s) {
    const model *m = p->m;
    TRY(tell_grads(p, m->n_layers));
    for (int i = m->n_layers - 1; i >= 0; i--) {
        const layer *l = &m->layers[i];
        range_begin("layer backward", i);
        status st = l->kind->backward(l, &p->layers[i], &p->scratch, m->be, s, hidden_rows(p, s, i),
                                      own_rows(m, s, p->d_hidden));
        range_end();
        TRY(st);
        TRY(tell_grads(p, i));
    }
    TRY(gather_rows(m, s, p->d_hidden));
    return input_bwd(&m->input, &p->input, m->be, &p->plan, s, p->d_hidden);
}

static loss_rows rows_of(pass *p, uint64_t seed, const int32_t *negatives) {
    loss_rows rows = {.sum = p->loss,
                      .seed = seed,
                      .negatives = negatives,
                      .whole = p->whole,
                      .table = p->input.event_list.value};
    if (p->whole != NULL && p->m->corpus.rows != NULL)
        rows.has_no_row = dynamic_missing_items(&p->m->dynamic);
    return rows;
}

/* The rows of listed tables that the batch uses. */
static status list_rows(pass *p, uint64_t seed, const int32_t *negatives) {
    model *m = p->m;
    row_uses use[LIST_ROWS_USES - 1];
    loss_rows rows = rows_of(p, seed, negatives);
    bool has_loss = !m->is_ranking && m->retrieval.loss.listed != NULL;
    if (has_loss) TRY(retrieval_uses(&m->retrieval, &p->retrieval, m->be, &p->plan, &rows, use));
    return input_list(&m->input, &p->input, m->be, &p->plan, use, has_loss ? 2 : 0);
}

/* Loss and the gradient of the last hidden state. */
static status train_head(pass *p, uint64_t seed, const int32_t *negatives) {
    const model *m = p->m;
    const void *last = p->hidden[m->n_layers];
    loss_rows rows = rows_of(p, seed, negatives);
    if (m->is_ranking)
        return ranking_train(&m->ranking, &p->ranking, m->be, &p->plan, rows, last, p->d_hidden);
    return retrieval_train(&m->retrieval, &p->retrieval, m->be, &p->plan, rows, last, p->d_hidden);
}

static status train_passes(pass *p, const model_step *at, const int32_t *negatives) {
    sequences s = batch_layout_sequences(&p->plan);
    s.has_dropout = true;
    s.drop.key = rng_make_key(at->seed, RNG_DROPOUT);
    range_begin("rows", RANGE_NO_NUMBER);
    status st = list_rows(p, at->seed, negatives);
    range_end();
    TRY(st);
    TRY(forward(p, &s));
    range_begin("head", RANGE_NO_NUMBER);
    st = train_head(p, at->seed, negatives);
    range_end();
    TRY(st);
    TRY(backward(p, &s));
    return input_mark(&p->m->input, p->m->be, &p->plan);
}

void pass_expect(pass *p, const batch *next) {
    p->expected = next;
}

/* The FNV-1a hash includes the pass and the seed, which recorded kernels depend on.  A pass is
 * identified by number: a later pass may get the same address. */
uint64_t pass_record_key(const pass *p, uint64_t seed) {
    const uint64_t part[] = {p->id, seed};
    uint64_t key = batch_layout_record_key(&p->plan);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        for (int shift = 0; shift < 64; shift += 32)
            key = (key ^ (uint32_t)(part[i] >> shift)) * 0x100000001b3u;
    return key;
}

/* A failed op leaves a recording without its end, which would run as if it were whole: with a new
 * number the pass finds nothing that it has recorded. */
static status end_record(pass *p, status st) {
    status end = p->m->be->ops->record_end(p->m->be);
    if (st == OK) st = end;
    if (st != OK) p->id = next_id();
    return st;
}

/* For batches of one shape only the data that the plan sends differs, so passes can be recorded;
 * given negatives are copied in the middle of a pass, which prevents that. */
static status train_recorded(pass *p, const model_step *at) {
    record_state state;
    backend *be = p->m->be;
    TRY(be->ops->record(be, pass_record_key(p, at->seed), &state));
    status st = state == RECORD_REPLAY ? OK : train_passes(p, at, NULL);
    return end_record(p, st);
}

status pass_take_rows(pass *p, const batch *b, const batch **out) {
    model *m = p->m;
    const batch *expected = p->expected;
    p->expected = NULL;
    *out = b;
    if (m->dynamic.n_all == 0 || model_count_loss(m, b) == 0) return OK; /* it touches no rows */
    TRY(dynamic_take(&m->dynamic, b, true, out));
    return expected != NULL ? dynamic_announce(&m->dynamic, expected) : OK;
}

/* Forward and backward of a batch whose rows are there. */
static status train_rows(pass *p, const batch *b, const model_step *at, const int32_t *negatives) {
    layout_request request = {
        .purpose = LAYOUT_TRAIN, .step = at->step, .seed = at->seed, .grad_scale = at->grad_scale};
    model *m = p->m;
    if (m->corpus.rows != NULL) request.has_no_row = dynamic_missing_items(&m->dynamic);
    TRY(batch_layout_build(&p->plan, m->be, b, &request));
    if (p->plan.n_loss == 0) return OK;
    /* What is called for complete gradients must not become a part of a recorded step. */
    if (p->plan.config.bucket > 0 && negatives == NULL && p->on_grads == NULL)
        return train_recorded(p, at);
    return train_passes(p, at, negatives);
}

status pass_train_part(pass *p, const batch *part, const batch *whole, const model_step *at) {
    p->whole = whole;
    status st = train_rows(p, part, at, NULL);
    p->whole = NULL;
    return st;
}

status pass_train(pass *p, const batch *b, const model_step *at, const int32_t *negatives) {
    model *m = p->m;
    const loss_config *loss = &m->retrieval.loss;
    bool is_listed = loss->listed != NULL && loss->type == LOSS_IN_BATCH;
    if (negatives != NULL && (loss->type == LOSS_LABELS || loss->type == LOSS_ALL_ITEMS))
        return fail(ERR_UNSUPPORTED, "this loss draws no negatives, so none can be given");
    if ((m->corpus.rows != NULL || is_listed) && negatives != NULL)
        return fail(ERR_UNSUPPORTED, "negatives can be given where the item table is static, and "
                                     "in-batch ones where it is small");
    TRY(pass_take_rows(p, b, &b));
    if (m->dynamic.n_all > 0 && model_count_loss(m, b) == 0) return OK;
    return train_rows(p, b, at, negatives);
}

void pass_watch_grads(pass *p, pass_grads_fn fn, void *ctx) {
    p->on_grads = fn;
    p->grads_ctx = ctx;
}

double *pass_loss(pass *p) {
    return p->loss;
}

status pass_fetch_loss(pass *p, double *to, uint64_t *ticket) {
    backend *be = p->m->be;
    TRY(be->ops->fetch(be, to, p->loss, sizeof *to, ticket));
    return be->ops->zero(be, p->loss, sizeof *p->loss);
}

status pass_take_loss(pass *p, double *sum) {
    uint64_t ticket;
    TRY(pass_fetch_loss(p, sum, &ticket));
    return p->m->be->ops->wait(p->m->be, ticket);
}

/* The batch that is laid out through all layers, without dropout, and the head. */
static status run_laid_out(pass *p, const void **out) {
    const model *m = p->m;
    sequences s = batch_layout_sequences(&p->plan);
    const void *last = p->hidden[m->n_layers];
    TRY(batch_layout_send(&p->plan, m->be));
    choice_of(p)->is_done = can_choose(p);
    TRY(forward(p, &s));
    return m->is_ranking
               ? ranking_score(&m->ranking, &p->ranking, m->be, &p->plan, last, out)
               : retrieval_encode(&m->retrieval, &p->retrieval, m->be, &p->plan, last, out);
}

/* The results are where they were when the shape was recorded. */
static status run_recorded(pass *p, const void **out) {
    backend *be = p->m->be;
    record_state state;
    *out = p->m->is_ranking ? p->ranking.logits : p->retrieval.query;
    TRY(be->ops->record(be, pass_record_key(p, 0), &state));
    status st = state == RECORD_REPLAY ? OK : run_laid_out(p, out);
    return end_record(p, st);
}

/* The rows of dynamic tables that a batch reads, where the plan does not name them itself. */
static status take_rows(pass *p, const batch *b, const layout_request *request, const batch **out) {
    model *m = p->m;
    const layout_config *c = &p->plan.config;
    bool is_large = b->n_users > c->max_users; /* batch_layout_build refuses it */
    *out = b;
    if (c->items.row != NULL || c->contexts != NULL) return OK;
    if (request->cache == NULL || m->dynamic.n_all == 0 || is_large)
        return dynamic_take(&m->dynamic, b, false, out);
    for (int32_t u = 0; u < b->n_users; u++)
        p->n_skipped[u] = batch_layout_n_reused(&p->plan, request->cache->n_reused[u]);
    return dynamic_take_rest(&m->dynamic, b, p->n_skipped, out);
}

/* Whether a batch that was not rounded up has a shape that came lately: then it is recorded, so
 * that its first kernels do not wait for each other's launches.  Of mixed requests hardly any shape
 * comes again, and those that are recorded must not be given up for them. */
static bool has_come(pass *p) {
    if (!p->plan.config.is_rounded || p->plan.n_tokens > MOST_RECORDED) return false;
    uint64_t key = pass_record_key(p, 0);
    for (int i = 0; i < PASS_SHAPES; i++)
        if (p->shapes[i] == key) return true;
    p->shapes[p->n_shapes++ % PASS_SHAPES] = key;
    return false;
}

static status run(pass *p, const pass_call *call, const layout_request *request, const void **out) {
    const batch *b;
    TRY(take_rows(p, &call->batch, request, &b));
    TRY(batch_layout_build(&p->plan, p->m->be, b, request));
    bool can_record = !p->has_fp8_kv && (p->store == NULL || kv_store_can_record(p->store));
    if (p->lead.begin != NULL) TRY(p->lead.begin(p->lead.ctx, call));
    status st = can_record && (p->plan.is_round || has_come(p)) ? run_recorded(p, out)
                                                                : run_laid_out(p, out);
    return p->lead.begin != NULL ? p->lead.end(p->lead.ctx, st) : st;
}

static status run_cached(pass *p, const batch *b, layout_purpose purpose, kv_store *store,
                         const layout_cache *cache, const void **out) {
    const char *why = kv_store_check(p->m);
    if (cache != NULL && why != NULL) return fail(ERR_UNSUPPORTED, "%s", why);
    layout_cache own = {0};
    if (cache != NULL) TRY(kv_store_begin(store, b->n_users, cache, &own));
    p->store = store;
    layout_request request = {.purpose = purpose, .cache = cache != NULL ? &own : NULL};
    pass_call call = {purpose, p->has_fp8_kv, cache != NULL, .batch = *b};
    if (cache != NULL) call.cache = *cache;
    if (cache != NULL) call.moves = store->moves;
    status st = run(p, &call, &request, out);
    p->store = NULL;
    return st;
}

void pass_set_lead(pass *p, const pass_lead *lead) {
    p->lead = *lead;
}

status pass_follow(pass *p, kv_store *store, const pass_call *call) {
    const layout_cache *cache = call->has_cache ? &call->cache : NULL;
    const void *results;
    p->has_fp8_kv = call->has_fp8_kv;
    if (cache == NULL) store = NULL;
    if (store != NULL) store->moves = call->moves; /* each pass gets its own */
    TRY(run_cached(p, &call->batch, call->purpose, store, cache, &results));
    return p->m->be->ops->sync(p->m->be);
}

int32_t pass_n_skipped(const pass *p, int32_t n_reused) {
    return batch_layout_n_skipped(&p->plan, n_reused);
}

status pass_encode(pass *p, const batch *b, const void **out) {
    return pass_encode_cached(p, b, NULL, NULL, out);
}

status pass_encode_cached(pass *p, const batch *b, kv_store *store, const layout_cache *cache,
                          const void **out) {
    const model *m = p->m;
    if (m->is_ranking)
        return fail(ERR_CONFIG, "a ranking model scores candidates; it has no "
                                "encoded user to search with");
    return run_cached(p, b, LAYOUT_ENCODE, store, cache, out);
}

status pass_score(pass *p, const batch *b, const void **out, int64_t *n_rows) {
    return pass_score_cached(p, b, NULL, NULL, out, n_rows);
}

status pass_score_cached(pass *p, const batch *b, kv_store *store, const layout_cache *cache,
                         const void **out, int64_t *n_rows) {
    const model *m = p->m;
    if (!m->is_ranking) return fail(ERR_CONFIG, "a retrieval model has no ranking head");
    TRY(run_cached(p, b, LAYOUT_SCORE, store, cache, out));
    *n_rows = p->plan.n_rows;
    return OK;
}

/* The catalogue ranked for the users of a batch: seen items, ranks of targets, top k. */

void pass_seen_rows(const batch *b, const model_items *corpus, int32_t *offsets, int32_t *rows) {
    int32_t n = 0;
    offsets[0] = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t n_mine = 0, end = b->offsets[u + 1] - b->n_targets[u];
        for (int32_t i = b->offsets[u]; i < end; i++) {
            int32_t row = corpus->row[b->item[i]];
            if (row >= 0) rows[n + n_mine++] = row;
        }
        n += sort_distinct(rows + n, n_mine);
        offsets[u + 1] = n;
    }
}

/* Offsets, targets and seen rows are contiguous, so that one copy sends them. */
static status send_lists(pass *p, const batch *b, const rank_query *q, rank_args *a) {
    int32_t n = b->n_users, *offsets = p->lists.host, *target = offsets + n + 1, *seen = target + n;
    pass_seen_rows(b, q->corpus, offsets, seen);
    if (q->target != NULL) memcpy(target, q->target, (size_t)n * sizeof *target);
    a->seen_offsets = q->keeps_seen ? NULL : p->lists.device;
    a->target = q->target != NULL ? p->lists.device + n + 1 : NULL;
    a->seen = p->lists.device + 2 * n + 1;
    return STAGED_SEND(p->m->be, &p->lists, 2 * (int64_t)n + 1 + offsets[n]);
}

status pass_search(pass *p, const rank_args *a, const uint64_t *users) {
    backend *be = p->m->be;
    if (p->m->retrieval.loss.mol == NULL) return be->ops->rank(be, a);
    return mol_search_run(&p->search, be, a, users);
}

status pass_index(pass *p, const mol_stages *stages, const model_items *corpus,
                  int32_t n_measured) {
    if (p->m->retrieval.loss.mol == NULL)
        return fail(ERR_CONFIG, "only a mixture of logits is searched in two stages; this model's "
                                "similarity is a dot product, whose search is exact");
    p->search.n_to_measure = n_measured;
    return mol_search_index(&p->search, stages, &p->memory, corpus->n, corpus->rows);
}

bool pass_recall(const pass *p, double *recall, int32_t *n_queries) {
    const mol_search *s = &p->search;
    *recall = s->n_wanted > 0 ? (double)s->n_hit / (double)s->n_wanted : 1;
    *n_queries = s->n_measured;
    return s->n_measured > 0;
}

status pass_components_sizes(const pass *p, int32_t *dim, int32_t *most) {
    if (p->m->retrieval.loss.mol == NULL)
        return fail(ERR_CONFIG, "only items of a mixture of logits have components");
    *dim = p->m->mol.item.n_out;
    *most = (int32_t)p->search.acts.max_items;
    return OK;
}

status pass_components(pass *p, int32_t n, const float *items, float *to_host) {
    mol_acts *a = &p->search.acts;
    TRY(mol_items(&p->m->mol, a, p->m->be, n, items, NULL));
    return backend_read_act(p->m->be, to_host, a->item.unit,
                            (size_t)n * (size_t)p->m->mol.item.n_out);
}

status pass_rank(pass *p, const batch *b, const rank_query *q) {
    rank_args a = {.n_queries = b->n_users,
                   .dim = p->m->dim,
                   .n_corpus = q->corpus->n,
                   .corpus = q->corpus->rows,
                   .rank = q->rank,
                   .k = q->k,
                   .best = q->best,
                   .best_score = q->score};
    if (p->plan.config.is_training)
        return fail(ERR_USAGE, "this pass was made for training, not to rank");
    TRY(pass_encode(p, b, &a.query));
    TRY(send_lists(p, b, q, &a));
    TRY(pass_search(p, &a, b->users));
    for (int64_t i = 0; i < (int64_t)b->n_users * q->k; i++)
        if (q->best[i] >= 0) q->best[i] = q->corpus->item[q->best[i]];
    return OK;
}
