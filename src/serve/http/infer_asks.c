/* From tensors to requests: what the names of inputs mean (request_infer.h). */
#include <string.h>

#include "serve/http/request_infer.h"

enum { DEFAULT_K = 10 };

/* The inputs by name; NULL: not there. */
typedef struct tensors {
    const infer_tensor *users, *candidates, *top_k, *tokens, *lengths, *n_candidates;
} tensors;

static status find_tensors(const request_infer *r, tensors *t) {
    struct {
        const char *name;
        const infer_tensor **at;
    } known[] = {{"USER_IDS", &t->users},        {"CANDIDATES", &t->candidates},
                 {"TOP_K", &t->top_k},           {"TOKENS", &t->tokens},
                 {"TOKEN_LENGTHS", &t->lengths}, {"NUM_CANDIDATES", &t->n_candidates}};
    enum { N = sizeof known / sizeof known[0] };
    *t = (tensors){0};
    for (int i = 0; i < r->n_inputs; i++) {
        int k = 0;
        while (k < N && strcmp(known[k].name, r->inputs[i].name) != 0)
            k++;
        if (k == N)
            return fail(ERR_USAGE,
                        "there is no input %.64s; there are USER_IDS, CANDIDATES, TOP_K, "
                        "TOKENS, TOKEN_LENGTHS and NUM_CANDIDATES",
                        r->inputs[i].name);
        if (*known[k].at != NULL)
            return fail(ERR_USAGE, "input %.64s is there twice", r->inputs[i].name);
        *known[k].at = &r->inputs[i];
    }
    return OK;
}

static status count(const engine_id *id, const char *name, int64_t max, size_t *out) {
    if (id->text != NULL || id->number < 0 || id->number > max)
        return fail(ERR_USAGE, "%s: an element is not a number from 0 to %lld", name,
                    (long long)max);
    *out = (size_t)id->number;
    return OK;
}

static status check_together(const tensors *t) {
    if (t->tokens == NULL && (t->lengths != NULL || t->n_candidates != NULL))
        return fail(ERR_USAGE, "TOKEN_LENGTHS and NUM_CANDIDATES need TOKENS");
    if (t->tokens != NULL && t->lengths == NULL)
        return fail(ERR_USAGE, "TOKENS needs TOKEN_LENGTHS");
    if (t->tokens == NULL && t->users == NULL)
        return fail(ERR_USAGE, "USER_IDS is missing, or TOKENS with whole histories");
    if (t->candidates != NULL && t->n_candidates != NULL)
        return fail(ERR_USAGE, "CANDIDATES and NUM_CANDIDATES exclude each other");
    return OK;
}

/* Without USER_IDS, NUM_CANDIDATES or the shape of TOKEN_LENGTHS says how many users there are. */
static status find_batch(const tensors *t, size_t *out) {
    const infer_tensor *first = t->users != NULL          ? t->users
                                : t->n_candidates != NULL ? t->n_candidates
                                                          : t->lengths;
    size_t n = first->n;
    if (n == 0 || n > INFER_MAX_BATCH)
        return fail(ERR_USAGE, "%s: from 1 to %d users in one request", first->name,
                    INFER_MAX_BATCH);
    if (t->n_candidates != NULL && t->n_candidates->n != n)
        return fail(ERR_USAGE, "NUM_CANDIDATES has not one element for each user");
    if (t->lengths != NULL && t->lengths->n != n && t->lengths->n != 2 * n)
        return fail(ERR_USAGE, "TOKEN_LENGTHS has one element for each user, or two: items, then "
                               "actions; contextual features are not read from requests");
    *out = n;
    return OK;
}

static status add_candidates(const infer_tensor *c, infer_asks *out) {
    size_t n = c->n_dims == 2 ? (size_t)c->shape[1] : c->n;
    bool is_each = c->n_dims == 2;
    if (c->n_dims > 2 || n == 0 || (is_each && (size_t)c->shape[0] != out->n))
        return fail(ERR_USAGE, "CANDIDATES has the shape (users, n), or (n): the same for all");
    for (size_t i = 0; i < out->n; i++) {
        out->ask[i].candidates = c->at + (is_each ? i * n : 0);
        out->ask[i].n_candidates = n;
    }
    return OK;
}

/* One user's items and actions as events; the last items may be candidates. */
static status add_history(arena *a, const engine_id *items, size_t n_items,
                          const engine_id *actions, size_t n_actions, size_t n_candidates,
                          engine_request *q) {
    engine_event *events;
    if (n_candidates > n_items)
        return fail(ERR_USAGE, "NUM_CANDIDATES: a user has more candidates than items");
    size_t n = n_items - n_candidates;
    if (actions != NULL && n_actions != n && n_actions != n_items)
        return fail(ERR_USAGE, "TOKEN_LENGTHS: a user has another number of actions than of items");
    TRY(ARENA_NEW(a, &events, n));
    for (size_t i = 0; i < n; i++) {
        size_t action = 0;
        events[i].item = items[i];
        if (actions != NULL) TRY(count(&actions[i], "actions in TOKENS", UINT16_MAX, &action));
        events[i].action = (uint16_t)action;
        /* Tokens have no times: a minute apart, in their order. */
        events[i].has_time = true;
        events[i].time = (int64_t)i * 60;
    }
    q->has_history = true;
    q->history = events;
    q->n_history = n;
    q->candidates = items + n;
    q->n_candidates = n_candidates;
    return OK;
}

static status add_histories(arena *a, const tensors *t, infer_asks *out) {
    bool has_actions = t->lengths->n == 2 * out->n;
    size_t at = 0, all = 0, *length;
    TRY(ARENA_NEW(a, &length, t->lengths->n));
    for (size_t i = 0; i < t->lengths->n; i++) {
        TRY(count(&t->lengths->at[i], "TOKEN_LENGTHS", INFER_MAX_ELEMENTS, &length[i]));
        all += length[i];
    }
    if (all != t->tokens->n)
        return fail(ERR_USAGE, "TOKENS has %zu elements, and TOKEN_LENGTHS adds up to %zu",
                    t->tokens->n, all);
    const engine_id *actions = t->tokens->at;
    for (size_t i = 0; i < out->n; i++)
        actions += length[i];
    for (size_t i = 0; i < out->n; i++) {
        size_t n_candidates = 0, n_actions = has_actions ? length[out->n + i] : 0;
        if (t->n_candidates != NULL)
            TRY(count(&t->n_candidates->at[i], "NUM_CANDIDATES", INFER_MAX_ELEMENTS,
                      &n_candidates));
        TRY(add_history(a, t->tokens->at + at, length[i], has_actions ? actions : NULL, n_actions,
                        n_candidates, &out->ask[i]));
        at += length[i];
        actions += n_actions;
    }
    return OK;
}

static status read_top_k(const tensors *t, infer_asks *out) {
    size_t k = DEFAULT_K;
    if (t->top_k != NULL) {
        if (t->top_k->n != 1) return fail(ERR_USAGE, "TOP_K has one element");
        TRY(count(&t->top_k->at[0], "TOP_K", ENGINE_MAX_K, &k));
        if (k == 0) return fail(ERR_USAGE, "TOP_K: at least 1");
    }
    out->top_k = (int32_t)k;
    return OK;
}

/* A small body can ask for very much: the same candidates for each of many users. */
static status check_cost(const infer_asks *q) {
    size_t n = q->has_candidates ? 0 : q->n * (size_t)q->top_k;
    for (size_t i = 0; i < q->n && q->has_candidates; i++) {
        n += q->ask[i].n_candidates;
        if (q->ask[i].n_candidates == 0)
            return fail(ERR_USAGE, "user %zu of the batch has no candidates", i);
    }
    if (n <= INFER_MAX_SCORES) return OK;
    return fail(ERR_USAGE, "%zu scores in one request, and at most %d: send fewer users or %s", n,
                INFER_MAX_SCORES, q->has_candidates ? "candidates" : "a smaller TOP_K");
}

static void finish(const request_infer *r, const tensors *t, infer_asks *out) {
    for (size_t i = 0; i < out->n; i++) {
        engine_request *q = &out->ask[i];
        q->task = out->has_candidates ? ENGINE_RANK : ENGINE_RECOMMEND;
        q->keeps_seen = out->has_candidates;
        q->top_k = out->has_candidates ? 0 : out->top_k;
        q->has_user = t->users != NULL;
        if (q->has_user) q->user = t->users->at[i];
        q->deadline_ns = (uint64_t)r->timeout_us * 1000;
        q->priority = r->priority > 0 ? -(int)(r->priority > 100 ? 100 : r->priority) : 0;
    }
}

status infer_asks_make(arena *a, const request_infer *r, infer_asks *out) {
    tensors t;
    *out = (infer_asks){0};
    TRY(find_tensors(r, &t));
    TRY(check_together(&t));
    TRY(find_batch(&t, &out->n));
    TRY(ARENA_NEW(a, &out->ask, out->n));
    TRY(read_top_k(&t, out));
    if (t.tokens != NULL) TRY(add_histories(a, &t, out));
    if (t.candidates != NULL) TRY(add_candidates(t.candidates, out));
    out->has_candidates = t.candidates != NULL || t.n_candidates != NULL;
    TRY(check_cost(out));
    finish(r, &t, out);
    return OK;
}
