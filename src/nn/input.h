/* Input: computes the tokens of the first layer from the table rows that a batch's layout names,
 *
 *     x[t] = dropped( sqrt(E) token[t] + position[place[t]] + action[added_action[t]] )
 *
 * where actions are added to the tokens of their events, and without the last term otherwise.
 * Tables of equal width are contiguous in one array, the bank, so that one gather reads items,
 * actions and contextual values, and one scatter adds their gradients.  Where tables are of another
 * width than the model, a small MLP first maps their rows to width E. */
#pragma once

#include "nn/batch_layout.h"
#include "nn/mlp.h"

/* First values of tables are uniform in [-scale, scale), whatever their number of rows, so that a
 * row's values depend on its key and column only: the deviation equals that of the research models'
 * N(0, 0.02). */
#define INPUT_TABLE_SCALE 0.035f

/* Features are identified by their number among the contextual ones, or ITEM_FEATURE; INPUT_TABLE
 * is the number of a feature's table in the model, which seeds its first values. */
enum { ITEM_FEATURE = -1 };
#define INPUT_TABLE(feature) ((uint32_t)((feature) + 1))

/* Gradients of the rows that a batch uses; all memory is the backend's. */
typedef struct row_grads {
    int64_t n;     /* rows */
    int32_t *rows; /* (n) rows of a bank, ascending; -1 after the last */
    float *grad;   /* (n, dim) */
} row_grads;

/* Tables that follow one another.
 *
 * A large bank is listed: a training pass lists the rows that its batch uses, reads their values
 * into an array of its own, and adds gradients there; nothing in a step is of the size of the
 * table.  A sum over leaves and ranks replaces `step`. */
typedef struct bank {
    int32_t dim, n_rows;
    bool is_listed;
    float *value, *grad;        /* (n_rows, dim); grad: NULL without training and where listed */
    uint8_t *marks;             /* (n_rows), or NULL: the optimizer updates every row */
    row_grads step;             /* listed: the gradients since the last update */
    row_grads room;             /* where a pass writes them instead of its own memory; or zeros */
    int64_t max_step;           /* rows that a pass lists, at most */
    float *m, *v;               /* listed: the optimizer's, (n_rows, dim), or NULL */
    late_rows late;             /* and the steps that rows have missed */
    gather_far far[GATHER_FAR]; /* (n_far): rows elsewhere, numbered after its own */
    int n_far;
    int64_t n_far_rows;
} bank;

/* The rows of a static table that this rank holds, others being held by other ranks (dynamic.h). */
typedef struct input_held {
    const int32_t *rows; /* host (n), ascending; NULL: the table is not held so */
    int64_t n, n_whole;
} input_held;

typedef struct input_config {
    int32_t dim;                     /* E */
    int32_t item_dim, context_dim;   /* of the tables; 0: E, without an MLP */
    int32_t n_items, n_actions;      /* n_actions 0: the model reads none */
    bool adds_actions;               /* actions are added, not tokens of their own */
    int32_t n_context;               /* F */
    const int32_t *n_context_values; /* (F) */
    int32_t n_places;
    param_names names;
    init_rule item_rule, position_rule; /* first values; other tables: input_table_rule */
    bool has_marks;                     /* the tables' optimizer is lazy */
    bool lists_events, lists_contexts;  /* which banks are large, and listed */
    /* Whether items, contextual features (F, or NULL) are dynamic: their rows are fetched for each
     * batch (dynamic.h), and are not parameters. */
    bool has_dynamic_items;
    const bool *is_dynamic;
    /* Items and contextual features (F, or NULL) whose table ranks hold together: like dynamic
     * ones, but this rank's rows are a parameter, and rows of the bank have marks. */
    input_held held_items;
    const input_held *held;
    float dropout_rate;
} input_config;

typedef struct input {
    input_config config;
    bool is_merged; /* one bank, no MLP */
    bank events, contexts;
    param *item, *action, *position; /* item, context: not parameters where they are dynamic */
    param **context;                 /* (F) */
    param *own_item, **own_context;  /* (F): rows of this rank where ranks hold a table, or NULL */
    int32_t action_row;              /* in the events' bank */
    int32_t *context_row;            /* (F), in the bank of contextual values */
    mlp item_mlp, context_mlp;       /* not merged */
} input;

/* Of a bank that is listed: the rows of one pass. */
typedef struct listed_rows {
    int64_t max_rows;
    row_grads own; /* room for max_rows */
    float *value;  /* (max_rows, dim) */
    int32_t *n;    /* (1), of the backend */
} listed_rows;

/* The activations of one pass; row_groups and gradients only for training. */
typedef struct input_acts {
    listed_rows event_list, context_list; /* where the banks are listed */
    row_groups events, contexts;          /* rows of the banks that a batch uses */
    row_groups places, actions; /* rows of the position table, and of actions that are added */
    /* not merged */
    mlp_acts item_mlp, context_mlp;
    void *event_x, *d_event_x;     /* (T, item_dim) act: table rows before their MLP */
    void *context_x, *d_context_x; /* (B F, context_dim) act */
    void *tokens, *d_tokens;       /* (T, E) act: event tokens, then contextual tokens */
    row_groups assembly;
} input_acts;

/* The rows of a feature's table. */
param *input_rows(const input *in, int32_t feature);

/* Where ranks hold the table of a feature together: the rows of this rank.  Else NULL. */
param *input_own_rows(const input *in, int32_t feature);

/* First values of a table that a config may make dynamic: the same in both cases. */
init_rule input_table_rule(int32_t feature);

status input_add_params(input *in, const input_config *c, param_list *params);

/* Lets a bank read the rows of another array (n, stride) as its rows from *first on.  false: it has
 * enough of them. */
bool input_add_far(bank *b, const float *rows, int64_t n, int64_t stride, int32_t *first);

/* Allocates the gradients of the tables and, where the config asks for them, the marks of touched
 * rows; does nothing the second time. */
status input_alloc_grads(input *in, nn_memory *memory);
status input_alloc(input_acts *a, const input *in, const nn_room *room);

/* x (T, E); asks: or NULL. */
status input_fwd(const input *in, const input_acts *a, backend *be, const batch_layout *p,
                 const sequences *s, const token_asks *asks, void *x);

/* From the gradient of x to the gradients of tables, positions and MLPs. */
status input_bwd(const input *in, input_acts *a, backend *be, const batch_layout *p,
                 const sequences *s, const void *dx);

/* Lists the rows of the listed banks that a training batch uses, those of its tokens and of `more`
 * (n_more) items, and reads them; the layout's rows and the indices of `more` become their numbers.
 * Before input_fwd. */
status input_list(input *in, input_acts *a, backend *be, const batch_layout *p,
                  const row_uses *more, int n_more);

/* Marks the table rows that the batch reads. */
status input_mark(const input *in, backend *be, const batch_layout *p);
