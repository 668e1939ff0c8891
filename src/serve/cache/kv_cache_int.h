/* Inside the KV cache: its nodes and their lists, for kv_cache.c and for tests that check them. */
#pragma once

#include "serve/cache/kv_cache.h"

enum { KV_NONE = -1 };

/* Some of the numbers 0 .. n - 1, each with a key, the lowest key first. */
typedef struct kv_heap {
    int32_t *item;  /* (n): a binary heap */
    int32_t *place; /* by number: where it is in `item`; -1: it is not there */
    double *key;    /* by number */
    int32_t n;
} kv_heap;

static inline bool kv_heap_has(const kv_heap *h, int32_t number) {
    return h->place[number] >= 0;
}

/* A page, wherever its keys and values are. */
typedef struct kv_node {
    uint64_t key;       /* the chained hash before the page, and the first token */
    uint64_t chain;     /* the chained hash after the page, where has_chain */
    int32_t parent;     /* the page before it; KV_NONE: it is the first of its sequence */
    int32_t first;      /* place of its first token */
    int32_t device;     /* its page on the device; KV_NONE: it has none */
    int32_t host;       /* its page on the host; KV_NONE: it has none */
    int32_t n_ready;    /* tokens that can be read on the device */
    int32_t n_coming;   /* tokens that a lease writes */
    int32_t n_host;     /* tokens that can be read on the host */
    int32_t child;      /* the page that was added after it last, whatever became of it; KV_NONE */
    int32_t n_children; /* pages after it */
    int32_t n_resident; /* children that are on the device */
    int32_t n_pins;
    int32_t n_held;      /* by kv_cache_hold */
    uint32_t generation; /* grows with each change of tokens that could be read */
    int32_t next;        /* in its bucket, or in the list of free nodes */
    double priority;
    uint64_t used; /* the batch of its last use */
    bool is_free, has_chain;
} kv_node;

/* The free pages of a tier. */
typedef struct kv_free_list {
    int32_t *page; /* (n) */
    int32_t n;
} kv_free_list;

struct kv_cache {
    kv_cache_config config;
    kv_costs costs;
    int32_t n_nodes;
    kv_node *nodes;  /* (n_nodes) */
    char *tokens;    /* (n_nodes, KV_PAGE, token_bytes) */
    int32_t *bucket; /* (n_buckets), a power of two */
    uint64_t n_buckets;
    int32_t free;                /* the first free node */
    int32_t *owner, *host_owner; /* by page of the tier: its node */
    kv_free_list free_pages, free_host;
    kv_heap leaves;    /* nodes that can leave the device */
    kv_heap idle;      /* nodes that can leave the host; copies of device pages first */
    kv_move *out, *in; /* (n_pages) */
    double clock;
    uint64_t now, n_forgotten;
    kv_cache_counts counts;
    int32_t n_moves_out, n_moves_in; /* that are listed */
};

static inline int32_t *kv_bucket_of(const kv_cache *c, uint64_t key) {
    return &c->bucket[hash64_mix(key) & (c->n_buckets - 1)];
}

/* Whether the device has all that the host has of a page. */
static inline bool kv_is_host_copy(const kv_node *p) {
    return p->device != KV_NONE && p->n_ready >= p->n_host;
}
