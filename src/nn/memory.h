/* Memory of a model or of a pass: backend and host blocks, all allocated at its creation and freed
 * with it.  So running allocates nothing, and destroying a half-made model is one call. */
#pragma once

#include "ops/ops.h"

/* A block of the backend. */
typedef struct nn_block {
    char *at;
    size_t bytes;
    bool is_act; /* activations: written before they are read in every batch */
} nn_block;

typedef struct nn_memory {
    backend *be;
    nn_block *device; /* (n_device) */
    size_t n_device, device_capacity;
    const struct nn_memory *lender; /* or NULL */
    size_t *lent;                   /* (n_device of the lender): bytes used of each block */
    void **host;                    /* (n_host) */
    size_t n_host, host_capacity;
    void **pinned; /* (n_pinned) */
    size_t n_pinned, pinned_capacity;
    uint64_t device_bytes;
} nn_memory;

void nn_memory_init(nn_memory *mem, backend *be);
void nn_memory_fini(nn_memory *mem);

/* From now on mem borrows activations from the lender where they fit; the lender must outlive mem
 * and allocate nothing more. */
status nn_memory_borrow(nn_memory *mem, const nn_memory *lender);

/* *out = n zeroed elements of `size` bytes, of the backend or of the host; n may be 0. */
status nn_new(nn_memory *mem, void **out, int64_t n, size_t size);
status nn_new_host(nn_memory *mem, void **out, int64_t n, size_t size);

/* *out = zeroed memory of the host that op `copy` reads (host_alloc). */
status nn_new_pinned(nn_memory *mem, void **out, size_t bytes);

/* *out = (rows, dim) activations, not zeroed where they are borrowed. */
status nn_new_act(nn_memory *mem, void **out, int64_t rows, int64_t dim);

/* Element `at` of activations. */
static inline void *nn_act_at(const backend *be, const void *acts, int64_t at) {
    return (char *)(uintptr_t)acts + at * (int64_t)act_bytes(be->act);
}

#define NN_NEW(mem, pointer, n)      nn_new((mem), (void **)(pointer), (n), sizeof **(pointer))
#define NN_NEW_HOST(mem, pointer, n) nn_new_host((mem), (void **)(pointer), (n), sizeof **(pointer))

/* The sizes of a pass's activations, and the memory they come from. */
typedef struct nn_room {
    nn_memory *memory;
    int64_t max_tokens, max_users, max_loss; /* T, B, M at most */
    int64_t max_items; /* rows of items that a loss uses, at most, where they are listed */
    bool is_training;  /* with all that the backward pass needs */
} nn_room;

/* An array that the host fills and the backend reads. */
typedef struct staged_i32 {
    int32_t *host, *device;
} staged_i32;
typedef struct staged_u32 {
    uint32_t *host, *device;
} staged_u32;
typedef struct staged_i64 {
    int64_t *host, *device;
} staged_i64;

typedef struct staged_f32 {
    float *host, *device;
} staged_f32;

/* Many such arrays in one block, so that one copy sends them all: laid out once to count bytes
 * (host is NULL), then again in the allocated memory. */
typedef struct staging {
    char *host, *device;
    size_t bytes;
} staging;

/* The next n * size bytes; at is their offset. */
static inline size_t staging_take(staging *s, int64_t n, size_t size) {
    size_t at = s->bytes;
    s->bytes += ((size_t)n * size + 63) / 64 * 64;
    return at;
}

#define STAGE(s, x, n)                                                                             \
    do {                                                                                           \
        size_t at_ = staging_take((s), (n), sizeof *(x)->host);                                    \
        (x)->host = (s)->host != NULL ? (void *)((s)->host + at_) : NULL;                          \
        (x)->device = (s)->host != NULL ? (void *)((s)->device + at_) : NULL;                      \
    } while (0)

#define STAGED_NEW(mem, s, n)                                                                      \
    (NN_NEW_HOST((mem), &(s)->host, (n)) != OK ? ERR_NOMEM : NN_NEW((mem), &(s)->device, (n)))

/* Sends the first n elements. */
#define STAGED_SEND(be, s, n)                                                                      \
    (be)->ops->copy_in((be), (s)->device, (s)->host, (size_t)(n) * sizeof *(s)->host)

/* Sizes of the data, and of the largest batch of any pass, that a model needs. */
struct comm;
typedef struct model_limits {
    int32_t n_items;                  /* V: items are 1..V; row 0 of the table is padding */
    int32_t n_actions;                /* actions are 0..n_actions-1; 0: the model has none */
    int32_t n_context;                /* F contextual features */
    const int32_t *n_context_values;  /* (F): values are 0..n-1, 0 is "unknown" */
    const char *const *context_names; /* (F), or NULL: by which configs name their tables */
    int32_t max_users;                /* B of the largest batch of any pass */
    int32_t max_events;               /* history and targets of a user: max_history + max_targets */
    int64_t time_per_second;
    uint64_t target_actions; /* bits of the actions whose events are labels of retrieval; 0: all */
    const struct seq_file *content; /* whose items' content rows are made of (nn/item_content.h);
                                       NULL: items have rows of their own alone */
    struct comm *tensor;   /* the ranks that share every layer by its heads (layer.h); NULL:
                              layers are whole */
    struct comm *sequence; /* the ranks that share the tokens of a batch (hstu_rows.h); NULL: this
                              one has all.  Not both */
    struct comm *comm;     /* ranks that hold dynamic tables together (nn/dynamic.h), or NULL */
    bool has_bf16_wire;    /* rows and their gradients travel in bfloat16 */
    bool can_list;         /* gradients of large tables may be listed by rows (nn/input.h) */
} model_limits;
