/* Whether a KV cache agrees with itself: for tests. */
#include "base/hash.h"
#include "serve/cache/kv_cache_int.h"

static bool is_linked(const kv_cache *c, int32_t number) {
    int32_t i = c->bucket[hash64_mix(c->nodes[number].key) & (c->n_buckets - 1)];
    while (i != KV_NONE && i != number)
        i = c->nodes[i].next;
    return i == number;
}

static bool are_places_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    bool has_device = p->device != KV_NONE, has_host = p->host != KV_NONE;
    if (!has_device && (!has_host || p->n_host == 0 || p->n_ready > 0 || p->n_coming > 0))
        return false;
    if (has_device && c->owner[p->device] != number) return false;
    if (has_host && c->host_owner[p->host] != number) return false;
    if (!has_host && p->n_host > 0) return false;
    bool is_idle = p->n_pins == 0 && p->n_held == 0;
    bool can_leave = has_device && is_idle && p->n_resident == 0;
    bool can_drop = has_host && is_idle && (kv_is_copy(p) || p->n_children == 0);
    return can_leave == kv_heap_has(&c->leaves, number) &&
           can_drop == kv_heap_has(&c->idle, number);
}

static bool are_children_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    int32_t n_children = 0, n_resident = 0;
    for (int32_t k = 0; k < c->n_nodes; k++) {
        if (c->nodes[k].is_free || c->nodes[k].parent != number) continue;
        n_children++;
        n_resident += c->nodes[k].device != KV_NONE;
    }
    if (n_children != p->n_children || n_resident != p->n_resident) return false;
    if (n_resident > 0 && p->device == KV_NONE) return false;
    if (n_children == 0) return true;
    return p->n_ready == KV_PAGE || p->n_coming == KV_PAGE || p->n_host == KV_PAGE;
}

static bool is_node_right(const kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    if (!is_linked(c, number)) return false;
    if (!are_places_right(c, number) || !are_children_right(c, number)) return false;
    if (p->n_pins == 0 && p->n_coming > 0) return false;
    if (p->n_pins == 0 && p->device != KV_NONE && p->n_ready == 0) return false;
    return p->parent == KV_NONE || c->nodes[p->parent].first + KV_PAGE == p->first;
}

bool kv_cache_is_sound(const kv_cache *c) {
    int32_t n_device = 0, n_host = 0;
    for (int32_t i = 0; i < c->n_nodes; i++) {
        const kv_node *p = &c->nodes[i];
        if (p->is_free) {
            if (kv_heap_has(&c->leaves, i) || kv_heap_has(&c->idle, i)) return false;
            continue;
        }
        if (!is_node_right(c, i)) return false;
        n_device += p->device != KV_NONE;
        n_host += p->host != KV_NONE;
    }
    return n_device + c->free_pages.n == c->config.n_pages &&
           n_host + c->free_host.n == c->config.n_host_pages && kv_heap_is_sound(&c->leaves) &&
           kv_heap_is_sound(&c->idle);
}
