/* The pages of both tiers: who has them, who leaves first, what is copied. */
#include <math.h>

#include "base/hash.h"
#include "serve/cache/kv_cache_int.h"

int32_t *kv_bucket_of(const kv_cache *c, uint64_t key) {
    return &c->bucket[hash64_mix(key) & (c->n_buckets - 1)];
}

bool kv_is_copy(const kv_node *p) {
    return p->device != KV_NONE && p->n_ready >= p->n_host;
}

/* Copies of device pages leave the host first: nothing is lost with them. */
void kv_note_use(kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    bool is_idle = !p->is_free && p->n_pins == 0 && p->n_held == 0, is_copy = kv_is_copy(p);
    bool can_leave = is_idle && p->device != KV_NONE && p->n_resident == 0;
    bool can_drop = is_idle && p->host != KV_NONE && (is_copy || p->n_children == 0);
    kv_heap_set(&c->leaves, number, can_leave, p->priority);
    kv_heap_set(&c->idle, number, can_drop, is_copy ? -INFINITY : p->priority);
}

static void drop_host(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    c->host_owner[p->host] = KV_NONE;
    c->free_host.page[c->free_host.n++] = p->host;
    p->host = KV_NONE;
    p->n_host = 0;
    kv_note_use(c, number);
}

void kv_detach(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    c->owner[p->device] = KV_NONE;
    c->free_pages.page[c->free_pages.n++] = p->device;
    p->device = KV_NONE;
    p->n_ready = 0;
    kv_note_use(c, number);
    if (p->parent == KV_NONE) return;
    c->nodes[p->parent].n_resident--;
    kv_note_use(c, p->parent);
}

static void unlink_node(kv_cache *c, int32_t number) {
    int32_t *at = kv_bucket_of(c, c->nodes[number].key);
    while (*at != number)
        at = &c->nodes[*at].next;
    *at = c->nodes[number].next;
}

void kv_free_node(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    if (p->device != KV_NONE) kv_detach(c, number);
    if (p->host != KV_NONE) drop_host(c, number);
    unlink_node(c, number);
    p->is_free = true;
    kv_note_use(c, number);
    p->next = c->free;
    c->free = number;
    if (p->parent == KV_NONE) return;
    c->nodes[p->parent].n_children--;
    kv_note_use(c, p->parent);
}

/* A page of the host for a node that has none, of the node that is worth least there. */
static bool take_host(kv_cache *c, int32_t number) {
    if (c->free_host.n == 0) {
        if (c->idle.n == 0) return false;
        int32_t last = c->idle.item[0];
        if (c->nodes[last].device != KV_NONE) {
            drop_host(c, last);
        } else {
            kv_free_node(c, last);
            c->counts.n_host_evicted++;
        }
    }
    int32_t page = c->free_host.page[--c->free_host.n];
    c->nodes[number].host = page;
    c->host_owner[page] = number;
    return true;
}

double kv_costs_predict(const kv_costs *k, int32_t n, int32_t n_reused, int32_t n_loaded) {
    double have = n_loaded, rest = n - have;
    double pages = ceil((n_loaded - n_reused) / (double)KV_PAGE);
    double load = pages > 0 ? k->load_s + pages * k->page_s : 0;
    double compute = rest * k->token_s + (n - have) * (n + have) / 2 * k->pair_s;
    /* A pipeline of two stages, cut into the layers. */
    return fmax(load, compute) + fmin(load, compute) / (k->n_stages > 1 ? k->n_stages : 1);
}

int32_t kv_costs_break_even(const kv_costs *k) {
    for (int32_t n = KV_PAGE; n <= 1 << 24; n += n < 1 << 14 ? KV_PAGE : n / 256)
        if (kv_costs_predict(k, n + 1, 0, n) < kv_costs_predict(k, n + 1, 0, 0)) return n;
    return -1;
}

bool kv_loads(const kv_cache *c, int32_t n, int32_t n_reused, int32_t n_loaded) {
    const kv_costs *k = &c->costs;
    if (k->n_stages == 0) return true; /* no costs are known */
    return kv_costs_predict(k, n, n_reused, n_loaded) < kv_costs_predict(k, n, n_reused, n_reused);
}

/* Keeps a page that leaves the device on the host, where that can pay: a sequence that is computed
 * faster than loaded would never be read there.  A page with others after it must stay in any
 * case. */
static bool keep_on_host(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    int32_t n = p->first + p->n_ready;
    if (c->config.n_host_pages == 0) return false;
    if (p->host != KV_NONE && p->n_host >= p->n_ready) return true;
    if (p->n_children == 0 && p->host == KV_NONE && !kv_loads(c, n + 1, 0, n)) return false;
    if (c->n_moves_out == c->config.n_pages) return p->host != KV_NONE;
    if (p->host == KV_NONE && !take_host(c, number)) return false;
    p = &c->nodes[number];
    p->n_host = p->n_ready;
    c->out[c->n_moves_out++] = (kv_move){p->device, p->host};
    c->counts.n_out++;
    return true;
}

bool kv_make_room(kv_cache *c) {
    if (c->free_pages.n > 0) return true;
    if (c->leaves.n == 0) return false;
    int32_t number = c->leaves.item[0];
    bool is_kept = keep_on_host(c, number);
    if (!is_kept && c->nodes[number].n_children > 0) return false;
    c->clock = c->nodes[number].priority;
    c->counts.n_evicted++;
    if (is_kept)
        kv_detach(c, number);
    else
        kv_free_node(c, number);
    return true;
}

void kv_attach(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    p->device = c->free_pages.page[--c->free_pages.n];
    c->owner[p->device] = number;
    if (p->parent != KV_NONE) {
        c->nodes[p->parent].n_resident++;
        kv_note_use(c, p->parent);
    }
    kv_note_use(c, number);
}
