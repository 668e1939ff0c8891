/* The mirror from inside: one call of an op, with the pieces of memory of its arguments. */
#ifndef HSTU_TESTS_MIRROR_INT_H
#define HSTU_TESTS_MIRROR_INT_H

#include "mirror.h"

/* IN is read, OUT is written entirely without being read, BOTH is read and written; LOOSE may be
 * written, without being read; ROOM may be written, and otherwise keeps its content. */
typedef enum { IN, OUT, BOTH, LOOSE, ROOM } mirror_use;

/* FACTOR: float32 that a product may round; ACT_FACTOR: activations that a product may round, too;
 * RAW: bytes without meaning before and after the call. */
typedef enum { ACT, ACT_FACTOR, F32, FACTOR, F64, I32, I64, U8, RAW } mirror_kind;

typedef struct mirror_part {
    const char *name;
    void **slot;                 /* the pointer in the arguments for below */
    const char *host;            /* what it was */
    int64_t rows, width, stride; /* elements; a plain array is one row */
    mirror_use use;
    mirror_kind kind;
    int region;
} mirror_part;

/* Parts that overlap share a region: arguments in place here are in place on the backend below
 * too. */
typedef struct mirror_region {
    const char *host;
    int64_t n; /* elements */
    int host_size, size;
    int64_t at; /* bytes from the start of the block */
} mirror_region;

typedef struct mirror {
    backend *below;
    bool owns_below;
    precision p;
    bool is_rounding; /* below keeps float32: round here */
    double grid;      /* (mirror_shift_grid) */
    mirror_part *part;
    mirror_region *region;
    int *order;
    size_t n_parts, n_regions, part_capacity, region_capacity, order_capacity;
    char *before, *after, *mask; /* images of the block; which bytes are results */
    size_t before_capacity, after_capacity, mask_capacity;
    void *block; /* of below */
    size_t block_bytes, used_bytes;
    status failed; /* of mirror_part_add */
} mirror;

static inline mirror *mirror_of(backend *be) {
    return be->state;
}

/* A call: begin, add every pointer of a copy of the arguments, send, the op, receive. */
void mirror_begin(mirror *m);
void mirror_part_add(mirror *m, const char *name, mirror_use use, mirror_kind kind, void **slot,
                     int64_t rows, int64_t width, int64_t stride);
status mirror_send(mirror *m);
status mirror_receive(mirror *m, const char *op);

/* Rows `stride` apart, and a plain array: pointers of any type. */
#define MIRROR_ROWS(m, args, field, use, kind, rows, width, stride)                                \
    mirror_part_add(m, #field, use, kind, (void **)&(args)->field, rows, width, stride)
#define MIRROR(m, args, field, use, kind, n) MIRROR_ROWS(m, args, field, use, kind, 1, n, n)

/* The end of a mirrored op: sends, runs it below, receives. */
#define RUN(m, op, ...)                                                                            \
    do {                                                                                           \
        TRY(mirror_send(m));                                                                       \
        TRY((m)->below->ops->op((m)->below, __VA_ARGS__));                                         \
        return mirror_receive(m, #op);                                                             \
    } while (0)

/* The floats of moments of n rows (row_moments). */
int64_t mirror_moments_size(int64_t n, int64_t dim);

/* Where kv_put writes, and the slots that say so. */
void mirror_add_put(mirror *m, kv_put_args *a);
/* What a dropout of so many rows reads. */
void mirror_add_dropout(mirror *m, dropout *d, int64_t rows);

/* Every op `name` is mirror_name: those of memory in mirror.c, those that compute in
 * mirror_ops.c, mirror_linear.c and mirror_mol.c. */
#define OP(result, name, parameters, arguments, test) result mirror_##name parameters;
#include "ops/ops.def"

#endif
