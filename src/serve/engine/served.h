/* Served: a model that is loaded for serving, with everything that depends on it: its backend and
 * threads, its names for items, a pass, the catalogue, its KV cache.
 *
 * Opened by one thread; then one worker thread computes with it, while any thread may look up items
 * and hold references: the last one frees it. */
#pragma once

#include <stdatomic.h>

#include "model/infer.h"
#include "model/trained.h"
#include "serve/cache/kv_cache.h"
#include "serve/engine/tensor_group.h"
#include "serve/state/users.h"

/* How much later than the threads that talk to clients those that compute may run (thread_lower).
 */
enum { SERVED_NICE = 5 };

typedef struct served {
    atomic_int refs;
    uint64_t version;
    char version_text[24];
    char path[4096];
    struct {
        pool *workers;
        backend *be;
    } compute;
    tensor_part tensor; /* with ranks that share the layers */
    trained trained;
    /* The content of an engine folder is checked by a thread of its own while the model opens. */
    pthread_t checker;
    pthread_mutex_t check_lock; /* of is_checking: several threads may wait for the checker */
    bool is_checking;
    atomic_bool is_at_end; /* of that thread */
    failure check;         /* its result, once that thread is joined */
    session *s;
    const seq_file *names; /* ids and titles of its items */
    int64_t first_id;      /* of the items, where their ids are numbers without gaps, */
    uint64_t n_dense;      /* and how many they are; 0: they are not */
    bool is_ranking;
    int32_t max_batch, max_tokens;
    vocabulary_map map; /* from the numbers of the data's items and values, where there are data */
    /* Under the lock of the users: items that the data does not have. */
    uint32_t *extra; /* (n_extra): the model's number, 0: unknown */
    size_t n_extra, extra_capacity;
    popular_item *popular; /* (n_popular), most events first */
    size_t n_popular;
    uint64_t popular_change, popular_ns; /* when it was made */
    /* Of the worker. */
    arena scratch; /* of a batch */
    infer infer;
    kv_cache *cache;       /* NULL: nothing is kept */
    kv_cache_counts noted; /* as the slot last counted it */
    /* Whoever makes a job looks for its pages beforehand, where the worker does not change them. */
    pthread_rwlock_t cache_lock;
    kv_store store;
    bool reads_times;
    bool has_fp8_kv;
    double fp8_error;     /* of results, by keys and values in 8 bits: the largest, in units of the
                             largest     result */
    kv_costs costs;       /* by which pages of the host are loaded; page_s 0: they always are */
    char cache_note[128]; /* why there is none */
    double flops_token, flops_pair, flops_head; /* of a computed token, a (query, key) pair, a
                                                   request's search of the catalogue */
    double flop_s;                              /* seconds of a FLOP, of the first batch */
    double load_s;
} served;

/* Opens what is at the path as the config of an engine says, on all ranks of its group.  data: of
 * the users, or NULL.  One reference belongs to the caller.  ERR_CONFIG: the model does not fit the
 * data, and why. */
status served_open(served **out, const engine_config *c, const char *path, const seq_file *data);
void served_keep(served *m);
/* Waits until the content of an engine folder is checked; on the worker's thread, before anything
 * that the model computed leaves it. */
status served_checked(served *m);
bool served_is_checked(served *m); /* it would not wait */
void served_drop(served *m);       /* NULL is fine */

/* Of a token of its cache (kv_cache.h). */
static inline size_t served_token_bytes(const served *m) {
    return m->reads_times ? sizeof(kv_token) : sizeof(uint64_t);
}

/* The model's number of an item id; 0: it does not know it.  ERR_USAGE as id_text_make. */
status served_find_id(const served *m, const engine_id *id, const char *what, uint32_t *out);

/* The same for many ids: most catalogues are numbers without gaps, which need no search, and no
 * look at memory that is not in the cache. */
static inline status served_find_near(const served *m, const engine_id *id, const char *what,
                                      uint32_t *out) {
    uint64_t at = (uint64_t)id->number - (uint64_t)m->first_id;
    if (id->text != NULL || at >= m->n_dense) return served_find_id(m, id, what, out);
    *out = (uint32_t)(1 + at);
    return OK;
}

/* Of an item number of the users; under their lock. */
status served_know_items(served *m, const users *u);
uint32_t served_item(const served *m, const users *u, uint32_t item);

/* Exchanges the map of other data's items and values with *other; under the lock of the users,
 * whose data is exchanged, too. */
void served_set_map(served *m, vocabulary_map *other);

/* The items with the most events, known to the model, newest counts within a second; under the lock
 * of the users. */
status served_find_popular(served *m, const users *u);

/* Id and title of an item. */
engine_item served_item_names(const served *m, uint32_t item);

/* FLOPs of a history of so many tokens and its candidates, without a cache. */
double served_flops(const served *m, int32_t n_history, int32_t n_targets);

engine_work served_work(const served *m, const engine_shape *shape);

void served_info(const served *m, const char *name, engine_model_info *out);
