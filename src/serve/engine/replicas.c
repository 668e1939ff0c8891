#include "serve/engine/replicas.h"

status replicas_init(replicas *r, const char *name, int n, int32_t max_queue, size_t max_bytes) {
    *r = (replicas){0};
    for (; r->n < n; r->n++) {
        status st = slot_create(&r->slot[r->n], name, max_queue, max_bytes);
        if (st != OK) {
            replicas_fini(r);
            return st;
        }
        r->slot[r->n]->all = r;
        r->slot[r->n]->place = r->n;
    }
    return OK;
}

void replicas_stop(replicas *r) {
    for (int i = 0; i < r->n; i++)
        slot_stop(r->slot[i]);
}

/* All of them are stopped before the first one is freed: a job may be on its way to any. */
void replicas_fini(replicas *r) {
    replicas_stop(r);
    for (int i = 0; i < r->n; i++)
        slot_destroy(r->slot[i]);
}

void replicas_set_models(replicas *r, served *const *m) {
    r->n_loads++;
    for (int i = 0; i < r->n; i++) {
        if (m[i] == NULL) continue;
        m[i]->version = r->n_loads;
        snprintf(m[i]->version_text, sizeof m[i]->version_text, "%llu",
                 (unsigned long long)r->n_loads);
        slot_set_model(r->slot[i], m[i]);
    }
}

slot *replicas_first(const replicas *r) {
    for (int i = 0; i < r->n; i++)
        if (!slot_is_lost(r->slot[i], NULL)) return r->slot[i];
    return r->slot[0];
}

/* The order of a key, by a hash of it and the replica: a lost one moves its own keys only. */
static void order_of(const replicas *r, uint64_t key, slot **out) {
    uint64_t weight[ENGINE_MAX_REPLICAS];
    for (int i = 0; i < r->n; i++) {
        uint64_t own = hash64_mix(key ^ hash64_mix((uint64_t)i + 1));
        int at = i;
        for (; at > 0 && weight[at - 1] < own; at--) {
            weight[at] = weight[at - 1];
            out[at] = out[at - 1];
        }
        weight[at] = own;
        out[at] = r->slot[i];
    }
}

slot *replicas_choose(const replicas *r, uint64_t key, const slot_terms *t, bool must, int *home,
                      engine_answer *out) {
    slot *order[ENGINE_MAX_REPLICAS], *full = NULL;
    *home = 0;
    if (r->n == 1 && must) return r->slot[0];
    order_of(r, key, order);
    *home = order[0]->place;
    for (int i = 0; i < r->n; i++) {
        engine_outcome outcome = slot_admits(order[i], t, out);
        if (outcome == ENGINE_OK) return order[i];
        if (outcome == ENGINE_OVERLOAD && full == NULL) full = order[i];
    }
    out->outcome = full != NULL ? ENGINE_OVERLOAD : ENGINE_FAILED;
    if (full == NULL) (void)slot_is_lost(order[0], out->error);
    return must ? full : NULL;
}

bool replicas_move(const replicas *r, const slot *from, job *j) {
    slot *order[ENGINE_MAX_REPLICAS];
    order_of(r, j->key, order);
    for (int i = 0; i < r->n; i++)
        if (order[i] != from && slot_take_over(order[i], j)) return true;
    return false;
}

/* All but the last member are counts, words of 8 bytes. */
void replicas_stats(const replicas *r, engine_stats *out) {
    enum { N = offsetof(engine_stats, wait_limit_s) / sizeof(uint64_t) };
    engine_stats own;
    slot_stats(r->slot[0], out);
    for (int i = 1; i < r->n; i++) {
        slot_stats(r->slot[i], &own);
        for (int k = 0; k < N; k++)
            ((uint64_t *)out)[k] += ((const uint64_t *)&own)[k];
        if (own.wait_limit_s > out->wait_limit_s) out->wait_limit_s = own.wait_limit_s;
    }
}
