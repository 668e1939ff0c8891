/* KV store: memory of the backend for the keys and values of earlier tokens, in pages of
 * KV_PAGE_LEN tokens, for all layers of a model:
 *
 *     [layer][page][K | V][token][head][dim]
 *
 * and, as a second tier, page-locked host memory with the same layout and its own number of pages.
 * Pages move between the tiers layer by layer while a pass runs, each layer's before it is
 * computed.
 *
 * In 8 bits (op kv_fp8) a page has a quarter of the bytes of float32, half of those of bfloat16; a
 * pass then works on a copy of its pages in the type of the activations, of one layer at a time.
 *
 * Which tokens are in which page is the business of its user (serve/cache/kv_cache.h); a pass reads
 * and writes it (pass_encode_cached, pass_score_cached).  One thread at a time. */
#pragma once

#include "model/model.h"
#include "nn/batch_layout.h"
#include "nn/memory.h"
#include "nn/sequences.h"

enum { KV_PAGE_LEN = 64 };

typedef struct kv_store_config {
    int32_t n_pages, n_host_pages;
    bool is_fp8;
    int32_t max_users, max_len; /* is_fp8: sequences of a batch, and tokens of one, at most */
} kv_store_config;

typedef struct kv_store {
    nn_memory memory;
    int32_t n_pages, n_host_pages, n_layers;
    int32_t n_heads, dim_qk, dim_v;
    int64_t page_bytes; /* of one layer */
    char *data, *host;
    kv_move_args moves; /* of the next pass */
    /* is_fp8: */
    bool is_fp8;
    char *wide;                /* (n_wide) pages of activations */
    staged_i32 used;           /* (n_wide): the pages of the batch */
    int32_t n_used, n_written; /* those that it writes come first */
    int32_t *place;            /* (n_pages): where a page is among these; -1: it is not */
    int32_t *table, max_pages; /* (max_users, max_pages) */
    const int32_t **rows;      /* (max_users): of the table */
} kv_store;

/* Why no token's rows could be reused with this model, as a sentence; NULL: they can.  A row may be
 * reused only if nothing that comes later changes it. */
const char *kv_store_check(const model *m);

/* Whether rows depend on the times of events. */
bool kv_store_reads_times(const model *m);

/* Bytes of one page, of all layers. */
uint64_t kv_store_page_bytes(const model *m, bool is_fp8);

status kv_store_init(kv_store *s, model *m, const kv_store_config *c);
void kv_store_fini(kv_store *s); /* a failed init too, or {0} */

/* Pages that the next pass copies between the tiers; the lists must stay until it is done. */
void kv_store_set_moves(kv_store *s, const kv_move *out, int32_t n_out, const kv_move *in,
                        int32_t n_in);

/* Whether the next pass can be recorded (ops.h): one that waits for copies cannot, nor can one
 * whose number of pages is part of its ops, as in 8 bits. */
bool kv_store_can_record(const kv_store *s);

/* Copies pages of all layers, and waits: to learn how long it takes. */
status kv_store_move_all(kv_store *s, const kv_move *in, int32_t n_in);

/* Of a pass, in this order.  begin replaces the cache of its batch where the pages that layers read
 * are copies; begin_layer sets the pages of a layer. */
status kv_store_begin(kv_store *s, int32_t n_users, const layout_cache *cache, layout_cache *own);
status kv_store_begin_layer(kv_store *s, int index, kv_batch *out);
status kv_store_end_layer(kv_store *s, int index);
