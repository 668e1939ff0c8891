/* Session: combines a config, data and a backend, for training, evaluation, recommending and
 * serving.
 *
 * It checks that config and data fit, with a message where they do not, and makes the model.  The
 * parts given must outlive it.  One thread at a time. */
#pragma once

#include "config/config.h"
#include "data/set/batcher.h"
#include "data/set/seq_file.h"
#include "model/pass.h"
#include "ops/comm.h"
#include "ops/ops.h"

/* Which users train where the split is by user: the same for every run, so that an evaluation later
 * holds out the same ones. */
enum { SESSION_SPLIT_SEED = 0 };

enum { SESSION_MAX_RANKS = 1024 };

typedef struct session {
    const config *config;
    const seq_file *data;
    backend *be;
    comm *comm;     /* the ranks that divide the users of a batch; NULL: one.  May be set after the
                       open: then every rank has all rows of dynamic tables */
    comm *tensor;   /* the ranks that share the layers of the model (model_limits); NULL: one */
    comm *sequence; /* the ranks that share the tokens of a batch (model_limits); NULL: one */
    comm *world;    /* all together; NULL: the same as comm */
    bool has_bf16_wire;    /* of session_open_ranks */
    bool has_fixed_leaves; /* a GPU's steps, too, have the same leaves on 1, 2, 4 and 8 ranks, so
                              that all give the same bits (a CPU's: summed as a GPU's, for tests).
                              Set after the open */
    bool shares_grads;     /* kernels have no fixed order of sums, so that the ranks of a group take
                              one rank's gradients of what all of them have.  Set after the open */
    int64_t early_bytes;   /* ranks sum gradients during the backward pass, as soon as so many bytes
                              of them are complete; 0: after it.  On a GPU, or as on one.  Set after
                              the open */
    model *model;
    pass *train;   /* the pass for training, or NULL: the session is not for training */
    param *params; /* (n_params), of the model */
    int n_params;
    int32_t max_history, max_targets; /* events of a user in a batch */
    int32_t train_batch, eval_batch;  /* users */
    int32_t n_context_values[CONTEXT_MAX];
    const char *context_names[CONTEXT_MAX]; /* of the data */
    bool has_content; /* items' rows are made of their content: for training alone */
    model_limits limits;
} session;

/* For training, with evaluations in between: makes s->train for the config's batch.  The values of
 * the parameters are not set: model_init or checkpoint_load does that.  ERR_CONFIG: config and data
 * do not fit, and why. */
status session_open(session *s, const config *c, const seq_file *data, backend *be);

/* The same on ranks: `ranks` is the session's comm, tensor, sequence and world.  The ranks of
 * `data` hold dynamic tables, and some static ones, together (nn/dynamic.h), each some of the rows,
 * which on the CPU with has_bf16_wire travel in bfloat16. */
typedef struct session_ranks {
    comm *data, *tensor, *sequence, *world;
    bool has_bf16_wire;
    bool sums_whole; /* gradients of leaves or ranks are summed in memory of a GPU, as on one: whole
                        tables */
} session_ranks;
status session_open_ranks(session *s, const config *c, const seq_file *data, backend *be,
                          const session_ranks *ranks);

/* The ranks that work on the same users: they share layers, or tokens; NULL: one. */
static inline comm *session_group(const session *s) {
    return s->tensor != NULL ? s->tensor : s->sequence;
}

/* All ranks of the job; NULL: one. */
static inline comm *session_world(const session *s) {
    return s->world != NULL ? s->world : s->comm;
}

/* Events of a training batch, its contextual values among them, that one of n parts has at most: a
 * share, and the longest user more. */
static inline int64_t session_part_events(const session *s, int n) {
    int64_t user = (int64_t)s->max_history + s->max_targets + s->limits.n_context;
    return s->train_batch * user / n + user;
}

/* Without training: no gradients, and passes for at most max_users users; 0: the config's batch
 * size for evaluation.  tensor: the ranks that share the layers; NULL: one. */
status session_open_inference(session *s, const config *c, const seq_file *data, backend *be,
                              int32_t max_users, comm *tensor);
void session_close(session *s); /* a failed open too */

/* Bytes of backend memory: the model and its training pass. */
uint64_t session_memory_bytes(const session *s);

/* The actions of the data are 0..n-1; 0: it has none. */
int32_t session_count_actions(const seq_file *data);

/* Which events of a history leave their items out of a list: all, none, or those with some actions
 * (bits as of action_in). */
typedef struct seen_rule {
    bool keeps_all;
    uint64_t actions;
} seen_rule;

/* Of a text: "all", "none", or actions as in --target-action.  NULL: what the model was evaluated
 * by, which ranks items of the history where it learnt to predict some actions only. */
status session_seen(const session *s, const char *text, seen_rule *out);

static inline bool seen_hides(const seen_rule *r, uint16_t action) {
    return !r->keeps_all && action_in(r->actions, action);
}

/* How the reference projects hold out events: leave-one-out for Meta's research files, users for
 * NVIDIA's; with a validation set leave-two-out. */
split_rule session_split(const config *c, bool has_validation);

/* ERR_CONFIG where this model would be tested on events it trains on: ranking without candidates
 * scores every event of a history, so only whole users can be held out. */
status session_check_split(const session *s, const split_rule *rule);

/* The stream of training batches, and the stream of an evaluation. */
batcher_config session_train_batches(const session *s, split_rule rule, uint64_t seed);
batcher_config session_eval_batches(const session *s, split_rule rule, split_part part);

/* Events one epoch of training reads: for progress bars. */
/* Tells the model which items have training events, and how many (model_set_warm, _counts). */
status session_set_items(session *s, split_rule rule);

uint64_t session_epoch_tokens(const session *s, split_rule rule);
