/* The ranks of hstu train: that they agree, the groups that share layers or sequences, and what is
 * said about them. */
#ifndef HSTU_CLI_MODEL_TRAIN_RANKS_H
#define HSTU_CLI_MODEL_TRAIN_RANKS_H

#include "cli/work.h"
#include "dist/ranks.h"
#include "train/loop/trainer.h"

/* Ranks of a group: they share layers, or the tokens of a batch. */
int64_t train_group_size(const config *c);

/* Where the config cuts layers or sequences, ranks form groups that share them; ranks may be NULL.
 */
status train_open_groups(rank_grid *grid, transport *ranks, const config *c, const work *w);

/* The session of these ranks; says how they divide the work. */
status train_open_session(session *s, const config *c, work *w, const rank_grid *grid);

/* A rank with another program, config or data would not notice it otherwise; ranks may be NULL. */
status train_ranks_agree(transport *ranks, const train_options *o, const config *c,
                         const session *s);

#endif
