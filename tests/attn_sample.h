/* A random sample of HSTU attention, for tests: everything one call reads and writes, and the
 * results of the naive version, in float64 and rounded like naive code of the precision under test.
 *
 * The test makes a sample (sample_make, then sample_mask and sample_bias), runs an attention on it
 * and has it checked.  Numbers are drawn from one sequence, the same in every run of a test;
 * HSTU_TEST_SEED=N draws another one. */
#ifndef HSTU_TESTS_ATTN_SAMPLE_H
#define HSTU_TESTS_ATTN_SAMPLE_H

#include "cpu/attn_naive.h"
#include "dense_test.h"

/* Everything one attention reads and writes; results of the naive version (cpu/attn_naive.h), exact
 * and rounded like naive code of the precision under test. */
typedef struct sample {
    attn_args a;
    int64_t n_q, n_k, n_table; /* rows, rows, numbers */
    float *out, *dq, *dk, *dv, *dtable, *dposition, *dtime;
    attn_naive_results want[2];
} sample;

typedef enum {
    SAMPLE_CAUSAL,
    SAMPLE_FULL,
    SAMPLE_WINDOW,
    SAMPLE_TARGETS,
    SAMPLE_FUNC,
    N_SAMPLE_MASKS
} sample_mask_kind;

enum { MAX_SEQUENCES = 300 };

/* The queries of a sequence: one for each key, any number of the newest, or up to a number above 1.
 */
enum { QUERIES_ALL = 0, QUERIES_ANY = 1 };

/* What a random sample points to. */
typedef struct inputs {
    int32_t offsets_q[MAX_SEQUENCES + 1], offsets_k[MAX_SEQUENCES + 1];
    int32_t n_contexts[MAX_SEQUENCES], n_targets[MAX_SEQUENCES];
    float *q, *k, *v, *dout, *table, *position, *time_w;
    int32_t *func;
    int64_t *query_time, *key_time;
} inputs;

/* The layout of rows: any stride, or one that the TMA of a GPU can load, with or without the number
 * of rows given. */
typedef enum { ROWS_ODD, ROWS_ALIGNED, ROWS_KNOWN } row_kind;
extern row_kind rows_are; /* of the samples made from now on; ROWS_ODD at first */

/* The largest error of a sample's out, dq, dk and dv, divided by the error of naive code. */
typedef struct sample_error {
    double ratio;
    const char *what;
} sample_error;

uint32_t sample_draw(void);
uint64_t sample_seed(void);

/* Sequences with these numbers of keys, and so many queries. */
void sample_make(sample *s, inputs *in, const int32_t *lengths, int n_sequences, int32_t queries,
                 int32_t n_heads, int32_t dim_qk, int32_t dim_v);
void sample_mask(attn_args *a, inputs *in, sample_mask_kind mask);
/* Times are drawn below span. */
void sample_bias(sample *s, inputs *in, attn_bias bias, int32_t table_heads, int64_t span);
void sample_results(sample *s); /* memory for the results of s->a, whose shapes are set */
void sample_free(sample *s);
void sample_free_inputs(inputs *in);

void sample_naive(const sample *s);
void sample_run(const attn_args *a, int n_threads); /* both passes, on the device under test */

/* Fails the test where the error of a result exceeds twice the error of naive code plus one
 * rounding. */
sample_error sample_check(const sample *s);

/* The same without sample_naive, for some rows of n pairs of sequence and head: the last one,
 * others next to the edges of tiles, and any. */
sample_error sample_check_some(const sample *s, int n);

#endif
