#include "store_crash.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "embed/table.h"
#include "table_rig.h"

enum { DIM = 8, ROUNDS = 8, BATCH = 48 };

/* Fetches new ids for ever, and prints their number after each batch.  A table of 128 rows evicts
 * nearly all of them to the store. */
static void live(embed_store *store, int told) {
    backend *be;
    embed_table *t;
    const embed_batch *b;
    embed_config c = {.dim = DIM,
                      .policy = POLICY_LRU,
                      .capacity = {128, 0},
                      .max_batch = BATCH,
                      .seed = 4,
                      .first = FIRST_UNIFORM,
                      .first_scale = 1,
                      .store = store};
    if (backend_create_cpu(&be, NULL) != OK || embed_create(&t, be, &c) != OK) _exit(1);
    for (uint64_t first = 0;; first += BATCH) {
        uint64_t ids[BATCH];
        for (uint64_t i = 0; i < BATCH; i++)
            ids[i] = first + i;
        if (embed_fetch(t, FETCH_INSERT, BATCH, ids, NULL, &b) != OK) _exit(1);
        int64_t n_put = embed_counts_of(t)->n_written;
        if (write(told, &n_put, sizeof n_put) != sizeof n_put) _exit(1);
    }
}

static status check_row(void *ctx, const embed_rows *rows) {
    table_first f = {FIRST_UNIFORM, rng_make_key(4, RNG_TABLE),
                     (float)table_first_unit(FIRST_UNIFORM, 1), 0};
    for (int64_t i = 0; i < rows->n; i++)
        for (uint32_t c = 0; c < DIM; c++)
            CHECK(rows->rows[i * DIM + c] == table_first_value(&f, rows->keys[i], c));
    *(int64_t *)ctx += rows->n;
    return OK;
}

void store_survives_kills(store_open open) {
    uint64_t state = 2;
    for (int round = 0; round < ROUNDS; round++) {
        char folder[4096];
        int ends[2];
        embed_store *store;
        int64_t n_put = 0, n_there = 0, said;
        snprintf(folder, sizeof folder, "%s/store-%d", test_folder(), round);
        CHECK_EQ(pipe(ends), 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) { /* opened here: the threads of an engine do not survive a fork */
            status st = open(&store, folder, DIM);
            if (st != OK) _exit(st == ERR_UNSUPPORTED ? TEST_SKIPPED : 1);
            live(store, ends[1]);
        }
        close(ends[1]);
        int want = 1 + (int)rig_random(&state, 60);
        for (int i = 0; i < want && read(ends[0], &said, sizeof said) == sizeof said; i++)
            n_put = said;
        usleep((useconds_t)rig_random(&state, 300));
        kill(child, SIGKILL);
        int code;
        CHECK_EQ(waitpid(child, &code, 0), child);
        if (WIFEXITED(code) && WEXITSTATUS(code) == TEST_SKIPPED)
            SKIP_TEST("this build is without that store");
        CHECK(WIFSIGNALED(code));
        while (read(ends[0], &said, sizeof said) == sizeof said)
            n_put = said; /* it came further than we had read */
        close(ends[0]);
        CHECK_OK(open(&store, folder, DIM));
        CHECK_OK(store->each(store, check_row, &n_there));
        CHECK(n_there >= n_put);
        embed_store_destroy(store);
    }
}
