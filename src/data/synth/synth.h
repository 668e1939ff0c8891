/* Synth: a synthetic data set whose best reachable hit rate is known (synth_model.h).
 *
 * The best reachable figures are those of an oracle for the test event of leave-one-out.  It knows
 * the model, the user's present taste, every earlier event, whether the last event opens a session
 * and, if not, the session's topic; only the draw of the item is unknown to it.  It removes the
 * items the user has had (as an evaluation does; they cannot come again) and names the ten
 * likeliest of the rest.  best_hr10 is the mean over users of the probability that the event is
 * among them, and best_ndcg10 the mean of the expected 1 / log2(rank + 1): no recommender can
 * expect more.  Popularity, for comparison, names the ten items with the most training events (all
 * but each user's last) that the user has not had. */
#pragma once

#include "data/set/seq_file.h"

typedef struct synth_config {
    uint64_t n_users;
    uint32_t n_items;
    double mean_len; /* events of a user, in the mean; lengths are log-normal */
    uint64_t seed;
} synth_config;

typedef struct synth_report {
    uint64_t n_users, n_events, max_len;
    uint32_t n_items, n_topics;
    double best_hr10, best_ndcg10;
    double foretold_hr10;   /* the oracle's hit rate on this data: best_hr10 up to chance */
    double popularity_hr10; /* in fact */
} synth_report;

/* 5000 users, 2000 items, 60 events each, seed 1. */
synth_config synth_config_default(void);

/* Writes DIR/data.seq; the same file with any number of threads.  ERR_USAGE for sizes out of range
 * (1..2^31 users, 20..2^31 items, 3..n_items / 4 events). */
status synth_write(const synth_config *config, const char *folder, pool *p, synth_report *report);

/* Writes the data set and opens it; nothing is left on disk.  seq_file_close closes it. */
status synth_open(seq_file **out, const synth_config *config, pool *p);
