/* KV cache: which page of device memory, or of a second tier in host memory, holds the keys and
 * values of which tokens.
 *
 * Bookkeeping alone, on the host: it never touches keys and values (model/kv_store.h).  A page has
 * KV_PAGE consecutive tokens of a sequence.  A page is found by a chained hash, of everything
 * before it in its sequence and of its first token, and then verified: the page before it must be
 * the very one that was found before, and its tokens are compared one by one.  So a prefix is
 * reused as far as it is really equal, never because of an id, a length or a hash.  A token is
 * everything that its rows in all layers depend on (kv_token): rows that a newer event would change
 * differ in it.
 *
 * A lease holds the pages of a sequence while a batch runs: those to read, and those where new rows
 * go.  Leases of one batch may share pages that are read; what a batch writes can be read by the
 * next one.  The last page of a sequence is partly filled, and is filled up in place if no other
 * sequence uses it.
 *
 * Pages that no lease holds and that no longer sequence continues on the device can be evicted: the
 * one whose priority is lowest, GreedyDual: the clock at its last use plus the cost of computing it
 * again, where the clock is the priority of the last evicted page.  Costs grow with the place in
 * the sequence, as attention does.
 *
 * With host pages, an evicted page moves there where that can pay.  The first pages of a sequence
 * are on the device and the others on the host; when the sequence comes again, the others are
 * loaded or computed, whichever is predicted to be faster (kv_costs).  A loaded page keeps its
 * copy on the host until the room is needed, so it leaves the device again without a copy.  The
 * host's own room goes to copies of device pages last and to the pages of highest priority first.
 * The caller copies what kv_cache_moves lists, before its batch runs.
 *
 * Sequences of one batch are held before the first of them is leased, so that none evicts pages of
 * another.  One thread at a time, but for kv_cache_probe, by which others find the pages of a
 * sequence beforehand. */
#pragma once

#include "ops/ops.h"
#include "serve/engine/engine.h"

enum { KV_PAGE = 64 };

/* What was encoded as a token of a sequence: equal prefixes of these have equal rows. */
typedef struct kv_token {
    uint64_t what;   /* the kind of the token, and its item, action or contextual value */
    int64_t time;    /* as a key; 0 where the model reads no times */
    int64_t seen_at; /* as a query: the time of the next event */
} kv_token;

typedef struct kv_cache kv_cache;

/* Seconds of what a request may do: with layers loaded one after the other beside the computation,
 * n_stages is their number; 1: nothing overlaps. */
typedef struct kv_costs {
    double token_s, pair_s; /* to compute a token, and for each key before it */
    double load_s, page_s;  /* to load anything at all, and each page */
    int n_stages;
} kv_costs;

typedef struct kv_cache_config {
    int32_t n_pages;
    int32_t n_host_pages;         /* 0: there is no second tier */
    double cost_token, cost_pair; /* of computing a token, and of each key before it; not both 0 */
    size_t token_bytes; /* 8: tokens are the `what` of kv_token alone, where a model reads no times;
                           0: they are kv_token */
    uint64_t hash_mask; /* bits of the hash that count; 0: all.  Tests use few, so that hashes
                           collide */
} kv_cache_config;

status kv_cache_create(kv_cache **out, const kv_cache_config *c);
void kv_cache_destroy(kv_cache *c); /* NULL is fine */

/* Sets the costs by which pages are loaded or computed again; before, everything is loaded. */
void kv_cache_set_costs(kv_cache *c, const kv_costs *costs);

/* The predicted seconds of a request of n tokens whose first n_reused are there and those up to
 * n_loaded are loaded. */
double kv_costs_predict(const kv_costs *k, int32_t n, int32_t n_reused, int32_t n_loaded);

/* The length from which on loading a whole sequence is predicted to be faster than computing it;
 * -1: none up to 2^24 tokens. */
int32_t kv_costs_break_even(const kv_costs *k);

typedef struct kv_lease {
    int32_t n_reused; /* tokens whose keys and values are there, or loaded before the batch */
    int32_t n_loaded; /* of these, tokens that are loaded */
    int32_t n_stored; /* tokens after the batch, which writes rows n_reused .. n_stored - 1 */
    int32_t n_pages;  /* of the table: those of the first n_stored tokens */
    int32_t *page;    /* the caller's, with room for all tokens of the sequence */
} kv_lease;

/* A page that was found, and which of its contents. */
typedef struct kv_found {
    int32_t node;
    uint32_t generation;
} kv_found;

/* The pages of a sequence that were found so far: those that still are what they were need not be
 * looked for and compared again. */
typedef struct kv_path {
    kv_found *page;       /* the caller's, with room for all tokens of the sequence */
    int32_t n_whole;      /* of them, all of whose tokens are equal */
    int32_t n_held;       /* by kv_cache_hold */
    uint64_t n_forgotten; /* calls of kv_cache_forget so far: earlier holds are void */
} kv_path;

/* Finds the first whole pages of a sequence of n tokens.  Any number of threads may call this at
 * the same time, but none while another function changes the cache. */
void kv_cache_probe(const kv_cache *c, const void *tokens, int32_t n, kv_path *path);

/* Keeps the pages of a sequence in the cache until kv_cache_let_go, those of the path and what is
 * found after them; at most max_reused tokens. */
void kv_cache_hold(kv_cache *c, const void *tokens, int32_t max_reused, kv_path *path);
void kv_cache_let_go(kv_cache *c, kv_path *path);

/* Leases pages for a sequence of n tokens (n, token_bytes), of which at most max_reused may be
 * reused (the rest must be computed, for its result).  Never fails: without free pages nothing more
 * is stored.  path: what is known of the sequence, or NULL. */
void kv_cache_take(kv_cache *c, const void *tokens, int32_t n, int32_t max_reused,
                   const kv_path *path, kv_lease *lease);

/* Ends a lease.  is_written: the new rows are in the pages; else they are forgotten. */
void kv_cache_give(kv_cache *c, const kv_lease *lease, bool is_written);

/* Pages to copy before the batch of the leases runs: first all that leave the device, then all that
 * come to it, each in order.  A page number is that of its tier. */
typedef struct kv_moves {
    const kv_move *out, *in;
    int32_t n_out, n_in;
} kv_moves;
kv_moves kv_cache_moves(const kv_cache *c);
/* Call when they are copied, */
void kv_cache_moved(kv_cache *c);
/* or when they could not be: forgets every page.  No lease may be left. */
void kv_cache_forget(kv_cache *c);

/* Starts the next batch: what age counts. */
void kv_cache_tick(kv_cache *c);

typedef struct kv_cache_counts {
    int32_t n_pages, n_free, n_pinned;
    int32_t n_host_pages, n_host_free;
    uint64_t n_evicted;        /* from the device */
    uint64_t n_host_evicted;   /* from the host */
    uint64_t n_out, n_in;      /* copied to the host, and from there */
    uint64_t n_computed_again; /* pages on the host that were computed, as that was faster */
} kv_cache_counts;
kv_cache_counts kv_cache_count(const kv_cache *c);

/* A page of the device or, numbered after those, of the host; as GET /v1/cache shows it. */
engine_page kv_cache_view(const kv_cache *c, int32_t page);
