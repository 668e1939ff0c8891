/* KV store: memory of the backend for the keys and values of earlier tokens, in pages of
 * KV_PAGE_LEN tokens, for all layers of a model:
 *
 *     [layer][page][K | V][token][head][dim]
 *
 * Which tokens are in which page is the business of its user (serve/kv_cache.h); a pass reads and
 * writes it (pass_encode_cached, pass_score_cached). */
#ifndef HSTU_MODEL_KV_STORE_H
#define HSTU_MODEL_KV_STORE_H

#include "model/model.h"
#include "nn/memory.h"
#include "nn/sequences.h"

enum { KV_PAGE_LEN = 64 };

typedef struct kv_store {
    nn_memory memory;
    int32_t n_pages;
    int64_t dim_k, dim_v; /* H D */
    char *data;
} kv_store;

/* Why no token's rows could be reused with this model, as a sentence; NULL: they can.  A row may be
 * reused only if nothing that comes later changes it. */
const char *kv_store_check(const model *m);

/* Whether rows depend on the times of events. */
bool kv_store_reads_times(const model *m);

/* Bytes of one page, of all layers. */
uint64_t kv_store_page_bytes(const model *m);

status kv_store_init(kv_store *s, model *m, int32_t n_pages);
void kv_store_fini(kv_store *s); /* a failed init too, or {0} */

/* Sets the pages of a layer. */
void kv_store_layer(const kv_store *s, int index, kv_batch *out);

#endif
