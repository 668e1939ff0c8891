/* Build: makes an engine folder (model/trained.h) of a trained run.
 *
 * The folder is written beside its target, opened, and asked the same as the run; only then does it
 * get its name, durably: a reader sees the old folder, or the new one, or none.  With float32
 * weights both must answer the same, bit for bit; what 16-bit weights change is measured and
 * reported.  One thread at a time. */
#pragma once

#include "model/trained.h"

typedef struct build_config {
    const char *run;        /* a run or a checkpoint */
    const char *checkpoint; /* of the run: "best", ...; NULL: checkpoint_find */
    const char *out;        /* made, or replaced where it is an engine folder */
    config_dtype dtype;     /* of the matrices: all parameters with more than one dimension */
    bool is_fp8;            /* products of layers in 8-bit floats, with bfloat16 matrices */
    engine_limits limits;
} build_config;

typedef struct build_report {
    uint64_t step, n_items, n_numbers;
    uint64_t weight_bytes; /* of the file, dynamic tables not included */
    int n_tables;
    double weight_error; /* engine_facts */
    int n_asked;         /* histories that run and engine were asked about */
    double score_error;  /* the largest difference of two scores, in units of the range of the
                            scores of its request */
    double top_kept;     /* retrieval: the share of the run's ten best that the engine has, too */
    bool is_ranking;
    double run_open_s, engine_open_s; /* until the first request can be answered */
} build_report;

/* ERR_USAGE where `out` is there and no engine folder.  ERR_NUMERIC: a weight beyond float16. */
status build_engine(const build_config *c, build_report *out);
