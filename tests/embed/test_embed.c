/* Dynamic tables as a whole: order and threads do not matter, hit rates equal those of exact
 * policies; admission, growth, the training interface, and refused arguments. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/thread.h"
#include "embed/snapshot.h"
#include "embed/table_int.h"
#include "oom.h"
#include "ops/table.h"
#include "table_rig.h"
#include "test.h"

enum { DIM = 4 };

static embed_config small_config(embed_policy policy, int64_t level0) {
    return (embed_config){.dim = DIM,
                          .policy = policy,
                          .capacity = {level0, 0},
                          .max_batch = 4096,
                          .seed = 11,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
}

static backend *real(void) {
    backend *be;
    CHECK_OK(test_real_backend(&be, NULL));
    if (be->tables == NULL) SKIP_TEST("%s has no dynamic tables", be->name);
    return be;
}

typedef struct dump {
    uint64_t sum;
    int64_t n;
} dump;

static status add_rows(void *ctx, const embed_rows *rows) {
    dump *d = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        uint64_t h = table_hash(rows->keys[i]) + table_hash(rows->scores[i]) * 3 + rows->stamps[i];
        for (int c = 0; c < rows->n_floats; c++) {
            uint32_t bits;
            memcpy(&bits, &rows->rows[i * rows->n_floats + c], 4);
            h = table_hash(h + bits);
        }
        d->sum = d->sum * 31 + h; /* the order of slots counts */
    }
    d->n += rows->n;
    return OK;
}

static dump dump_of(embed_table *t) {
    dump d = {0};
    CHECK_OK(embed_export(t, 0, add_rows, &d));
    return d;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int64_t resident_bytes(void) {
    long long n_all, n_resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL) SKIP_TEST("the system does not say how much memory a process has");
    CHECK_EQ(fscanf(f, "%lld %lld", &n_all, &n_resident), 2);
    fclose(f);
    return n_resident * sysconf(_SC_PAGESIZE);
}

/* A table with room for many rows takes the memory of those it has, whatever their buckets. */
TEST(embed_sparse_tables_take_what_they_use) {
    enum { WIDE = 256, KEYS = 4000, SLOTS = 40000 };
    backend *be;
    embed_table *t;
    const embed_batch *got;
    uint64_t keys[KEYS];
    CHECK_OK(backend_create_cpu(&be, NULL));
    embed_config c = small_config(POLICY_LRU, SLOTS);
    c.dim = WIDE;
    c.opt = OPT_ADAMW;
    c.is_sparse = true;
    CHECK_OK(embed_create(&t, be, &c));
    float *rows = calloc((size_t)KEYS * WIDE, sizeof *rows);
    for (int i = 0; i < KEYS; i++)
        keys[i] = (uint64_t)i;
    int64_t before = resident_bytes(), row_bytes = 3 * WIDE * (int64_t)sizeof *rows;
    CHECK_OK(embed_take_rows(t, true, KEYS, keys, NULL, rows, &got));
    int64_t taken = resident_bytes() - before - (int64_t)(KEYS * WIDE * sizeof *rows);
    if (taken > 3 * KEYS * row_bytes)
        FAIL_TEST("%lld bytes for %lld of rows", (long long)taken, (long long)(KEYS * row_bytes));
    free(rows);
    embed_destroy(t);
    backend_destroy(be);
}
#endif

/* The same batches, shuffled, with other numbers of threads: the same table, slot by slot. */
TEST(embed_order_and_threads_do_not_matter) {
    pool *workers;
    dump first = {0};
    CHECK_OK(pool_create(&workers, 3));
    for (int run = 0; run < 3; run++) {
        backend *be;
        embed_table *t;
        uint64_t state = 9, shuffle = (uint64_t)run;
        embed_config c = small_config(POLICY_LFU, 640);
        c.capacity[1] = 1280;
        c.opt = OPT_ADAGRAD;
        CHECK_OK(test_real_backend(&be, run == 2 ? workers : NULL));
        CHECK_OK(embed_create(&t, be, &c));
        for (int step = 1; step < 30; step++) {
            static uint64_t ids[3000];
            const embed_batch *b;
            for (int i = 0; i < 3000; i++)
                ids[i] = rig_random(&state, rig_random(&state, 4000) + 1);
            for (uint64_t i = 2999; run > 0 && i > 0; i--) {
                uint64_t j = rig_random(&shuffle, i + 1), k = ids[i];
                ids[i] = ids[j];
                ids[j] = k;
            }
            CHECK_OK(embed_set_step(t, step));
            CHECK_OK(embed_fetch(t, FETCH_INSERT, 3000, ids, NULL, &b));
            float *grad, *host = calloc((size_t)b->n_unique * DIM, 4);
            uint64_t *keys = malloc((size_t)b->n_unique * 8);
            CHECK_OK(be->ops->copy_out(be, keys, b->keys, (size_t)b->n_unique * 8));
            for (int64_t i = 0; i < b->n_unique * DIM; i++)
                host[i] = (float)(keys[i / DIM] % 17) / 16;
            CHECK_OK(be->ops->alloc(be, (void **)&grad, (size_t)b->n_unique * DIM * 4));
            CHECK_OK(be->ops->copy_in(be, grad, host, (size_t)b->n_unique * DIM * 4));
            embed_step_args args = {.lr = 0.1f, .eps = 1e-6f, .step = step};
            CHECK_OK(embed_update(t, grad, &args));
            be->ops->release(be, grad);
            free(host);
            free(keys);
        }
        dump d = dump_of(t);
        if (run == 0) first = d;
        CHECK_EQ(d.n, first.n);
        CHECK(d.sum == first.sum);
        embed_destroy(t);
        test_real_backend_end(be);
    }
    pool_destroy(workers);
}

enum { ZIPF_KEYS = 1 << 13, ZIPF_BATCH = 64, ZIPF_BATCHES = 1500 };

typedef struct zipf {
    double sum[ZIPF_KEYS];
} zipf;

static void zipf_init(zipf *z) {
    double sum = 0;
    for (int i = 0; i < ZIPF_KEYS; i++)
        z->sum[i] = sum += pow(i + 1, -1.05);
}

static uint64_t zipf_draw(const zipf *z, uint64_t *state) {
    double u = (double)(rig_random(state, UINT64_MAX) >> 11) * 0x1p-53 * z->sum[ZIPF_KEYS - 1];
    int low = 0, high = ZIPF_KEYS - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (z->sum[middle] < u)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint64_t)low;
}

/* One set of all slots, with exact eviction by (count, last batch): as a heap would, but by
 * scanning for the least only when needed.  Keys of the running batch stay. */
typedef struct exact {
    bool is_lfu;
    int64_t capacity, n;
    uint64_t count[ZIPF_KEYS], last[ZIPF_KEYS]; /* last: 0 is absent */
} exact;

static int worst(const exact *e, uint64_t now) {
    int at = -1;
    for (int k = 0; k < ZIPF_KEYS; k++) {
        if (e->last[k] == 0 || e->last[k] == now) continue;
        if (at < 0 || (e->is_lfu && e->count[k] != e->count[at] ? e->count[k] < e->count[at]
                                                                : e->last[k] < e->last[at]))
            at = k;
    }
    return at;
}

static bool exact_visit(exact *e, uint64_t key, uint64_t now) {
    bool is_hit = e->last[key] != 0;
    if (!is_hit && e->n == e->capacity) {
        int gone = worst(e, now);
        if (gone < 0) return false;
        e->last[gone] = 0;
        e->n--;
    }
    e->n += !is_hit;
    e->count[key] = is_hit ? e->count[key] + 1 : 1;
    e->last[key] = now;
    return is_hit;
}

static void check_hit_rate(embed_policy policy, int64_t capacity) {
    static zipf z;
    static exact e;
    backend *be = real();
    embed_table *t;
    embed_config c = small_config(policy, capacity);
    uint64_t state = 1;
    int64_t n_exact = 0, n_all = 0;
    memset(&e, 0, sizeof e);
    e.is_lfu = policy == POLICY_LFU;
    e.capacity = capacity;
    zipf_init(&z);
    CHECK_OK(embed_create(&t, be, &c));
    for (uint64_t step = 1; step <= ZIPF_BATCHES; step++) {
        uint64_t ids[ZIPF_BATCH], keys[ZIPF_BATCH];
        const embed_batch *b;
        for (int i = 0; i < ZIPF_BATCH; i++)
            ids[i] = zipf_draw(&z, &state);
        CHECK_OK(embed_fetch(t, FETCH_INSERT, ZIPF_BATCH, ids, NULL, &b));
        CHECK_OK(be->ops->copy_out(be, keys, b->keys, (size_t)b->n_unique * 8));
        n_all += b->n_unique;
        /* Hits first, as in a bucket: keys in the table are touched before any is evicted. */
        for (int pass = 0; pass < 2; pass++)
            for (int64_t u = 0; u < b->n_unique; u++)
                if ((e.last[keys[u]] != 0 && e.last[keys[u]] != step) == (pass == 0) &&
                    e.last[keys[u]] != step)
                    n_exact += exact_visit(&e, keys[u], step);
    }
    double have = (double)embed_counts_of(t)->hits[0] / (double)n_all;
    double want = (double)n_exact / (double)n_all;
    printf("    %s, %lld slots: %.4f of the keys hit, %.4f with exact eviction\n",
           embed_policy_name(policy), (long long)capacity, have, want);
    CHECK(have > want - 0.002);
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(embed_hit_rates_are_those_of_exact_eviction) {
    check_hit_rate(POLICY_LRU, 1024);
    check_hit_rate(POLICY_LFU, 1024);
}

/* 200 ids for 64 slots: those without a place read as their first values, or as zeros. */
TEST(embed_reads_rejected_ids_as_asked) {
    enum { N = 200 };
    backend *be = real();
    embed_config c = small_config(POLICY_LRU, TABLE_SLOTS);
    uint64_t ids[N];
    for (uint64_t i = 0; i < N; i++)
        ids[i] = i;
    for (int is_zero = 0; is_zero < 2; is_zero++) {
        embed_table *t;
        const embed_batch *b;
        float rows[N][DIM];
        int n_zero = 0;
        CHECK_OK(embed_create(&t, be, &c));
        CHECK_OK(embed_fetch(t, is_zero ? FETCH_INSERT_ZERO : FETCH_INSERT, N, ids, NULL, &b));
        CHECK_EQ(b->n_rejected, N - TABLE_SLOTS);
        CHECK_OK(be->ops->copy_out(be, rows, b->rows, sizeof rows));
        for (int i = 0; i < N; i++)
            n_zero += rows[i][0] == 0 && rows[i][DIM - 1] == 0;
        CHECK_EQ(n_zero, is_zero ? N - TABLE_SLOTS : 0);
        CHECK_OK(embed_fetch(t, FETCH_ZERO, N, ids, NULL, &b));
        CHECK_EQ(b->n_absent, N - TABLE_SLOTS);
        embed_destroy(t);
    }
    test_real_backend_end(be);
}

TEST(embed_admission_by_frequency_counts_exactly) {
    backend *be = real();
    embed_table *t;
    embed_config c = small_config(POLICY_LRU, 1 << 14);
    const embed_batch *b;
    uint8_t is_found;
    c.admit_count = 3;
    CHECK_OK(embed_create(&t, be, &c));
    for (uint64_t key = 0; key < 500; key++)
        for (int visit = 1; visit <= 3; visit++) {
            CHECK_OK(embed_fetch(t, FETCH_INSERT, 1, &key, NULL, &b));
            CHECK_EQ(b->n_refused, visit < 3);
            float row[DIM], first[DIM];
            CHECK_OK(be->ops->copy_out(be, row, b->rows, sizeof row));
            CHECK_OK(embed_fetch(t, FETCH_FIRST, 1, &key, NULL, &b));
            CHECK_OK(be->ops->copy_out(be, first, b->rows, sizeof first));
            CHECK(memcmp(row, first, sizeof row) == 0);
            CHECK_OK(embed_find(t, 1, &key, 0, NULL, &is_found));
            CHECK_EQ(is_found, visit == 3);
        }
    /* Repeats in one batch count each. */
    uint64_t three[] = {7777, 7777, 7777}, two[] = {8888, 8888};
    CHECK_OK(embed_fetch(t, FETCH_INSERT, 3, three, NULL, &b));
    CHECK_EQ(b->n_refused, 0);
    CHECK_OK(embed_fetch(t, FETCH_INSERT, 2, two, NULL, &b));
    CHECK_EQ(b->n_refused, 1);
    CHECK(b->refused[0] == 8888);
    CHECK_EQ(embed_counts_of(t)->n_refused, 1001);
    /* The caller may count instead; a key that is taken again is not counted, and gets no row. */
    uint64_t counted = 9999, twice = 2, once = 1;
    CHECK_OK(embed_take_rows(t, true, 1, &counted, &twice, NULL, &b));
    CHECK_EQ(b->n_refused, 1);
    for (int i = 0; i < 3; i++)
        CHECK_OK(embed_retake_rows(t, 1, &counted));
    CHECK_OK(embed_find(t, 1, &counted, 0, NULL, &is_found));
    CHECK_EQ(is_found, 0);
    CHECK_OK(embed_take_rows(t, true, 1, &counted, &once, NULL, &b));
    CHECK_EQ(b->n_refused, 0);
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(embed_admission_by_probability) {
    backend *be = real();
    embed_table *t;
    embed_config c = small_config(POLICY_LRU, 1 << 14);
    int64_t size;
    const embed_batch *b;
    uint64_t ids[4000];
    c.admit_rate = 0.25f;
    CHECK_OK(embed_create(&t, be, &c));
    for (uint64_t i = 0; i < 4000; i++)
        ids[i] = i;
    CHECK_OK(embed_fetch(t, FETCH_INSERT, 4000, ids, NULL, &b));
    CHECK_OK(embed_size(t, &size));
    CHECK(size > 900 && size < 1100);
    for (int i = 0; i < 40; i++)
        CHECK_OK(embed_fetch(t, FETCH_INSERT, 4000, ids, NULL, &b));
    CHECK_OK(embed_size(t, &size));
    CHECK(size > 3990);
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(embed_refuses_what_does_not_fit) {
    backend *be = real();
    embed_table *t;
    const embed_batch *b;
    embed_config c = small_config(POLICY_NONE, 64);
    c.capacity[1] = 64;
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "choose lru");
    c = small_config(POLICY_LRU, 0);
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "at least 1");
    c = small_config(POLICY_LRU, 64);
    c.dim = 0;
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "dimension");
    c = small_config(POLICY_LRU, 64);
    c.admit_rate = 2;
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "probability");
    c.admit_rate = NAN;
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "probability");
    c.admit_rate = 0;
    c.admit_count = EMBED_MAX_ADMIT_COUNT + 1;
    CHECK_FAILS(embed_create(&t, be, &c), ERR_CONFIG, "65536-th use");
    c = small_config(POLICY_LRU, 64);
    c.max_batch = 10;
    CHECK_OK(embed_create(&t, be, &c));
    uint64_t ids[11] = {0}, twice[2] = {5, 5};
    float rows[2 * DIM] = {0};
    CHECK_FAILS(embed_fetch(t, FETCH_INSERT, 11, ids, NULL, &b), ERR_USAGE, "made for 10");
    CHECK_FAILS(embed_fetch(t, FETCH_INSERT, -1, ids, NULL, &b), ERR_USAGE, "made for 10");
    embed_rows repeated = {2, twice, twice, (uint32_t[]){1, 1}, rows, DIM};
    CHECK_FAILS(embed_import(t, &repeated, NULL), ERR_USAGE, "more than once");
    CHECK_FAILS(embed_find(t, 2, twice, 100, rows, NULL), ERR_USAGE, "100 floats");
    CHECK_OK(embed_set_step(t, 5));
    CHECK_FAILS(embed_set_step(t, 4), ERR_USAGE, "at step 5");
    CHECK_FAILS(embed_snapshot_write(t, test_folder(), 3), ERR_USAGE, "tracks_left");
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(embed_lookup_reads_several_tables) {
    enum { N = 120, TABLES = 3 };
    backend *be = real();
    embed_table *t[TABLES], *deep;
    const embed_batch *b;
    uint64_t host[N], *ids;
    const int64_t begin[TABLES + 1] = {0, 50, 50, N}; /* nothing is asked of the second */
    float *y, rows[N * DIM], want[N * DIM];
    uint8_t *is_found, found[N];
    for (int k = 0; k < TABLES; k++) {
        embed_config c = small_config(POLICY_LRU, 640);
        c.seed = (uint64_t)k;
        CHECK_OK(embed_create(&t[k], be, &c));
    }
    for (uint64_t i = 0; i < N; i++)
        host[i] = i % 30;
    CHECK_OK(embed_fetch(t[0], FETCH_INSERT, 20, host, NULL, &b)); /* 0..19 */
    CHECK_OK(embed_fetch(t[2], FETCH_INSERT, 30, host, NULL, &b)); /* 0..29 */
    CHECK_OK(be->ops->alloc(be, (void **)&ids, sizeof host));
    CHECK_OK(be->ops->alloc(be, (void **)&y, sizeof rows));
    CHECK_OK(be->ops->alloc(be, (void **)&is_found, N));
    CHECK_OK(be->ops->copy_in(be, ids, host, sizeof host));
    CHECK_OK(embed_lookup(t, TABLES, begin, ids, y, is_found));
    CHECK_OK(be->ops->copy_out(be, rows, y, sizeof rows));
    CHECK_OK(be->ops->copy_out(be, found, is_found, N));
    CHECK_OK(embed_find(t[0], 50, host, DIM, want, NULL));
    CHECK_OK(embed_find(t[2], N - 50, host + 50, DIM, want + 50 * DIM, NULL));
    CHECK(memcmp(rows, want, sizeof rows) == 0);
    for (int i = 0; i < N; i++)
        CHECK_EQ(found[i], i >= 50 || host[i] < 20);
    embed_config c = small_config(POLICY_LRU, 64);
    c.capacity[1] = 64;
    CHECK_OK(embed_create(&deep, be, &c));
    CHECK_FAILS(embed_lookup(&deep, 1, begin, ids, y, NULL), ERR_UNSUPPORTED, "embed_fetch");
    embed_destroy(deep);
    void *const memory[] = {ids, y, is_found};
    for (int i = 0; i < 3; i++) {
        be->ops->release(be, memory[i]);
        embed_destroy(t[i]);
    }
    test_real_backend_end(be);
}

/* A gradient reaches the row even if other verbs moved the row after the fetch. */
TEST(embed_update_finds_rows_that_moved) {
    backend *be = real();
    embed_table *t;
    embed_config c = small_config(POLICY_LRU, 64);
    const embed_batch *b;
    c.capacity[1] = 640;
    CHECK_OK(embed_create(&t, be, &c));
    uint64_t key = 3, others[64], scores[64];
    uint32_t stamps[64];
    static float rows[64 * DIM];
    float before[DIM], after[DIM], *grad;
    CHECK_OK(embed_fetch(t, FETCH_INSERT, 1, &key, NULL, &b));
    CHECK_OK(be->ops->copy_out(be, before, b->rows, sizeof before));
    for (uint64_t i = 0; i < 64; i++) {
        others[i] = 100 + i;
        scores[i] = 1000;
        stamps[i] = 1;
    }
    embed_rows in = {64, others, scores, stamps, rows, DIM};
    CHECK_OK(embed_import(t, &in, NULL)); /* pushes the key down */
    int64_t n_below;
    CHECK_OK(embed_tier_size(t, 1, &n_below));
    CHECK_EQ(n_below, 1);
    CHECK_OK(embed_fetch(t, FETCH_ZERO, 1, &key, NULL, &b));
    CHECK_OK(be->ops->alloc(be, (void **)&grad, sizeof before));
    float ones[DIM] = {1, 1, 1, 1};
    CHECK_OK(be->ops->copy_in(be, grad, ones, sizeof ones));
    embed_step_args args = {.lr = 1, .step = 1};
    CHECK_OK(embed_update(t, grad, &args));
    be->ops->release(be, grad);
    CHECK_OK(embed_find(t, 1, &key, DIM, after, NULL));
    for (int d = 0; d < DIM; d++)
        CHECK(after[d] == before[d] - 1);
    embed_destroy(t);
    test_real_backend_end(be);
}

static status use_table(embed_table *t, const char *folder) {
    uint64_t ids[200];
    const embed_batch *b;
    for (uint64_t i = 0; i < 200; i++)
        ids[i] = i;
    TRY(embed_fetch(t, FETCH_INSERT, 200, ids, NULL, &b));
    TRY(embed_erase(t, 20, ids, NULL));
    TRY(embed_snapshot_write(t, folder, 0));
    return embed_snapshot_read(t, folder, NULL);
}

static status live_and_die(void *ctx) {
    int *round = ctx;
    char folder[4096], log[4096];
    backend *be = NULL;
    embed_store *store = NULL;
    embed_table *t = NULL;
    embed_config config = small_config(POLICY_LRU, 64);
    config.capacity[1] = 64;
    config.admit_count = 2;
    config.tracks_left = true;
    config.max_batch = 256;
    snprintf(folder, sizeof folder, "%s/snap-%d", test_folder(), *round);
    snprintf(log, sizeof log, "%s/log-%d", test_folder(), (*round)++);
    status st = backend_create_cpu(&be, NULL);
    if (st == OK) st = embed_store_open_file(&store, log, DIM);
    config.store = store;
    if (st == OK) st = embed_create(&t, be, &config);
    if (st == OK) st = use_table(t, folder);
    embed_destroy(t);
    embed_store_destroy(store);
    backend_destroy(be);
    return st;
}

TEST(embed_out_of_memory) {
    int round = 0;
    CHECK(oom_at_each_allocation(live_and_die, &round) > 50);
}

/* The counting sketch of the admission. */

TEST(sketch_counts_a_few_keys_exactly) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    for (uint32_t round = 1; round <= 5; round++)
        for (uint64_t key = 0; key < 500; key++)
            CHECK_EQ(sketch_add(&s, 0, table_hash(key), 2), 2 * round);
    CHECK_EQ(sketch_part_n(&s), (size_t)4 * (s.mask + 1));
    sketch_fini(&s);
    CHECK_OK(sketch_init(&s, 100000, 1, 0, 1));
    CHECK_EQ(s.mask + 1, 131072);
    sketch_fini(&s);
}

TEST(sketch_saturates) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 65000), 65000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 535), 65535);
    CHECK_EQ(sketch_add(&s, 0, table_hash(7), 1), 65535);
    CHECK_EQ(sketch_add(&s, 0, table_hash(8), UINT32_MAX), 65535);
    sketch_fini(&s);
}

/* Ten uses a counter of a row, and one more: all counts are halved. */
TEST(sketch_halves_old_counts) {
    sketch s;
    CHECK_OK(sketch_init(&s, 10, 1, 0, 1));
    uint32_t limit = 10 * (uint32_t)(s.mask + 1);
    CHECK_EQ(sketch_add(&s, 0, table_hash(1), 60000), 60000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(2), 60000), 60000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(3), limit - 120000), limit - 120000);
    CHECK_EQ(sketch_add(&s, 0, table_hash(4), 1), 1); /* over the limit: halved after this one */
    CHECK_EQ(s.n_seen[0], 0);
    CHECK_EQ(sketch_add(&s, 0, table_hash(1), 1), 30001);
    CHECK_EQ(sketch_add(&s, 0, table_hash(4), 1), 1);
    CHECK_EQ(s.n_seen[0], 2);
    sketch_fini(&s);
}

/* A part is the same whether the others are there or not, and has its own halving. */
TEST(sketch_parts_do_not_share_counters) {
    sketch whole, own;
    CHECK_OK(sketch_init(&whole, 10, 64, 0, 64));
    CHECK_OK(sketch_init(&own, 10, 64, 7, 9));
    CHECK_EQ(own.n, 2);
    CHECK_EQ(own.mask, whole.mask);
    uint32_t limit = 10 * (uint32_t)(own.mask + 1);
    for (uint64_t key = 0; key < 5000; key++) {
        int part = (int)(key % 64);
        uint32_t count = sketch_add(&whole, part, table_hash(key / 128), 3);
        if (part == 7 || part == 8)
            CHECK_EQ(sketch_add(&own, part, table_hash(key / 128), 3), count);
    }
    CHECK(memcmp(own.counter, whole.counter + 7 * sketch_part_n(&whole),
                 2 * sketch_part_n(&own) * sizeof *own.counter) == 0);
    CHECK_EQ(sketch_add(&own, 7, table_hash(1), limit), own.n_seen[0] == 0 ? limit + 6 : 0);
    CHECK(own.n_seen[1] > 0); /* part 8 was not halved */
    sketch_clear(&own);
    CHECK_EQ(own.n_seen[1], 0);
    CHECK_EQ(sketch_add(&own, 7, table_hash(1), 1), 1);
    sketch_fini(&whole);
    sketch_fini(&own);
}
