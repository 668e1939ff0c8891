/* negatives, as ops.h states it.  Each draw is a pure function of its row and place, so rows are
 * independent; one Philox block gives four negatives, one vector of blocks N_DRAWN. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/draw.h"

enum { CHUNK_ROWS = 256, N_DRAWN = 4 * DRAW_LANES };

typedef struct job {
    const negatives_args *a;
} job;

static void draw_row(const negatives_args *a, int64_t m) {
    int32_t *index = a->index + m * a->n_negatives;
    uint32_t position = a->position[m], user = a->user[m];
    for (int32_t r = 0; r < a->n_negatives; r += N_DRAWN) {
        int32_t n = a->n_negatives - r < N_DRAWN ? a->n_negatives - r : N_DRAWN;
        uint32_t words[N_DRAWN];
        draw_blocks(a->key, position, user, *a->step, (uint32_t)r / 4, words);
        for (int i = 0; i < N_DRAWN; i++)
            words[i] = rng_below(words[i], (uint32_t)a->n_pool);
        for (int i = 0; a->pool != NULL && i < n; i++)
            words[i] = (uint32_t)a->pool[words[i]];
        memcpy(index + r, words, (size_t)n * sizeof *index);
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
