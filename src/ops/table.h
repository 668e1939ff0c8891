/* table.h: the contract of a dynamic embedding table's device side.
 *
 * A table of src/embed is made of levels (tiers).  A LEVEL is an index of 64-bit keys in memory of
 * a backend and, apart from it, one row of floats for each of its slots, in memory of the backend
 * or in host memory that the backend can reach.  This header states the layout of a level and its
 * verbs, each once; src/cpu and src/cuda implement them, and leave the same bytes in the index
 * whatever the number of threads and the order of keys within a call.  Policies, tiers and files
 * are in src/embed.  The rules of ops.h hold (order of ops, counts of 0, no allocation once warm);
 * one thread calls the verbs of a level at a time.
 *
 * Layout.  h = table_hash(key) is a bijection of all 2^64 keys, none of which is reserved.  The key
 * belongs to bucket table_bucket(h, n_buckets), the high word of h * n_buckets, and to no other:
 * with 64-way associativity hit rates are at most 0.1 % below those of one big bucket (Zipf 1.05,
 * LRU and LFU, 4 K to 128 K slots).  Because the bucket grows with h, keys in the order of their
 * hashes are grouped by bucket at every level, whatever its size. A bucket is one block of
 * TABLE_BUCKET_BYTES, 64-byte aligned:
 *     digests (64) uint8    0: the slot is empty; else table_digest(h), 1..255
 *     entries (64)          uint64 key, uint64 score: the policy's word.  A touch writes where the
 *                           key was just read; of two entries the smaller is evicted first
 *     stamps  (64) uint32   step of the last write of the row, and TABLE_CLEAN
 * A probe reads one line of digests (its matches are the bits of one 64-bit word) and, on a match,
 * one entry.  An empty slot's entry and stamp are undefined.  slot = 64 bucket + place in it,
 * always 64-bit; the row of a slot is at rows + slot * row_bytes.
 *
 * Row: `dim` values, then the state of the optimizer, all float32:
 *     SGD none | Adam m (dim), v (dim) | AdaGrad s (dim) | row-wise AdaGrad s (1)
 * padded to row_bytes, a multiple of 16; the padding is never read. */
#pragma once

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define TABLE_FN static inline __host__ __device__
#else
#define TABLE_FN static inline
#endif

enum {
    TABLE_SLOTS = 64, /* of a bucket */
    TABLE_ENTRIES_AT = 64,
    TABLE_STAMPS_AT = TABLE_ENTRIES_AT + 16 * TABLE_SLOTS,
    TABLE_BUCKET_BYTES = TABLE_STAMPS_AT + 4 * TABLE_SLOTS /* 1344 */
};

/* Flag in a stamp: a lower tier has an identical copy of the row, which need not be written back.
 * Every write of the row clears it.  Steps are below 2^31. */
#define TABLE_CLEAN 0x80000000u

typedef struct table_level {
    int64_t n_buckets;    /* >= 1 */
    unsigned char *index; /* (n_buckets, TABLE_BUCKET_BYTES), zeroed when made */
    unsigned char *rows;  /* (64 n_buckets, row_bytes) */
    int64_t row_bytes;
} table_level;

typedef struct table_entry {
    uint64_t key, score;
} table_entry;

/* The finalizer of MurmurHash3. */
TABLE_FN uint64_t table_hash(uint64_t key) {
    key = (key ^ key >> 33) * 0xff51afd7ed558ccdull;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53ull;
    return key ^ key >> 33;
}

/* The key of a hash. */
TABLE_FN uint64_t table_unhash(uint64_t h) {
    h = (h ^ h >> 33) * 0x9cb4b2f8129337dbull;
    h = (h ^ h >> 33) * 0x4f74430c22a54005ull;
    return h ^ h >> 33;
}

TABLE_FN int64_t table_bucket(uint64_t h, int64_t n_buckets) {
#ifdef __CUDA_ARCH__
    return (int64_t)__umul64hi(h, (uint64_t)n_buckets);
#else
    __extension__ typedef unsigned __int128 wide;
    return (int64_t)((wide)h * (uint64_t)n_buckets >> 64);
#endif
}

/* From the low half of the hash; the bucket is from its high bits. */
TABLE_FN uint8_t table_digest(uint64_t h) {
    return (uint8_t)(1 + ((uint64_t)(uint32_t)h * 255 >> 32));
}

TABLE_FN uint8_t *table_digests(const table_level *l, int64_t bucket) {
    return l->index + bucket * TABLE_BUCKET_BYTES;
}

TABLE_FN table_entry *table_entries(const table_level *l, int64_t bucket) {
    return (table_entry *)(l->index + bucket * TABLE_BUCKET_BYTES + TABLE_ENTRIES_AT);
}

TABLE_FN uint32_t *table_stamps(const table_level *l, int64_t bucket) {
    return (uint32_t *)(l->index + bucket * TABLE_BUCKET_BYTES + TABLE_STAMPS_AT);
}

TABLE_FN float *table_row(const table_level *l, int64_t slot) {
    return (float *)(l->rows + slot * l->row_bytes);
}

/* In every struct below, n < 2^31 is the capacity in keys (or slots).  Where n_real is not NULL
 * only the first min(n, *n_real) exist: n_real points to memory of the backend, where `unique`
 * writes the count, so that the host need not wait for it.  A call with n = 0 may do nothing at
 * all, not even write its counts; with *n_real = 0 the counts are written. */

/* What a touch does to the score of an entry; w is scores[i], or `score` where scores is NULL. */
typedef enum {
    SCORE_KEEP, /* nothing; a new entry gets w */
    SCORE_SET,  /* score = w */
    SCORE_COUNT /* the high words are added, saturating at 2^32 - 1; the low word becomes w's:
                   (count, step of the last touch) */
} score_rule;

TABLE_FN uint64_t table_touched(score_rule rule, uint64_t old, uint64_t w) {
    if (rule == SCORE_KEEP) return old;
    if (rule == SCORE_SET) return w;
    uint64_t count = (old >> 32) + (w >> 32);
    return (count > 0xffffffffu ? 0xffffffffu : count) << 32 | (w & 0xffffffffu);
}

/* The distinct ids of a batch, and their places in it.  keys: ascending by hash.  Row u of the
 * groups are the places of keys[u], ascending (row_groups of ops.h with V = *n_unique; begin has
 * room for n + 1).  ids[i] = keys[inverse[i]]. */
typedef struct table_unique_args {
    int64_t n;
    const uint64_t *ids; /* (n) */
    uint64_t *keys;      /* (n) */
    int64_t *n_unique;   /* (1) */
    int32_t *inverse;    /* (n) */
    int32_t *order;      /* (n); with begin, or both NULL */
    int32_t *begin;      /* (n + 1) */
} table_unique_args;

/* slot[i] = the slot of keys[i], or -1.  Found entries are touched by the rule.  Keys may repeat
 * with SCORE_KEEP, and with SCORE_SET of one score; else they must be distinct.  Any order;
 * ascending by hash is fastest. */
typedef struct table_find_args {
    int64_t n;
    const int64_t *n_real;
    const uint64_t *keys; /* (n) */
    score_rule rule;
    uint64_t score;
    const uint64_t *scores; /* (n) or NULL */
    int64_t *slot;          /* (n) */
    uint64_t *out_scores;   /* (n) or NULL: scores after the touch; 0 where nothing was found */
    uint32_t *out_stamps;   /* (n) or NULL: 0 where nothing was found */
} table_find_args;

typedef enum {
    EVICT_NEVER,   /* a full bucket takes no new key */
    EVICT_LOWER,   /* a new key evicts only entries whose score is not above its own */
    EVICT_SMALLEST /* the smallest score is evicted, whatever the new key's score */
} evict_rule;

/* Evicted entries, in no defined order.  Their rows stay at `slot` until the caller writes the rows
 * of the new keys. */
typedef struct table_evicted {
    uint64_t *keys;   /* (n of the call) each */
    uint64_t *scores; /* */
    uint32_t *stamps; /* */
    int64_t *slot;    /* */
} table_evicted;

enum { PLACED_NEW, PLACED_EVICTED, PLACED_REJECTED, PLACED_COUNTS };

/* Find or insert.  Keys: distinct, in any order; is_ordered promises ascending hashes. For each
 * bucket, in this order:
 *  1.  Keys in the table are touched by the rule; none of them is evicted by this call.
 *  2. The new keys, those of higher score first, of equal score those of smaller hash, take the
 *     free places: the empty slots, ascending; then, unless EVICT_NEVER, the entries that were not
 *     touched in 1, ascending by (score, key).  With EVICT_LOWER a new key whose entry has a higher
 *     score than its own is rejected instead, and so are all after it.  New keys without a place
 *     are rejected.
 * A new entry has its digest, key, score w and stamp; its row keeps the old content of the slot.
 *
 * With `init` (find or insert) or `write` (insert or assign) rows are moved in the same pass: the
 * work of that verb for these keys and slots, init for the new ones only; its arguments n, n_real,
 * slot, only and keys are ignored.  The rows of evicted entries are lost. */
typedef struct table_place_args {
    int64_t n;
    const int64_t *n_real;
    const uint64_t *keys; /* (n) */
    bool is_ordered;
    score_rule rule;
    uint64_t score;
    const uint64_t *scores; /* (n) or NULL */
    uint32_t stamp;         /* of new entries */
    const uint32_t *stamps; /* (n) or NULL */
    evict_rule evict;
    int64_t *slot;         /* (n): -1 where rejected */
    uint8_t *is_new;       /* (n): 1 new, 0 found or rejected */
    table_evicted evicted; /* or all NULL: they are only counted */
    uint64_t *rejected;    /* (n) or NULL: the keys, order not defined */
    int64_t *counts;       /* (PLACED_COUNTS): numbers of new, evicted and rejected keys */
    const struct table_init_args *init;  /* or NULL */
    const struct table_rows_args *write; /* or NULL; not both */
} table_place_args;

/* Empties the slots of the keys that are in the table.  Keys: distinct, in any order. */
typedef struct table_erase_args {
    int64_t n;
    const int64_t *n_real;
    const uint64_t *keys; /* (n) */
    int64_t *slot;        /* (n) or NULL: where it was, or -1 */
    int64_t *n_erased;    /* (1) or NULL */
} table_erase_args;

/* The entries of buckets first .. first + n_buckets - 1 whose score is in min_score .. max_score
 * and whose stamp, without TABLE_CLEAN, is in min_stamp .. max_stamp; ascending by slot.  Outputs
 * that are NULL are not written: with all NULL this only counts. */
typedef struct table_scan_args {
    int64_t first, n_buckets;
    uint64_t min_score, max_score;
    uint32_t min_stamp, max_stamp;
    uint64_t *keys, *scores; /* (64 n_buckets) or NULL */
    uint32_t *stamps;        /* with TABLE_CLEAN */
    int64_t *slot;
    int64_t *n; /* (1): how many */
} table_scan_args;

/* stamps[slot[i]] = stamps[i], or `stamp` where stamps is NULL; negative slots are skipped. */
typedef struct table_stamp_args {
    int64_t n;
    const int64_t *n_real;
    const int64_t *slot; /* (n) */
    uint32_t stamp;
    const uint32_t *stamps; /* (n) or NULL */
} table_stamp_args;

/* Computes the scores and stamps that place writes for keys that move up a level: `slot`, `scores`
 * and `stamps` are what find returned for the level below.  With w = given[i], or `score` where
 * given is NULL, keys in the level below get table_touched(rule, scores[i], w) and keep their
 * stamps, others get w and `stamp`. is_below[i]: whether key i is in the level below. */
typedef struct table_carry_args {
    int64_t n;
    const int64_t *n_real;
    const int64_t *slot; /* (n) */
    score_rule rule;
    uint64_t score;
    const uint64_t *given; /* (n) or NULL */
    uint32_t stamp;
    uint64_t *scores;  /* (n) */
    uint32_t *stamps;  /* (n) */
    uint8_t *is_below; /* (n) */
} table_carry_args;

/* read: staging[i] = the first n_floats of the row of slot[i]; a negative slot reads as zeros.
 * write: the reverse; negative slots are skipped, and so are those with only[i] = 0 where `only` is
 * not NULL.  A slot is written once at most.  Stamps are not changed. */
typedef struct table_rows_args {
    int64_t n;
    const int64_t *n_real;
    const int64_t *slot; /* (n) */
    const uint8_t *only; /* (n) or NULL; write only */
    int32_t n_floats;    /* values alone, or with state */
    float *staging;      /* rows of n_floats, `stride` floats apart */
    int64_t stride;      /* >= n_floats */
} table_rows_args;

typedef enum { FIRST_CONSTANT, FIRST_UNIFORM, FIRST_NORMAL } first_kind;

/* The first values of a row: a function of (seed, key, column) alone, in integer arithmetic with
 * one rounding, so that neither device nor order of insertion matter.  See table_first_value. */
typedef struct table_first {
    first_kind kind;
    rng_key key; /* rng_make_key(seed, RNG_TABLE) */
    float unit;  /* factor of an integer draw (table_first_unit), or the constant */
    float state; /* every number of the optimizer's state */
} table_first;

/* The factor from integer draws to uniform values in [-scale, scale), or normal values of deviation
 * `scale`. */
double table_first_unit(first_kind kind, double scale);

/* Uniform: 2 (word >> 8) - 2^24, of word column % 4 of the block (key, column / 4).  Normal: one
 * block for each column (0x80000000 | column); the eight 16-bit halves of its words are added and
 * centred, which is close enough to normal (within 4.9 deviations) and exact. */
TABLE_FN float table_first_value(const table_first *f, uint64_t key, uint32_t col) {
    if (f->kind == FIRST_CONSTANT) return f->unit;
    uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    if (f->kind == FIRST_UNIFORM) {
        rng_block b = rng_draw(f->key, low, high, col / 4, 0);
        return (float)((int32_t)(b.word[col % 4] >> 8) * 2 - 16777216) * f->unit;
    }
    rng_block b = rng_draw(f->key, low, high, 0x80000000u | col, 0);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(b.word[i] & 0xffff) + (int32_t)(b.word[i] >> 16);
    return (float)(2 * sum - 8 * 65535) * f->unit;
}

/* Writes whole rows: dim first values, then n_state times `state`.  Skips the same slots as write.
 * With staging, the values of all n rows, those just written and the others, are copied there as by
 * read: one pass over the rows of a batch of new and old keys. */
typedef struct table_init_args {
    int64_t n;
    const int64_t *n_real;
    const int64_t *slot;  /* (n) */
    const uint8_t *only;  /* (n) or NULL */
    const uint64_t *keys; /* (n) */
    int32_t dim, n_state;
    table_first first;
    float *staging; /* rows of dim, `stride` floats apart; or NULL */
    int64_t stride;
} table_init_args;

/* The arguments of the `init` or `write` that a place includes; a->init or a->write must not be
 * NULL. */
table_init_args table_place_init(const table_place_args *a);
table_rows_args table_place_write(const table_place_args *a);

/* One update of each row by its optimizer (optimizer_rule.h), with g = grad[i] * *grad_scale (NULL:
 * 1).  Slots are distinct; negative ones are skipped.  The row's stamp becomes `stamp`.  Where
 * *grad_scale is 0 nothing changes.  grad is only read. */
typedef struct table_update_args {
    int64_t n;
    const int64_t *n_real;
    const int64_t *slot; /* (n) */
    opt_kind opt;
    int32_t dim;
    const float *grad; /* (n, dim) */
    const float *grad_scale;
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* t, from 1 */
    uint32_t stamp;
} table_update_args;

/* y[b] = the sum of weights[i] row(i) over i in offsets[b] .. offsets[b + 1] - 1, in the order of
 * i; an empty bag is zeros.  Without offsets nothing is summed: y[i] = row(i).  row(i) is the row
 * of slot[inverse[i]], of slot[i] where inverse is NULL, and staging row inverse[i] where slot is
 * NULL and the level's `rows` are the staging.  A negative slot or inverse reads as zeros. */
typedef struct table_pool_args {
    int64_t n; /* places */
    int64_t n_bags;
    const int64_t *offsets; /* (n_bags + 1), or NULL */
    const int64_t *slot;
    const int32_t *inverse; /* (n) */
    const float *weights;   /* (n) or NULL: ones; only with offsets */
    int32_t dim;
    float *y; /* (n_bags, dim); (n, dim) without offsets */
} table_pool_args;

/* The gradient of pool without offsets: grad[u] = the sum of dy[i] over the places i of group u, in
 * an order that depends on the batch alone.  Replaces grad. */
typedef struct table_pool_grad_args {
    int64_t n;                    /* places */
    const int32_t *order, *begin; /* as `unique` left them */
    int64_t n_groups;
    const int64_t *n_real; /* of the groups */
    int32_t dim;
    const float *dy; /* (n, dim) */
    float *grad;     /* (n_groups, dim) */
} table_pool_grad_args;

/* find and read in one pass, without a touch, for evaluation and serving; over several tables of
 * one dim at once.  Keys of part p are keys[begin[p]] .. keys[begin[p + 1] - 1], with repeats, in
 * any order.  y[i] = the values of the row; for a missing key zeros, or its first values where
 * `first` is not NULL. */
enum { TABLE_MAX_PARTS = 64 };

typedef struct table_lookup_args {
    int32_t n_parts;           /* <= TABLE_MAX_PARTS */
    const table_level *levels; /* (n_parts) host */
    const int64_t *begin;      /* (n_parts + 1) host */
    const uint64_t *keys;
    int32_t dim;
    const table_first *first; /* (n_parts) host, or NULL */
    float *y;                 /* (n, dim) */
    uint8_t *is_found;        /* (n) or NULL */
} table_lookup_args;

/* TABLE_SPARSE: on the device, and most of it may stay untouched. */
typedef enum { TABLE_ON_DEVICE, TABLE_SPARSE, TABLE_ON_HOST } table_memory;

/* The vtable; table_ops.def lists its members. */
typedef struct table_ops {
#define TABLE_OP(result, name, parameters, test) result(*name) parameters;
#include "ops/table_ops.def"
} table_ops;

#ifdef __cplusplus
}
#endif
