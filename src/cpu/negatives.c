/* negatives, as ops.h states it.  Each draw is a pure function of its row and place, so rows are
 * independent; one Philox block gives four negatives. */
#include "cpu/cpu.h"

enum { CHUNK_ROWS = 256 };

typedef struct job {
    const negatives_args *a;
} job;

static int32_t pick(const negatives_args *a, uint32_t word) {
    uint32_t i = rng_below(word, (uint32_t)a->n_pool);
    return a->pool != NULL ? a->pool[i] : (int32_t)i;
}

static void draw_row(const negatives_args *a, int64_t m) {
    int32_t *index = a->index + m * a->n_negatives;
    for (int32_t r = 0; r < a->n_negatives; r += 4) {
        rng_block b = rng_draw(a->key, a->position[m], a->user[m], *a->step, (uint32_t)r / 4);
        for (int32_t w = 0; w < 4 && r + w < a->n_negatives; w++)
            index[r + w] = pick(a, b.word[w]);
    }
}

static status draw_chunk(void *ctx, int64_t chunk, int worker) {
    const job *j = ctx;
    (void)worker;
    cpu_range range = cpu_chunk(chunk, CHUNK_ROWS, j->a->n);
    for (int64_t m = range.first; m < range.end; m++)
        draw_row(j->a, m);
    return OK;
}

status cpu_negatives(backend *be, const negatives_args *a) {
    job j = {a};
    if (a->n_pool < 1 && a->n > 0 && a->n_negatives > 0)
        return fail(ERR_CONFIG, "there is nothing to draw negatives from; give the model at least "
                                "one item");
    return pool_run(be->workers, cpu_n_chunks(a->n, CHUNK_ROWS), draw_chunk, &j);
}
