/* Parameters: names, shapes, values, gradients and first values.  A list belongs to one model; its
 * memory is that of the model.
 *
 * Each parameter has its own block of values.  Gradients are allocated later, and only for
 * training: the gradients of all dense parameters are one range of memory, so that one call
 * measures their norm, clears them or reduces them over ranks.  Gradients of tables stay outside
 * that range: a lazy optimizer touches only the marked rows of a table, the rows of dynamic tables
 * are between the rows of static ones (input.h), and sharded tables are not reduced at all. */
#pragma once

#include "nn/memory.h"
#include "ops/ops.h"

enum { PARAM_NAME_BYTES = 96 };

/* The part of a parameter that a rank has where layers are cut over ranks (param_cut_run): one of
 * n_parts equal parts of dimension `dim`.  Where the dimension is of several blocks, such as the
 * columns of u, v, q and k, it is one part of each block. */
enum { PARAM_MAX_BLOCKS = 4 };
typedef struct param_cut {
    int part, n_parts; /* n_parts 0: the parameter is whole */
    int dim, n_blocks;
    int64_t block[PARAM_MAX_BLOCKS]; /* (n_blocks): lengths on this rank */
} param_cut;

/* A parameter.  Its name is its name in checkpoints (docs/formats.md). */
typedef struct param {
    char name[PARAM_NAME_BYTES];
    int n_dims;
    int64_t shape[4]; /* on this rank */
    param_cut cut;
    const int32_t *rows; /* host (shape[0]), ascending: the rows of the whole table that this rank
                            holds (dynamic.h); NULL: all */
    int64_t whole_rows;  /* of the whole table, with `rows` */
    int64_t n;           /* elements in all, on this rank */
    float *value;        /* (shape), memory of the backend */
    float *own;          /* (shape): what the optimizer updates where values are made of it and of
                            more (item_content.h); NULL: the values themselves */
    float *grad;   /* (shape): the sum over the batches since the last update; NULL: no training, or
                      a table whose gradients are listed (input.h) */
    bool is_table; /* rows of an embedding, which an optimizer may update lazily */
    /* (rows), memory of the backend: not 0 where a row got a gradient since the last update.  NULL
     * where the optimizer updates whole tables. */
    uint8_t *marks;
} param;

/* A range of float32 in memory of the backend. */
typedef struct param_range {
    float *first;
    int64_t n;
} param_range;

/* The project whose names a model's parameters have: checkpoints of both projects load by name. */
typedef enum { NAMES_NVIDIA, NAMES_META } param_names;

/* How a parameter starts.  Uniform: in [-scale, scale); normal: scale is the deviation; truncated
 * normal: of four normal draws the first with |x| < 2, as the reference has it.  Rows: uniform by
 * (table, row, column), like the first values of a dynamic table's rows (ops/table.h). */
typedef enum {
    INIT_ZERO,
    INIT_ONE,
    INIT_UNIFORM,
    INIT_NORMAL,
    INIT_TRUNCATED,
    INIT_ROWS
} init_kind;

typedef struct init_rule {
    init_kind kind;
    double scale;
    uint32_t table; /* INIT_ROWS: its number in the model */
} init_rule;

/* The seed of a table: each table of a run has its own seed, so that equal rows of two tables start
 * differently. */
uint64_t init_table_seed(uint64_t seed, uint32_t table);

/* Glorot's rules for a matrix of n_in times n_out. */
init_rule init_xavier_uniform(int64_t n_in, int64_t n_out);
init_rule init_xavier_normal(int64_t n_in, int64_t n_out);

typedef struct param_list {
    nn_memory *memory;
    param *item;     /* (n), room for capacity; they never move, so others point at them */
    init_rule *rule; /* (n) */
    uint32_t *draw;  /* (n): the counter with which the first values are drawn: the number of the
                        parameter, those of param_leave_out counted too */
    int n, capacity;
    uint32_t n_draws;
    int64_t n_numbers;       /* of all ranks: of whole parameters */
    param_range dense_grads; /* empty until param_list_alloc_grads */
} param_list;

status param_list_init(param_list *l, nn_memory *memory, int capacity);

/* A parameter's description, before it has memory. */
typedef struct param_spec {
    const char *prefix, *name; /* the whole name is the prefix followed by the name */
    int n_dims;
    int64_t shape[4];
    init_rule rule;
    bool is_table;
} param_spec;

/* Appends one; *out stays where it is. */
status param_add(param_list *l, const param_spec *spec, param **out);

/* Like param_add, where spec->shape is that of this rank's part. */
status param_add_cut(param_list *l, const param_spec *spec, const param_cut *cut, param **out);

/* Like param_add, with values in the caller's memory: tables that are contiguous (input.h). */
status param_add_at(param_list *l, const param_spec *spec, float *value, param **out);

/* Skips a parameter whose values are elsewhere: the first values of later ones are as if it were
 * there. */
void param_leave_out(param_list *l);

/* Allocates the gradients of all parameters that are not tables, in one range; does nothing the
 * second time.  Each starts at a multiple of 256 bytes; the gaps between them stay zero, so that
 * sums over the range are sums over the parameters. */
status param_list_alloc_grads(param_list *l);

/* Clears all gradients there are, and the marks of rows. */
status param_list_clear_grads(param_list *l);

/* Sets the first values, by Philox(seed, RNG_INIT) of (parameter, element of the whole parameter),
 * or by the rule of INIT_ROWS. */
status param_list_start(param_list *l, uint64_t seed);

/* Where a rank has a part of a parameter, or some rows of a table, checkpoints hold the whole
 * parameter and first values are drawn for it, so neither depends on the number of ranks.
 *
 * The shape of the whole parameter, and its elements in all. */
void param_whole_shape(const param *p, int64_t shape[4]);
int64_t param_whole_n(const param *p);

/* Where element `at` of this rank's part is in the whole parameter; *n: so many elements from there
 * on are contiguous in both. */
int64_t param_cut_run(const param *p, int64_t at, int64_t *n);

/* Copies this rank's part of a whole array of float32 on the host, of any alignment, to memory of
 * the backend. */
status param_cut_take(const param *p, backend *be, const void *whole, float *to);
