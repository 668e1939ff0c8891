/* What commands that compute share: threads, a backend and data, opened and closed together; the
 * config file and the split that their options name. */
#pragma once

#include "data/set/held_out.h"
#include "data/set/seq_file.h"
#include "data/set/split.h"
#include "dist/transport.h"
#include "ops/ops.h"

typedef struct work {
    pool *workers;
    backend *be;
    comm *comm; /* with several ranks; else NULL */
    seq_file *data;
    seq_file *test;   /* the test file, */
    held_out *joined; /* and its events after those of the data; or NULL */
} work;

/* What --device takes: "auto" (the first usable GPU, else the CPU), "cpu", "cuda", "cuda:N". */
#define WORK_DEVICES "Device: auto (default), cpu, cuda or cuda:N."
/* What --dtype takes: the names of act_type, then NULL. */
extern const char *const work_dtypes[];

/* What --nccl takes. */
#define WORK_NCCL                                                                                  \
    "With several GPUs: auto (default; NCCL if it is found and no ranks share a GPU, otherwise "   \
    "through host memory), on, off, or the path of libnccl.so.2."
/* What --checkpoint takes (checkpoint_choose). */
#define WORK_CHECKPOINTS                                                                           \
    "Checkpoint: best, last, step-N or a checkpoint's folder (default: the best on validation if " \
    "the run has one, otherwise the newest)."
/* What a RUN means where a checkpoint is expected. */
#define WORK_RUN_NOTE                                                                              \
    "RUN means its best checkpoint on validation if it has one, otherwise its newest.\n"

/* data: a folder, or NULL for none. */
status work_open(work *w, const char *data, const char *device);

/* How the work is done, besides on which device. */
typedef struct work_options {
    bool is_deterministic; /* on a GPU: two runs give the same bits */
    transport *ranks;      /* this process is one of several ranks; NULL: it is alone */
    const char *nccl;      /* what --nccl says (rank_options); NULL: auto */
} work_options;

/* Like work_open.  Ranks divide the cores of a machine, and take its GPUs in turn. */
status work_open_as(work *w, const char *data, const char *device, const work_options *o);

/* Ranks of one machine take its GPUs in turn: where *device is "auto" or "cuda", it becomes the
 * name of this rank's GPU, in `name`.  ranks NULL: one. */
status work_choose_gpu(const transport *ranks, const char **device, char name[32]);

/* Opens a test file and joins its events to those of the data (held_out.h); says on stderr what was
 * left out. */
status work_join_test(work *w, const char *path, bool keeps_unknown);

/* Warns where the data that a run names, and a command without --data took, have changed since:
 * trained_on is their fingerprint then. */
void work_warn_changed(const work *w, uint64_t trained_on);

/* The data, with the events of a test file where one was joined. */
const seq_file *work_data(const work *w);

void work_close(work *w); /* a failed open too */

enum { CONFIG_PATH_BYTES = 4096 };

/* A relative name that is not there, such as configs/demo.gin, is looked for where the program's
 * files are, beside it, in ../share/hstu or in its source tree, and the log says so.  A name found
 * nowhere is kept: opening it says what is wrong. */
void config_path_find(const char *name, char path[CONFIG_PATH_BYTES]);

/* The same for a program in the file `program`; for tests. */
void config_path_find_for(const char *program, const char *name, char path[CONFIG_PATH_BYTES]);

/* The file of this program. */
status work_own_path(char path[CONFIG_PATH_BYTES]);

/* The same for a file of any kind, without a word: whether it is there. */
bool work_find_file(const char *name, char path[CONFIG_PATH_BYTES]);

/* The options of `hstu train` and `hstu eval` that say what is held out. */
typedef struct split_args {
    const char *split, *time_cut, *test_file;
    bool has_validation;
} split_args;

/* Help texts that both commands share. */
#define SPLIT_TIME_HELP                                                                            \
    "Cut of --split time: seconds since 1970, 2001-01-31 or 2001-01-31T23:59:59Z (UTC). Training " \
    "uses only events before it; each user's first event at or after it is the test."
#define EVAL_USERS_HELP                                                                            \
    "Evaluate a fixed random sample of N held-out users instead of all, the same ones in every "   \
    "run on the same data: for large catalogues, where ranking all items takes long."
#define SPLIT_FILE_HELP                                                                            \
    "Held-out events as a prepared data set ('hstu prep'), matched by user and item ids: each "    \
    "user's first event in it is the test, after all events of --data."
/* Whether --split, --time-cut or --test-file was given. */
bool split_args_given(const split_args *a);

/* The rule they give; ERR_USAGE where they do not go together.  The fingerprint of a test file is
 * left open. */
status split_args_read(const split_args *a, split_record *out);
