#include "serve/kv_cache.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { NONE = -1 };

typedef struct page {
    uint64_t key;     /* the chained hash before the page, and the first token */
    int32_t parent;   /* the page before it; NONE: it is the first of its sequence */
    int32_t first;    /* place of its first token */
    int32_t n_ready;  /* tokens that can be read */
    int32_t n_coming; /* tokens that a lease writes */
    int32_t n_children, n_pins;
    int32_t next;    /* in its bucket, or in the list of free pages */
    int32_t heap_at; /* NONE: it cannot be evicted */
    double priority;
    uint64_t used; /* the batch of its last use */
    bool is_free;
} page;

struct kv_cache {
    kv_cache_config config;
    page *pages;      /* (n_pages) */
    kv_token *tokens; /* (n_pages, KV_PAGE) */
    int32_t *bucket;  /* (n_buckets), a power of two */
    uint64_t n_buckets;
    int32_t free, n_free;
    int32_t *heap; /* (n_heap): pages that can be evicted, lowest priority first */
    int32_t n_heap;
    double clock;
    int32_t n_pinned;
    uint64_t now, n_evicted;
};

status kv_cache_create(kv_cache **out, const kv_cache_config *config) {
    kv_cache *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1));
    c->config = *config;
    size_t n = (size_t)config->n_pages;
    c->n_buckets = 16;
    while (c->n_buckets < 2 * n)
        c->n_buckets *= 2;
    status st = MEM_NEW(&c->pages, n);
    if (st == OK) st = MEM_NEW(&c->tokens, n * KV_PAGE);
    if (st == OK) st = MEM_NEW(&c->bucket, c->n_buckets);
    if (st == OK) st = MEM_NEW(&c->heap, n);
    if (st != OK) {
        kv_cache_destroy(c);
        return st;
    }
    for (uint64_t i = 0; i < c->n_buckets; i++)
        c->bucket[i] = NONE;
    c->free = NONE;
    for (int32_t i = config->n_pages - 1; i >= 0; i--) {
        c->pages[i] = (page){.next = c->free, .heap_at = NONE, .is_free = true};
        c->free = i;
    }
    c->n_free = config->n_pages;
    *out = c;
    return OK;
}

void kv_cache_destroy(kv_cache *c) {
    if (c == NULL) return;
    mem_free(c->pages);
    mem_free(c->tokens);
    mem_free(c->bucket);
    mem_free(c->heap);
    mem_free(c);
}

void kv_cache_tick(kv_cache *c) {
    c->now++;
}

/* The heap of pages that can be evicted. */

static void heap_put(kv_cache *c, int32_t at, int32_t number) {
    c->heap[at] = number;
    c->pages[number].heap_at = at;
}

static bool is_below(const kv_cache *c, int32_t a, int32_t b) {
    return c->pages[a].priority < c->pages[b].priority;
}

/* Puts a page where it belongs, from a place that is empty. */
static void heap_settle(kv_cache *c, int32_t at, int32_t number) {
    for (; at > 0 && is_below(c, number, c->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(c, at, c->heap[(at - 1) / 2]);
    for (int32_t child; (child = 2 * at + 1) < c->n_heap; at = child) {
        if (child + 1 < c->n_heap && is_below(c, c->heap[child + 1], c->heap[child])) child++;
        if (!is_below(c, c->heap[child], number)) break;
        heap_put(c, at, c->heap[child]);
    }
    heap_put(c, at, number);
}

static void heap_remove(kv_cache *c, int32_t number) {
    int32_t at = c->pages[number].heap_at, last = c->heap[--c->n_heap];
    c->pages[number].heap_at = NONE;
    if (last != number) heap_settle(c, at, last);
}

/* In or out of the heap, as its pins and children say. */
static void note_use(kv_cache *c, int32_t number) {
    page *p = &c->pages[number];
    bool can_go = !p->is_free && p->n_pins == 0 && p->n_children == 0;
    if (can_go && p->heap_at == NONE) heap_settle(c, c->n_heap++, number);
    if (!can_go && p->heap_at != NONE) heap_remove(c, number);
}

/* Pages by their keys. */

static int32_t *bucket_of(kv_cache *c, uint64_t key) {
    return &c->bucket[hash64_mix(key) & (c->n_buckets - 1)];
}

static uint64_t key_of(const kv_cache *c, uint64_t chain, const kv_token *first) {
    uint64_t key = hash64(first, sizeof *first, chain);
    return c->config.hash_mask != 0 ? key & c->config.hash_mask : key;
}

static void unlink_page(kv_cache *c, int32_t number) {
    int32_t *at = bucket_of(c, c->pages[number].key);
    while (*at != number)
        at = &c->pages[*at].next;
    *at = c->pages[number].next;
}

static void free_page(kv_cache *c, int32_t number) {
    page *p = &c->pages[number];
    int32_t parent = p->parent;
    unlink_page(c, number);
    p->is_free = true;
    note_use(c, number);
    p->next = c->free;
    c->free = number;
    c->n_free++;
    if (parent == NONE) return;
    c->pages[parent].n_children--;
    note_use(c, parent);
}

static bool evict(kv_cache *c) {
    if (c->n_heap == 0) return false;
    int32_t number = c->heap[0];
    c->clock = c->pages[number].priority;
    free_page(c, number);
    c->n_evicted++;
    return true;
}

/* The cost of a page's tokens, in units of the first page of a sequence, so that it is about 1. */
static double cost_of(const kv_cache *c, int32_t first) {
    double pairs = (double)first + KV_PAGE / 2, least = KV_PAGE / 2;
    double own = c->config.cost_token + pairs * c->config.cost_pair;
    double unit = c->config.cost_token + least * c->config.cost_pair;
    return unit > 0 ? own / unit : 1;
}

static void pin(kv_cache *c, int32_t number) {
    page *p = &c->pages[number];
    c->n_pinned += p->n_pins++ == 0;
    p->used = c->now;
    note_use(c, number); /* out of the heap before its priority changes */
    p->priority = c->clock + cost_of(c, p->first);
}

static void unpin(kv_cache *c, int32_t number) {
    c->n_pinned -= --c->pages[number].n_pins == 0;
    note_use(c, number);
}

/* How many of n tokens are the first ready ones of a page. */
static int32_t count_equal(const kv_cache *c, int32_t number, const kv_token *tokens, int32_t n) {
    const kv_token *own = c->tokens + (int64_t)number * KV_PAGE;
    int32_t most = c->pages[number].n_ready < n ? c->pages[number].n_ready : n, i = 0;
    while (i < most && memcmp(&own[i], &tokens[i], sizeof *own) == 0)
        i++;
    return i;
}

/* The page after `parent` that agrees with most of n tokens; *n_equal of them. */
static int32_t find(kv_cache *c, int32_t parent, uint64_t key, const kv_token *tokens, int32_t n,
                    int32_t *n_equal) {
    int32_t best = NONE;
    *n_equal = 0;
    for (int32_t i = *bucket_of(c, key); i != NONE; i = c->pages[i].next) {
        if (c->pages[i].key != key || c->pages[i].parent != parent) continue;
        int32_t equal = count_equal(c, i, tokens, n);
        if (equal <= *n_equal) continue;
        *n_equal = equal;
        best = i;
    }
    return best;
}

static uint64_t chain_after(const kv_token *tokens, uint64_t chain) {
    return hash64(tokens, KV_PAGE * sizeof *tokens, chain);
}

/* Whether a lease of this batch writes the same tokens to a page already, */
static bool is_coming_to(const kv_cache *c, int32_t number, const kv_token *tokens, int32_t n) {
    const kv_token *own = c->tokens + (int64_t)number * KV_PAGE;
    int32_t most = c->pages[number].n_coming < n ? c->pages[number].n_coming : n;
    return most > 0 && memcmp(own, tokens, (size_t)most * sizeof *tokens) == 0;
}

/* or to any page after `parent`. */
static bool is_coming(kv_cache *c, int32_t parent, uint64_t key, const kv_token *tokens,
                      int32_t n) {
    for (int32_t i = *bucket_of(c, key); i != NONE; i = c->pages[i].next)
        if (c->pages[i].key == key && c->pages[i].parent == parent && is_coming_to(c, i, tokens, n))
            return true;
    return false;
}

static void write_tokens(kv_cache *c, int32_t number, int32_t from, const kv_token *tokens,
                         int32_t n) {
    memcpy(c->tokens + (int64_t)number * KV_PAGE + from, tokens, (size_t)n * sizeof *tokens);
    c->pages[number].n_coming = from + n;
}

/* A new page after `parent`, pinned; NONE: there is none. */
static int32_t add_page(kv_cache *c, int32_t parent, int32_t first, uint64_t key) {
    if (c->n_free == 0 && !evict(c)) return NONE;
    int32_t number = c->free, *bucket = bucket_of(c, key);
    page *p = &c->pages[number];
    c->free = p->next;
    c->n_free--;
    *p = (page){.key = key, .parent = parent, .first = first, .next = *bucket, .heap_at = NONE};
    *bucket = number;
    pin(c, number);
    if (parent != NONE) {
        c->pages[parent].n_children++;
        note_use(c, parent);
    }
    return number;
}

/* Fills up the last page where this lease alone uses it. */
static bool fill_last(kv_cache *c, const kv_token *tokens, int32_t n, kv_lease *lease) {
    int32_t last = lease->page[lease->n_pages - 1], from = lease->n_reused % KV_PAGE;
    int32_t room = KV_PAGE - from, left = n - lease->n_reused, count = left < room ? left : room;
    page *p = &c->pages[last];
    if (p->n_pins > 1 || p->n_children > 0 || p->n_coming > 0) return false;
    p->n_ready = from;
    write_tokens(c, last, from, tokens + lease->n_reused, count);
    lease->n_stored += count;
    return true;
}

/* Pages for the rest of the sequence, as far as there are any. */
static void add_rest(kv_cache *c, const kv_token *tokens, int32_t n, uint64_t chain,
                     kv_lease *lease) {
    while (lease->n_stored < n) {
        int32_t at = lease->n_stored, count = n - at < KV_PAGE ? n - at : KV_PAGE;
        int32_t parent = lease->n_pages > 0 ? lease->page[lease->n_pages - 1] : NONE;
        uint64_t key = key_of(c, chain, &tokens[at]);
        if (is_coming(c, parent, key, tokens + at, count)) return;
        int32_t number = add_page(c, parent, at, key);
        if (number == NONE) return;
        write_tokens(c, number, 0, tokens + at, count);
        lease->page[lease->n_pages++] = number;
        lease->n_stored += count;
        if (count == KV_PAGE) chain = chain_after(tokens + at, chain);
    }
}

/* The last page found may belong to a sequence that goes on differently after the first few tokens.
 * Where this sequence still has more tokens to store than it would reuse there, it does not reuse
 * them and starts a page of its own.  So sequences with the same beginning, contextual tokens say,
 * do not keep each other out of the cache. */
static void leave_last(kv_cache *c, const kv_token *tokens, int32_t n, kv_lease *lease) {
    int32_t equal = lease->n_reused % KV_PAGE, first = lease->n_reused - equal;
    int32_t count = n - first < KV_PAGE ? n - first : KV_PAGE;
    if (n - lease->n_reused <= equal) return;
    if (is_coming_to(c, lease->page[lease->n_pages - 1], tokens + first, count)) return;
    lease->n_reused = lease->n_stored = lease->n_reused - equal;
    unpin(c, lease->page[--lease->n_pages]);
}

void kv_cache_take(kv_cache *c, const kv_token *tokens, int32_t n, int32_t max_reused,
                   kv_lease *lease) {
    uint64_t chain = 0;
    int32_t parent = NONE, equal = KV_PAGE;
    lease->n_reused = lease->n_pages = 0;
    while (equal == KV_PAGE && lease->n_reused < max_reused) {
        const kv_token *at = tokens + lease->n_reused;
        int32_t left = max_reused - lease->n_reused, most = left < KV_PAGE ? left : KV_PAGE;
        parent = find(c, parent, key_of(c, chain, at), at, most, &equal);
        if (parent == NONE) break;
        pin(c, parent);
        lease->page[lease->n_pages++] = parent;
        lease->n_reused += equal;
        if (equal == KV_PAGE) chain = chain_after(at, chain);
    }
    lease->n_stored = lease->n_reused;
    if (lease->n_reused == n) return;
    if (lease->n_reused % KV_PAGE != 0) {
        if (!fill_last(c, tokens, n, lease)) leave_last(c, tokens, n, lease);
        if (lease->n_stored % KV_PAGE == 0 && lease->n_stored > lease->n_reused)
            chain = chain_after(tokens + lease->n_stored - KV_PAGE, chain);
        if (lease->n_stored % KV_PAGE != 0) return;
    }
    add_rest(c, tokens, n, chain, lease);
}

/* From the last page to the first, so that a page that is freed has no children. */
void kv_cache_give(kv_cache *c, const kv_lease *lease, bool is_written) {
    int32_t first_new = lease->n_reused / KV_PAGE;
    for (int32_t i = lease->n_pages - 1; i >= 0; i--) {
        page *p = &c->pages[lease->page[i]];
        bool is_own = i >= first_new && lease->n_stored > lease->n_reused;
        if (is_own) {
            if (is_written) p->n_ready = p->n_coming;
            p->n_coming = 0;
        }
        unpin(c, lease->page[i]);
        if (is_own && p->n_ready == 0) free_page(c, lease->page[i]);
    }
}

kv_cache_counts kv_cache_count(const kv_cache *c) {
    return (kv_cache_counts){c->config.n_pages, c->n_free, c->n_pinned, c->n_evicted};
}

kv_page_view kv_cache_view(const kv_cache *c, int32_t number) {
    const page *p = &c->pages[number];
    if (p->is_free) return (kv_page_view){0};
    return (kv_page_view){.key = p->key | 1,
                          .first = p->first,
                          .n_tokens = p->n_ready,
                          .age = c->now - p->used,
                          .is_pinned = p->n_pins > 0};
}

static bool is_linked(const kv_cache *c, int32_t number) {
    int32_t i = c->bucket[hash64_mix(c->pages[number].key) & (c->n_buckets - 1)];
    while (i != NONE && i != number)
        i = c->pages[i].next;
    return i == number;
}

bool kv_cache_is_sound(const kv_cache *c) {
    int32_t n_free = 0, n_heap = 0, n = c->config.n_pages;
    for (int32_t i = 0; i < n; i++) {
        const page *p = &c->pages[i];
        int32_t n_children = 0;
        n_free += p->is_free;
        if (p->is_free) {
            if (p->heap_at != NONE) return false;
            continue;
        }
        for (int32_t k = 0; k < n; k++)
            n_children += !c->pages[k].is_free && c->pages[k].parent == i;
        bool can_go = p->n_pins == 0 && n_children == 0;
        n_heap += can_go;
        if (n_children != p->n_children || can_go != (p->heap_at != NONE) || !is_linked(c, i))
            return false;
        if (can_go && c->heap[p->heap_at] != i) return false;
        if (can_go && p->heap_at > 0 && is_below(c, i, c->heap[(p->heap_at - 1) / 2])) return false;
        if (n_children > 0 && p->n_ready < KV_PAGE && p->n_coming < KV_PAGE) return false;
        if (p->n_pins == 0 && (p->n_ready == 0 || p->n_coming > 0)) return false;
        if (p->parent != NONE && c->pages[p->parent].first + KV_PAGE != p->first) return false;
    }
    return n_free == c->n_free && n_heap == c->n_heap;
}
