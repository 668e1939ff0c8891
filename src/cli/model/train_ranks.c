/* Ranks of hstu train, before the first step. */
#include "cli/model/train_ranks.h"

#include <stdio.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/ranks.h"
#include "nn/dynamic.h"
#include "ops/comm.h"

status train_ranks_agree(transport *ranks, const train_options *o, const config *c,
                         const session *s) {
    rank_facts f = rank_facts_here();
    const int64_t options[] = {o->n_epochs, o->max_steps, o->is_resume, s->train_batch,
                               env_sums_early()};
    buf text;
    if (ranks == NULL) return OK;
    buf_init(&text);
    status st = config_write_json(c, &text, 0);
    if (st == OK) {
        f.config = hash64(text.data, text.n_bytes, hash64(options, sizeof options, 0));
        f.data = batcher_fingerprint(s->data);
        st = ranks_agree(ranks, &f);
    }
    buf_fini(&text);
    return st;
}

int64_t train_group_size(const config *c) {
    const config_trainer *t = &c->trainer;
    return t->tensor_parallel > 1 ? t->tensor_parallel : t->sequence_parallel;
}

static bool has_tensor(const config *c) {
    return c->trainer.tensor_parallel > 1;
}

status train_open_groups(rank_grid *grid, transport *ranks, const config *c, const work *w) {
    int64_t size = train_group_size(c);
    int n_ranks = ranks != NULL ? ranks->size : 1;
    const char *name = has_tensor(c) ? "TensorModelParallelArgs.tensor_model_parallel_size"
                                     : "--sequence-parallel (sequence_parallel_size)";
    *grid = (rank_grid){0};
    if (has_tensor(c) && c->trainer.sequence_parallel > 1)
        return fail(ERR_CONFIG,
                    "%s: %s = %lld and a sequence_parallel_size of %lld: ranks share layers or "
                    "sequences, not both; set one of them to 1",
                    c->file, name, (long long)size, (long long)c->trainer.sequence_parallel);
    if (size == 1) return OK;
    if (n_ranks == 1) {
        log_info("note: %s: %s = %lld: one rank trains whole %s; --ranks cuts them", c->file, name,
                 (long long)size, has_tensor(c) ? "layers" : "sequences");
        return OK;
    }
    if (n_ranks % size != 0)
        return fail(ERR_CONFIG,
                    "%s: %s = %lld, and %d ranks cannot form groups of so many; start a multiple "
                    "of %lld ranks, or set it to 1: then the ranks divide the batch",
                    c->file, name, (long long)size, n_ranks, (long long)size);
    return rank_grid_create(grid, ranks, w->be, w->comm, (int)size);
}

static void tell_groups(const rank_grid *grid, const config *c) {
    int group = comm_size(grid->group), data = comm_size(grid->data);
    long long heads = c->network.n_heads;
    char share[96];
    if (group == 1) return;
    if (has_tensor(c))
        snprintf(share, sizeof share, "each rank has %lld of the %lld heads of every layer",
                 heads / group, heads);
    else
        snprintf(share, sizeof share,
                 "each rank has 1/%d of the tokens, and in the attention %lld of the %lld heads",
                 group, heads / group, heads);
    log_info("%d ranks = %d data x %d %s: %s, and %s", data * group, data, group,
             has_tensor(c) ? "tensor" : "sequence",
             data == 1 ? "they train on all users of a step together"
                       : "the groups divide the users of a step",
             share);
}

/* Nothing is rounded where no rows travel. */
static void tell_wire(const config *c, const session *s) {
    const dynamic_tables *t = model_tables(s->model);
    if (c->trainer.wire == WIRE_BFLOAT16 && (t->comm == NULL || !t->has_bf16_wire))
        log_info("note: --wire bfloat16 has no effect: it is for tables that several ranks of the "
                 "CPU hold together (--ranks G --device cpu)");
}

status train_open_session(session *s, const config *c, work *w, const rank_grid *grid) {
    session_ranks ranks = {.data = w->comm};
    if (grid->group != NULL)
        ranks = (session_ranks){.data = grid->data,
                                .tensor = has_tensor(c) ? grid->group : NULL,
                                .sequence = has_tensor(c) ? NULL : grid->group,
                                .world = w->comm};
    ranks.has_bf16_wire = c->trainer.wire == WIRE_BFLOAT16;
    TRY(session_open_ranks(s, c, work_data(w), w->be, &ranks));
    tell_groups(grid, c);
    tell_wire(c, s);
    return OK;
}
