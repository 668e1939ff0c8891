/* gen_ml20m FOLDER [ROWS] [shuffled]: writes ratings.csv and movies.csv in the layout of ML-20M.
 *
 * As in the original: 138,493 users in ascending order for 20 million rows, each with at least 20
 * ratings and a long tail, a user's movies in ascending order of id (so that times are not),
 * ratings from 0.5 to 5, ids up to 131,262.  The same arguments give the same bytes.  `shuffled`
 * puts the rows in random order, which is harder on whoever groups them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum { N_MOVIES = 27278, FIRST_TIME = 789652009, TIME_SPAN = 638000000 };

typedef struct row {
    uint32_t user, movie, half_stars, time;
} row;

static rng_key key;
static uint64_t n_drawn;

/* A number below n; the draws are numbered, so the file is the same everywhere. */
static uint32_t below(uint32_t n) {
    return rng_below(rng_draw64(key, n_drawn++, 0).word[0], n);
}

/* Ids have gaps, as the real ones: the k-th movie of 27,278, ids up to 131,262. */
static uint32_t movie_id(uint32_t k) {
    return k < 8000 ? k + 1 : 8001 + (uint32_t)((uint64_t)(k - 8000) * 123261 / (N_MOVIES - 8001));
}

/* 20 and a geometric tail with a mean of 124, so that 20 million rows are 138 thousand users. */
static uint32_t user_rows(void) {
    uint32_t n = 20;
    while (n < 9000 && below(124) != 0)
        n++;
    return n;
}

/* One user's rows: movies ascending, popular ones (low numbers) more often. */
static void make_user(row *rows, uint32_t user, uint32_t n) {
    uint32_t start = FIRST_TIME + below(TIME_SPAN), at = 0;
    uint32_t mean_gap = N_MOVIES / (n + 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = N_MOVIES - at - (n - i);
        uint32_t gap = mean_gap > 1 ? below(2 * mean_gap) : below(2);
        at += gap < left ? gap : left;
        rows[i] = (row){user, movie_id(at++), 1 + below(10), start + below(1u << 20)};
    }
}

static int write_ratings(const char *folder, const row *rows, uint64_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/ratings.csv", folder);
    FILE *f = fopen(path, "w");
    if (f == NULL) return perror(path), 1;
    fprintf(f, "userId,movieId,rating,timestamp\n");
    for (uint64_t i = 0; i < n; i++)
        fprintf(f, "%u,%u,%u.%c,%u\n", rows[i].user, rows[i].movie, rows[i].half_stars / 2,
                rows[i].half_stars % 2 ? '5' : '0', rows[i].time);
    return fclose(f) != 0;
}

static int write_movies(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/movies.csv", folder);
    FILE *f = fopen(path, "w");
    if (f == NULL) return perror(path), 1;
    fprintf(f, "movieId,title,genres\n");
    for (uint32_t k = 0; k < N_MOVIES; k++)
        fprintf(f, "%u,\"Movie %u, The (%u)\",Drama|Comedy\n", movie_id(k), k, 1920 + k % 95);
    return fclose(f) != 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: gen_ml20m FOLDER [ROWS] [shuffled]\n"), 2;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 20000263, made = 0;
    row *rows = malloc((n + 1) * sizeof *rows);
    if (rows == NULL) return fprintf(stderr, "out of memory\n"), 1;
    key = rng_make_key(20, RNG_TEST);
    for (uint32_t user = 1; made < n; user++) {
        uint32_t wanted = user_rows();
        if (wanted > n - made) wanted = (uint32_t)(n - made);
        make_user(rows + made, user, wanted);
        made += wanted;
    }
    for (uint64_t i = n; argc > 3 && strcmp(argv[3], "shuffled") == 0 && i > 1; i--) {
        uint64_t k = below((uint32_t)i);
        row swapped = rows[k];
        rows[k] = rows[i - 1];
        rows[i - 1] = swapped;
    }
    int failed = write_ratings(argv[1], rows, n) || write_movies(argv[1]);
    free(rows);
    return failed;
}
