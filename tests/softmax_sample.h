/* A random sample of softmax attention, for tests: everything one call reads and writes, and the
 * results of the naive version (cpu/attn_naive.h).
 *
 * The test makes a sample, may give it another mask, and has it checked.  Numbers are drawn from
 * one sequence, the same in every run of a test. */
#ifndef HSTU_TESTS_SOFTMAX_SAMPLE_H
#define HSTU_TESTS_SOFTMAX_SAMPLE_H

#include "cpu/attn_naive.h"
#include "dense_test.h"
#include "ops/mask_tiles.h"

enum { MAX_SEQUENCES = 8, N_RESULTS = 4 };

typedef struct soft_sample {
    softmax_attn_args a;
    int32_t offsets[MAX_SEQUENCES + 1];
    int64_t n;      /* rows */
    int n_distinct; /* sequences from there on repeat the first ones */
    uint32_t *user, *position;
    float *inputs[4];          /* q, k, v, dout */
    float *results[N_RESULTS]; /* out, dq, dk, dv */
    /* exact, and rounded like naive code of the precision under test */
    attn_naive_results want[2];
    /* of a mask with lists: they are in host memory */
    mask *m;
    mask_batch *masks;
    backend *masks_be;
} soft_sample;

/* Masks of every kind. */
enum { N_SOFT_MASKS = 10 };
extern const char *const soft_masks[N_SOFT_MASKS];

uint32_t soft_sample_draw(void);

/* Causal; the sequences have these lengths, and max_len is one more than the longest. */
void soft_sample_make(soft_sample *s, const int32_t *lengths, int n_sequences, int32_t n_heads,
                      int32_t dim, float rate);
/* Sequences, all of one length, repeat the first n: naive results are computed for those only. */
void soft_sample_repeat(soft_sample *s, int n);
/* Replaces the causal mask. */
void soft_sample_mask(soft_sample *s, const char *text);
void soft_sample_free(soft_sample *s);

/* Memory for another run's results. */
void soft_sample_results(soft_sample *s);
void soft_sample_free_results(soft_sample *s);

/* Both passes, on the device under test. */
void soft_sample_run(const softmax_attn_args *a, int n_threads);

/* Runs it, and fails the test where a result is off by more than twice what naive code is. */
void soft_sample_check(soft_sample *s, const char *what);
/* All of it. */
void soft_sample_check_mask(const char *text, const int32_t *lengths, int n_sequences,
                            int32_t n_heads, int32_t dim, float rate);

#endif
