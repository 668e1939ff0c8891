/* Parameters: names, shapes, values, gradients and first values.  A list belongs to one model; its
 * memory is that of the model. */
#ifndef HSTU_NN_PARAMS_H
#define HSTU_NN_PARAMS_H

#include "nn/memory.h"
#include "nn/model.h"

/* How a parameter starts.  Uniform: in [-scale, scale); normal: scale is the deviation; truncated
 * normal: of four normal draws the first with |x| < 2, as the reference has it.  Rows: uniform by
 * (table, row, column), the first values that the rows of a dynamic table have (ops/table.h). */
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

/* The seed of a table: tables of one run have seeds of their own, so that the same row starts
 * elsewhere in each. */
uint64_t init_table_seed(uint64_t seed, uint32_t table);

/* Glorot's rules for a matrix of n_in times n_out. */
init_rule init_xavier_uniform(int64_t n_in, int64_t n_out);
init_rule init_xavier_normal(int64_t n_in, int64_t n_out);

typedef struct param_list {
    nn_memory *memory;
    param *item;     /* (n), room for capacity; they never move, so others point at them */
    init_rule *rule; /* (n) */
    uint32_t *draw; /* (n): what its first values are drawn by: its number, left-out ones counted */
    int n, capacity;
    uint32_t n_draws;
    int64_t n_numbers;
} param_list;

status param_list_init(param_list *l, nn_memory *memory, int capacity);

/* What a parameter is, as far as it can be said before it has memory. */
typedef struct param_spec {
    const char *prefix, *name; /* the whole name is one behind the other */
    int n_dims;
    int64_t shape[4];
    init_rule rule;
    bool is_table;
} param_spec;

/* Appends one; *out stays where it is. */
status param_add(param_list *l, const param_spec *spec, param **out);

/* The same with memory of the caller's: tables that lie one behind the other (input.h). */
typedef struct param_memory {
    float *value, *grad;
    uint8_t *marks; /* or NULL */
} param_memory;
status param_add_at(param_list *l, const param_spec *spec, const param_memory *at, param **out);

/* Leaves one out, whose values are elsewhere: those behind it start as if it were there. */
void param_leave_out(param_list *l);

param *param_find(param_list *l, const char *name); /* or NULL */

/* First values, by Philox(seed, RNG_INIT) of (parameter, element), and those of INIT_ROWS. */
status param_list_start(param_list *l, uint64_t seed);

#endif
