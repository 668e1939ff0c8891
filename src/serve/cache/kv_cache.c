#include "serve/cache/kv_cache_int.h"

static status heap_init(kv_heap *h, int32_t n_numbers) {
    *h = (kv_heap){0};
    status st = MEM_NEW(&h->item, (size_t)n_numbers);
    if (st == OK) st = MEM_NEW(&h->place, (size_t)n_numbers);
    if (st == OK) st = MEM_NEW(&h->key, (size_t)n_numbers);
    for (int32_t i = 0; i < n_numbers && st == OK; i++)
        h->place[i] = -1;
    return st;
}

static void heap_fini(kv_heap *h) {
    MEM_FREE(h->item, h->place, h->key);
}

static void heap_put(kv_heap *h, int32_t at, int32_t number) {
    h->item[at] = number;
    h->place[number] = at;
}

static bool is_below(const kv_heap *h, int32_t a, int32_t b) {
    return h->key[a] < h->key[b];
}

/* Puts a number where it belongs, from a place that is empty. */
static void heap_settle(kv_heap *h, int32_t at, int32_t number) {
    for (; at > 0 && is_below(h, number, h->item[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(h, at, h->item[(at - 1) / 2]);
    for (int32_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && is_below(h, h->item[child + 1], h->item[child])) child++;
        if (!is_below(h, h->item[child], number)) break;
        heap_put(h, at, h->item[child]);
    }
    heap_put(h, at, number);
}

static void heap_take_out(kv_heap *h, int32_t number) {
    int32_t at = h->place[number], last = h->item[--h->n];
    h->place[number] = -1;
    if (last != number) heap_settle(h, at, last);
}

/* Puts a number in with this key, changes its key, or takes it out. */
static void heap_set(kv_heap *h, int32_t number, bool is_in, double key) {
    if (kv_heap_has(h, number)) {
        if (is_in && h->key[number] == key) return;
        heap_take_out(h, number);
    }
    if (!is_in) return;
    h->key[number] = key;
    heap_settle(h, h->n++, number);
}

/* Puts a node into the heaps or takes it out, as its pins, children and copies say.  Copies of
 * device pages leave the host first: nothing is lost with them. */
static void note_use(kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    bool is_idle = !p->is_free && p->n_pins == 0 && p->n_held == 0, is_copy = kv_is_host_copy(p);
    bool can_leave = is_idle && p->device != KV_NONE && p->n_resident == 0;
    bool can_drop = is_idle && p->host != KV_NONE && (is_copy || p->n_children == 0);
    heap_set(&c->leaves, number, can_leave, p->priority);
    heap_set(&c->idle, number, can_drop, is_copy ? -INFINITY : p->priority);
}

static void drop_host(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    c->host_owner[p->host] = KV_NONE;
    c->free_host.page[c->free_host.n++] = p->host;
    p->host = KV_NONE;
    p->n_host = 0;
    note_use(c, number);
}

/* Frees the page of a node on the device. */
static void detach(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    c->owner[p->device] = KV_NONE;
    c->free_pages.page[c->free_pages.n++] = p->device;
    p->device = KV_NONE;
    p->n_ready = 0;
    note_use(c, number);
    if (p->parent == KV_NONE) return;
    c->nodes[p->parent].n_resident--;
    note_use(c, p->parent);
}

static void unlink_node(kv_cache *c, int32_t number) {
    int32_t *at = kv_bucket_of(c, c->nodes[number].key);
    while (*at != number)
        at = &c->nodes[*at].next;
    *at = c->nodes[number].next;
}

/* Forgets a node without children. */
static void free_node(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    if (p->device != KV_NONE) detach(c, number);
    if (p->host != KV_NONE) drop_host(c, number);
    unlink_node(c, number);
    p->is_free = true;
    note_use(c, number);
    p->next = c->free;
    c->free = number;
    if (p->parent == KV_NONE) return;
    c->nodes[p->parent].n_children--;
    note_use(c, p->parent);
}

/* Gives a node a page of the host; where none is free, the node of least value there is evicted. */
static bool take_host(kv_cache *c, int32_t number) {
    if (c->free_host.n == 0) {
        if (c->idle.n == 0) return false;
        int32_t last = c->idle.item[0];
        if (c->nodes[last].device != KV_NONE) {
            drop_host(c, last);
        } else {
            free_node(c, last);
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

/* Whether n_loaded - n_reused tokens on the host are loaded rather than computed. */
static bool is_loading_faster(const kv_cache *c, int32_t n, int32_t n_reused, int32_t n_loaded) {
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
    if (p->n_children == 0 && p->host == KV_NONE && !is_loading_faster(c, n + 1, 0, n))
        return false;
    if (c->n_moves_out == c->config.n_pages) return p->host != KV_NONE;
    if (p->host == KV_NONE && !take_host(c, number)) return false;
    p = &c->nodes[number];
    p->n_host = p->n_ready;
    c->out[c->n_moves_out++] = (kv_move){p->device, p->host};
    c->counts.n_out++;
    return true;
}

/* Makes sure that a page of the device is free, by eviction; false: all are in use. */
static bool make_room(kv_cache *c) {
    if (c->free_pages.n > 0) return true;
    if (c->leaves.n == 0) return false;
    int32_t number = c->leaves.item[0];
    bool is_kept = keep_on_host(c, number);
    if (!is_kept && c->nodes[number].n_children > 0) return false;
    c->clock = c->nodes[number].priority;
    c->counts.n_evicted++;
    if (is_kept)
        detach(c, number);
    else
        free_node(c, number);
    return true;
}

/* Gives a node a free page of the device. */
static void attach(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    p->device = c->free_pages.page[--c->free_pages.n];
    c->owner[p->device] = number;
    if (p->parent != KV_NONE) {
        c->nodes[p->parent].n_resident++;
        note_use(c, p->parent);
    }
    note_use(c, number);
}

static void fill_list(kv_free_list *l, int32_t *owner, int32_t n) {
    l->n = 0;
    for (int32_t i = n - 1; i >= 0; i--) {
        l->page[l->n++] = i;
        owner[i] = KV_NONE;
    }
}

/* Frees every page and node. */
static void clear(kv_cache *c) {
    for (uint64_t i = 0; i < c->n_buckets; i++)
        c->bucket[i] = KV_NONE;
    c->free = KV_NONE;
    for (int32_t i = c->n_nodes - 1; i >= 0; i--) {
        c->nodes[i] = (kv_node){.next = c->free,
                                .device = KV_NONE,
                                .host = KV_NONE,
                                .is_free = true,
                                .generation = c->nodes[i].generation + 1};
        note_use(c, i);
        c->free = i;
    }
    fill_list(&c->free_pages, c->owner, c->config.n_pages);
    fill_list(&c->free_host, c->host_owner, c->config.n_host_pages);
    c->counts.n_pinned = 0;
    c->n_moves_out = c->n_moves_in = 0;
}

static status alloc(kv_cache *c) {
    size_t n = (size_t)c->config.n_pages, n_host = (size_t)c->config.n_host_pages;
    TRY(MEM_NEW(&c->nodes, n + n_host));
    TRY(MEM_NEW(&c->tokens, (n + n_host) * KV_PAGE * c->config.token_bytes));
    TRY(MEM_NEW(&c->bucket, c->n_buckets));
    TRY(MEM_NEW(&c->owner, n));
    TRY(MEM_NEW(&c->host_owner, n_host));
    TRY(MEM_NEW(&c->free_pages.page, n));
    TRY(MEM_NEW(&c->free_host.page, n_host));
    TRY(MEM_NEW(&c->out, n));
    TRY(MEM_NEW(&c->in, n));
    TRY(heap_init(&c->leaves, c->n_nodes));
    return heap_init(&c->idle, c->n_nodes);
}

status kv_cache_create(kv_cache **out, const kv_cache_config *config) {
    kv_cache *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1));
    c->config = *config;
    if (c->config.token_bytes == 0) c->config.token_bytes = sizeof(kv_token);
    c->n_nodes = config->n_pages + config->n_host_pages;
    c->n_buckets = 16;
    while (c->n_buckets < 2 * (uint64_t)c->n_nodes)
        c->n_buckets *= 2;
    status st = alloc(c);
    if (st == OK) clear(c);
    return CREATED(st, out, c, kv_cache_destroy);
}

void kv_cache_destroy(kv_cache *c) {
    if (c == NULL) return;
    heap_fini(&c->leaves);
    heap_fini(&c->idle);
    MEM_FREE(c->nodes, c->tokens, c->bucket, c->owner, c->host_owner, c->free_pages.page,
             c->free_host.page, c->out, c->in, c);
}

void kv_cache_set_costs(kv_cache *c, const kv_costs *costs) {
    c->costs = *costs;
}

void kv_cache_tick(kv_cache *c) {
    c->now++;
}

kv_moves kv_cache_moves(const kv_cache *c) {
    return (kv_moves){c->out, c->in, c->n_moves_out, c->n_moves_in};
}

void kv_cache_moved(kv_cache *c) {
    c->n_moves_out = c->n_moves_in = 0;
}

void kv_cache_forget(kv_cache *c) {
    clear(c);
    c->n_forgotten++;
}

/* The tokens from the i-th on. */
static const char *from_token(const kv_cache *c, const char *tokens, int32_t i) {
    return tokens + (size_t)i * c->config.token_bytes;
}

static uint64_t key_of(const kv_cache *c, uint64_t chain, const char *first) {
    uint64_t key = hash64(first, c->config.token_bytes, chain);
    return c->config.hash_mask != 0 ? key & c->config.hash_mask : key;
}

static uint64_t chain_after(const kv_cache *c, const char *tokens, uint64_t chain) {
    return hash64(tokens, KV_PAGE * c->config.token_bytes, chain);
}

/* The cost of one of a page's tokens, on average. */
static double cost_of(const kv_cache *c, int32_t first) {
    return c->config.cost_token + (first + KV_PAGE / 2) * c->config.cost_pair;
}

/* A page with others after it on the device and no copy on the host is in no heap, pinned or not:
 * most pages of a sequence are, and none of the heaps' memory is looked at for them. */
static void note_pin(kv_cache *c, int32_t number) {
    const kv_node *p = &c->nodes[number];
    if (p->n_resident == 0 || p->host != KV_NONE) note_use(c, number);
}

static void pin(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    c->counts.n_pinned += p->n_pins++ == 0;
    p->used = c->now;
    p->priority = c->clock + cost_of(c, p->first);
    note_pin(c, number);
}

static void unpin(kv_cache *c, int32_t number) {
    c->counts.n_pinned -= --c->nodes[number].n_pins == 0;
    note_pin(c, number);
}

static char *tokens_of(const kv_cache *c, int32_t number) {
    return c->tokens + (size_t)number * KV_PAGE * c->config.token_bytes;
}

/* The hash after a page all of whose tokens are there, made once for the sequences that read it. */
static uint64_t chain_of(kv_cache *c, int32_t number, uint64_t chain) {
    kv_node *p = &c->nodes[number];
    if (!p->has_chain) p->chain = chain_after(c, tokens_of(c, number), chain);
    p->has_chain = true;
    return p->chain;
}

/* Tokens of a page that can be read, where it is. */
static int32_t n_readable(const kv_node *p) {
    return p->device != KV_NONE ? p->n_ready : p->n_host;
}

static bool has_equal(const kv_cache *c, int32_t number, const char *tokens, int32_t n) {
    return memcmp(tokens_of(c, number), tokens, (size_t)n * c->config.token_bytes) == 0;
}

/* How many of n tokens are the first ones of a page. */
static int32_t count_equal(const kv_cache *c, int32_t number, const char *tokens, int32_t n) {
    const char *own = tokens_of(c, number);
    int32_t has = n_readable(&c->nodes[number]), most = has < n ? has : n, i = 0;
    if (has_equal(c, number, tokens, most)) return most; /* the usual case, and much faster */
    while (i < most &&
           memcmp(from_token(c, own, i), from_token(c, tokens, i), c->config.token_bytes) == 0)
        i++;
    return i;
}

/* The page after `parent` that agrees with most of n tokens; *n_equal of them. */
static int32_t find(const kv_cache *c, int32_t parent, uint64_t key, const char *tokens, int32_t n,
                    int32_t *n_equal) {
    int32_t best = KV_NONE;
    *n_equal = 0;
    for (int32_t i = *kv_bucket_of(c, key); i != KV_NONE; i = c->nodes[i].next) {
        if (c->nodes[i].key != key || c->nodes[i].parent != parent) continue;
        int32_t equal = count_equal(c, i, tokens, n);
        if (equal <= *n_equal) continue;
        *n_equal = equal;
        best = i;
    }
    return best;
}

/* The page that comes next is probably the one that was added last: its node and tokens are asked
 * for while the tokens of this one are compared. */
static void expect_child(const kv_cache *c, int32_t number) {
    int32_t child = c->nodes[number].child;
    if (child == KV_NONE) return;
    const char *tokens = tokens_of(c, child);
    __builtin_prefetch(&c->nodes[child]);
    __builtin_prefetch((const char *)&c->nodes[child] + 64);
    for (size_t i = 0; i < KV_PAGE * c->config.token_bytes; i += 64)
        __builtin_prefetch(tokens + i);
}

/* The page after `parent` all of whose tokens are equal, where it is the one that was added last:
 * found without its key.  KV_NONE: it is not. */
static int32_t find_child(const kv_cache *c, int32_t parent, const char *tokens) {
    int32_t child = parent != KV_NONE ? c->nodes[parent].child : KV_NONE;
    if (child == KV_NONE) return KV_NONE;
    const kv_node *p = &c->nodes[child];
    if (p->parent != parent || n_readable(p) < KV_PAGE) return KV_NONE; /* or it is free */
    expect_child(c, child);
    return has_equal(c, child, tokens, KV_PAGE) ? child : KV_NONE;
}

/* The page after `parent` that agrees with most of n tokens, of which chain is the hash before. */
static int32_t find_next(const kv_cache *c, int32_t parent, uint64_t chain, const char *tokens,
                         int32_t n, int32_t *n_equal) {
    int32_t child = n == KV_PAGE ? find_child(c, parent, tokens) : KV_NONE;
    *n_equal = KV_PAGE;
    return child != KV_NONE ? child : find(c, parent, key_of(c, chain, tokens), tokens, n, n_equal);
}

/* Whether a lease of this batch already writes these tokens to a page. */
static bool is_coming_to(const kv_cache *c, int32_t number, const char *tokens, int32_t n) {
    int32_t coming = c->nodes[number].n_coming, most = coming < n ? coming : n;
    return most > 0 && has_equal(c, number, tokens, most);
}

/* The same for any page after `parent`. */
static bool is_coming(kv_cache *c, int32_t parent, uint64_t key, const char *tokens, int32_t n) {
    for (int32_t i = *kv_bucket_of(c, key); i != KV_NONE; i = c->nodes[i].next)
        if (c->nodes[i].key == key && c->nodes[i].parent == parent && is_coming_to(c, i, tokens, n))
            return true;
    return false;
}

/* Writes tokens `from` .. from + n - 1 of a page's `tokens`.  What is written differs from the copy
 * on the host from there on. */
static void write_tokens(kv_cache *c, int32_t number, int32_t from, const char *tokens, int32_t n) {
    kv_node *p = &c->nodes[number];
    int32_t copied = p->n_host < from + n ? p->n_host : from + n;
    if (copied > from && !has_equal(c, number, tokens, copied)) p->n_host = from;
    memcpy(tokens_of(c, number) + (size_t)from * c->config.token_bytes, from_token(c, tokens, from),
           (size_t)n * c->config.token_bytes);
    p->n_coming = from + n;
    p->has_chain = false;
}

/* A new page after `parent`, pinned; KV_NONE: there is none. */
static int32_t add_page(kv_cache *c, int32_t parent, int32_t first, uint64_t key) {
    int32_t *bucket = kv_bucket_of(c, key);
    if (!make_room(c)) return KV_NONE; /* as every node has a page, one of them is free now */
    int32_t number = c->free;
    kv_node *p = &c->nodes[number];
    c->free = p->next;
    *p = (kv_node){.key = key,
                   .parent = parent,
                   .first = first,
                   .next = *bucket,
                   .device = KV_NONE,
                   .host = KV_NONE,
                   .child = KV_NONE,
                   .generation = p->generation + 1};
    *bucket = number;
    if (parent != KV_NONE) {
        c->nodes[parent].n_children++;
        c->nodes[parent].child = number;
    }
    pin(c, number);
    attach(c, number);
    return number;
}

/* The page of these tokens may be on the host, not loaded because computing is faster: it gets a
 * page on the device, too. */
static int32_t adopt_page(kv_cache *c, int32_t parent, uint64_t key, const char *tokens,
                          int32_t n) {
    int32_t i = *kv_bucket_of(c, key);
    for (; i != KV_NONE; i = c->nodes[i].next) {
        const kv_node *p = &c->nodes[i];
        int32_t most = p->n_host < n ? p->n_host : n;
        if (p->key == key && p->parent == parent && p->device == KV_NONE && most > 0 &&
            has_equal(c, i, tokens, most))
            break;
    }
    if (i == KV_NONE) return KV_NONE;
    pin(c, i); /* so that it stays on the host meanwhile */
    if (make_room(c)) {
        attach(c, i);
        return i;
    }
    unpin(c, i);
    return KV_NONE;
}

/* Fills up the last page where this lease alone uses it. */
static bool fill_last(kv_cache *c, const char *tokens, int32_t n, kv_lease *lease) {
    int32_t last = lease->page[lease->n_pages - 1], from = lease->n_reused % KV_PAGE;
    int32_t room = KV_PAGE - from, left = n - lease->n_reused, count = left < room ? left : room;
    kv_node *p = &c->nodes[last];
    if (p->n_pins > 1 || p->n_children > 0 || p->n_coming > 0) return false;
    p->generation += p->n_ready > from || p->n_host > from;
    p->n_ready = from;
    write_tokens(c, last, from, from_token(c, tokens, lease->n_reused - from), count);
    lease->n_stored += count;
    return true;
}

/* Pages for the rest of the sequence, as far as there are any. */
static void add_rest(kv_cache *c, const char *tokens, int32_t n, uint64_t chain, kv_lease *lease) {
    while (lease->n_stored < n) {
        int32_t at = lease->n_stored, count = n - at < KV_PAGE ? n - at : KV_PAGE;
        int32_t parent = lease->n_pages > 0 ? lease->page[lease->n_pages - 1] : KV_NONE;
        const char *own = from_token(c, tokens, at);
        uint64_t key = key_of(c, chain, own);
        if (is_coming(c, parent, key, own, count)) return;
        int32_t number = adopt_page(c, parent, key, own, count);
        if (number != KV_NONE)
            c->counts.n_computed_again++;
        else
            number = add_page(c, parent, at, key);
        if (number == KV_NONE) return;
        write_tokens(c, number, 0, own, count);
        lease->page[lease->n_pages++] = number;
        lease->n_stored += count;
        if (count == KV_PAGE) chain = chain_of(c, number, chain);
    }
}

/* The last page found may belong to a sequence that goes on differently after the first few tokens.
 * Where this sequence still has more tokens to store than it would reuse there, it does not reuse
 * them and starts a page of its own.  So sequences with the same beginning, such as contextual
 * tokens, do not keep each other out of the cache.  A page that is being loaded stays pinned, since
 * its copy on the host is still to be read. */
static void leave_last(kv_cache *c, const char *tokens, int32_t n, kv_lease *lease) {
    int32_t equal = lease->n_reused % KV_PAGE, first = lease->n_reused - equal;
    int32_t count = n - first < KV_PAGE ? n - first : KV_PAGE;
    if (n - lease->n_reused <= equal || lease->n_loaded > 0) return;
    const char *own = from_token(c, tokens, first);
    if (is_coming_to(c, lease->page[lease->n_pages - 1], own, count)) return;
    lease->n_reused = lease->n_stored = lease->n_reused - equal;
    unpin(c, lease->page[--lease->n_pages]);
}

/* Whether the i-th whole page of a path has the tokens that it had when it was found, and they can
 * be read, as those of a free one cannot; the pages before it were found to be so. */
static bool is_as_found(const kv_cache *c, const kv_path *path, int32_t i) {
    const kv_node *p = &c->nodes[path->page[i].node];
    return p->generation == path->page[i].generation && n_readable(p) == KV_PAGE;
}

void kv_cache_probe(const kv_cache *c, const void *tokens, int32_t n, kv_path *path) {
    uint64_t chain = 0;
    int32_t parent = KV_NONE, equal;
    path->n_whole = path->n_held = 0;
    for (int32_t i = 0; (i + 1) * KV_PAGE <= n; i++) {
        const char *at = from_token(c, tokens, i * KV_PAGE);
        parent = find_next(c, parent, chain, at, KV_PAGE, &equal);
        if (parent == KV_NONE || equal < KV_PAGE) return;
        const kv_node *p = &c->nodes[parent];
        path->page[path->n_whole++] = (kv_found){parent, p->generation};
        chain = p->has_chain ? p->chain : chain_after(c, at, chain);
    }
}

/* A walk over the pages of the longest prefix of a sequence that is in either tier. */
typedef struct walk {
    const char *tokens;
    int32_t max_reused;
    const kv_path *path; /* or NULL */
    int32_t n_pages, n_reused;
    uint64_t chain; /* the hash of the pages that are whole */
    int32_t page;   /* the last one */
} walk;

static walk begin_walk(const void *tokens, int32_t max_reused, const kv_path *path) {
    return (walk){.tokens = tokens, .max_reused = max_reused, .path = path, .page = KV_NONE};
}

/* The next page; false: there is none. */
static bool next_page(kv_cache *c, walk *w) {
    int32_t left = w->max_reused - w->n_reused, most = left < KV_PAGE ? left : KV_PAGE, equal;
    if (w->n_reused % KV_PAGE != 0 || left <= 0) return false;
    if (w->path != NULL && w->n_pages < w->path->n_whole && most == KV_PAGE &&
        is_as_found(c, w->path, w->n_pages)) {
        w->page = w->path->page[w->n_pages].node;
        equal = KV_PAGE;
    } else {
        const char *at = from_token(c, w->tokens, w->n_reused);
        w->path = NULL;
        w->page = find_next(c, w->page, w->chain, at, most, &equal);
        if (w->page == KV_NONE) return false;
    }
    if (equal == KV_PAGE) w->chain = chain_of(c, w->page, w->chain);
    w->n_pages++;
    w->n_reused += equal;
    return true;
}

void kv_cache_let_go(kv_cache *c, kv_path *path) {
    bool is_held = path->n_forgotten == c->n_forgotten;
    for (int32_t i = path->n_held - 1; i >= 0 && is_held; i--)
        if (--c->nodes[path->page[i].node].n_held == 0) note_pin(c, path->page[i].node);
    path->n_held = 0;
}

static void hold(kv_cache *c, int32_t number) {
    if (c->nodes[number].n_held++ == 0) note_pin(c, number);
}

void kv_cache_hold(kv_cache *c, const void *tokens, int32_t max_reused, kv_path *path) {
    walk w = begin_walk(tokens, max_reused, path);
    kv_cache_let_go(c, path);
    while (next_page(c, &w)) {
        path->page[w.n_pages - 1] = (kv_found){w.page, c->nodes[w.page].generation};
        hold(c, w.page);
    }
    path->n_forgotten = c->n_forgotten;
    path->n_held = w.n_pages;
    path->n_whole = w.n_reused / KV_PAGE;
}

/* Pins the pages of the longest prefix that is in either tier.  Returns the hash of those that are
 * whole. */
static uint64_t match(kv_cache *c, const char *tokens, int32_t max_reused, const kv_path *path,
                      kv_lease *lease) {
    walk w = begin_walk(tokens, max_reused, path);
    while (next_page(c, &w)) {
        pin(c, w.page);
        lease->page[lease->n_pages++] = w.page;
    }
    lease->n_reused = w.n_reused;
    return w.chain;
}

/* Reuses the first n_pages pages alone, which are whole. */
static void cut(kv_cache *c, kv_lease *lease, int32_t n_pages) {
    while (lease->n_pages > n_pages)
        unpin(c, lease->page[--lease->n_pages]);
    lease->n_reused = n_pages * KV_PAGE;
}

static bool load_page(kv_cache *c, int32_t number) {
    kv_node *p = &c->nodes[number];
    if (c->n_moves_in == c->config.n_pages || !make_room(c)) return false;
    attach(c, number);
    p->n_ready = p->n_host;
    c->in[c->n_moves_in++] = (kv_move){p->device, p->host};
    c->counts.n_in++;
    return true;
}

/* Pages on the host come to the device, or are left where they are. */
static void load(kv_cache *c, int32_t n, kv_lease *lease) {
    int32_t i = 0, n_pages = lease->n_pages;
    while (i < n_pages && c->nodes[lease->page[i]].device != KV_NONE)
        i++;
    if (i == n_pages) return;
    int32_t n_here = i * KV_PAGE;
    if (!is_loading_faster(c, n, n_here, lease->n_reused)) {
        cut(c, lease, i);
        return;
    }
    while (i < n_pages && load_page(c, lease->page[i]))
        i++;
    if (i < n_pages) cut(c, lease, i);
    lease->n_loaded = lease->n_reused - n_here;
}

/* The hash of the whole pages of n tokens, of which `chain` has the first ones, as many as `from`
 * has. */
static uint64_t chain_at(const kv_cache *c, const char *tokens, int32_t n, uint64_t chain,
                         int32_t from) {
    int32_t i = from / KV_PAGE * KV_PAGE;
    if (i > n) i = 0, chain = 0;
    for (; i + KV_PAGE <= n; i += KV_PAGE)
        chain = chain_after(c, from_token(c, tokens, i), chain);
    return chain;
}

/* Until the end the lease has numbers of nodes instead of pages. */
static void lease_nodes(kv_cache *c, const char *tokens, int32_t n, int32_t max_reused,
                        const kv_path *path, kv_lease *lease) {
    uint64_t chain = match(c, tokens, max_reused, path, lease);
    int32_t n_matched = lease->n_reused;
    load(c, n, lease);
    lease->n_stored = lease->n_reused;
    if (lease->n_reused == n) return;
    if (lease->n_reused % KV_PAGE != 0) {
        if (!fill_last(c, tokens, n, lease)) leave_last(c, tokens, n, lease);
        if (lease->n_stored % KV_PAGE != 0) return;
    }
    add_rest(c, tokens, n, chain_at(c, tokens, lease->n_stored, chain, n_matched), lease);
}

void kv_cache_take(kv_cache *c, const void *tokens, int32_t n, int32_t max_reused,
                   const kv_path *path, kv_lease *lease) {
    lease->n_reused = lease->n_loaded = lease->n_stored = lease->n_pages = 0;
    lease_nodes(c, tokens, n, max_reused, path, lease);
    for (int32_t i = 0; i < lease->n_pages; i++)
        lease->page[i] = c->nodes[lease->page[i]].device;
}

/* From the last page to the first, so that a page that is freed has no children. */
void kv_cache_give(kv_cache *c, const kv_lease *lease, bool is_written) {
    int32_t first_new = lease->n_reused / KV_PAGE;
    for (int32_t i = lease->n_pages - 1; i >= 0; i--) {
        int32_t number = c->owner[lease->page[i]];
        kv_node *p = &c->nodes[number];
        bool is_own = i >= first_new && lease->n_stored > lease->n_reused;
        if (is_own) {
            if (is_written) p->n_ready = p->n_coming;
            p->n_coming = 0;
        }
        unpin(c, number);
        if (!is_own || p->n_ready > 0) continue;
        if (p->n_host > 0)
            detach(c, number);
        else
            free_node(c, number);
    }
}

kv_cache_counts kv_cache_count(const kv_cache *c) {
    kv_cache_counts n = c->counts;
    n.n_pages = c->config.n_pages;
    n.n_free = c->free_pages.n;
    n.n_host_pages = c->config.n_host_pages;
    n.n_host_free = c->free_host.n;
    return n;
}

engine_page kv_cache_view(const kv_cache *c, int32_t page) {
    int32_t n = c->config.n_pages, number = page < n ? c->owner[page] : c->host_owner[page - n];
    engine_page out = {.page = page, .is_host = page >= n};
    if (number == KV_NONE) return out;
    const kv_node *p = &c->nodes[number];
    out.owner = p->key | 1;
    out.first = p->first;
    out.n_tokens = out.is_host ? p->n_host : p->n_ready;
    out.age = c->now - p->used;
    out.is_pinned = p->n_pins > 0;
    return out;
}
