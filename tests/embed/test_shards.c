/* Tables that several ranks hold together: shards, and the same rows on any number of ranks. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "embed/table_int.h"
#include "ops/comm.h"
#include "table_run.h"

enum { DIM = 8, N_BATCHES = 24, BATCH = 150 };

/* A table, and what is done with it. */
typedef struct shard_case {
    embed_config config;
    bool is_one_shard; /* all ids are of one shard, which is not the first */
    bool has_parts;    /* a full snapshot in the middle, an incremental one at the end */
    int64_t n_ids;
    int64_t file_rows;  /* of a file of the snapshot; 0: all */
    int victim;         /* rank, from 1 on, that cannot write a file; 0: none */
    int no_memory;      /* each allocation of rank 1 fails in turn, at least so many; 0: none */
    const char *folder; /* of the snapshot */
    const char *from;   /* read before anything is done; or NULL */
} shard_case;

static uint64_t mix(uint64_t x) {
    return table_hash(x + 0x1234567);
}

/* Ids of a batch, each once: low ones more often than high ones. */
static int64_t draw_ids(const shard_case *c, const embed_table *t, int number, uint64_t *ids) {
    bool is_there[MAX_IDS] = {false};
    int64_t n = 0;
    for (int i = 0; i < BATCH; i++) {
        double u = (double)(mix((uint64_t)(number * BATCH + i)) >> 11) / 9007199254740992.0;
        uint64_t id = (uint64_t)(u * u * (double)c->n_ids);
        if (c->is_one_shard && embed_shard_of(t, id) != embed_n_shards(t) - 1) continue;
        if (is_there[id]) continue;
        is_there[id] = true;
        ids[n++] = id;
    }
    return n;
}

/* Batch after batch: this rank's ids are taken and updated. */
static void run_batch(const shard_case *c, embed_table *t, int rank, int number) {
    uint64_t ids[BATCH], own[BATCH], uses[BATCH];
    float rows[BATCH * DIM], grad[BATCH * DIM];
    const embed_batch *got;
    int64_t n = draw_ids(c, t, number, ids), n_own = 0;
    for (int64_t i = 0; i < n; i++) {
        if (embed_rank_of(t, ids[i]) != rank) continue;
        uses[n_own] = 1 + ids[i] % 3;
        for (int k = 0; k < DIM; k++)
            grad[n_own * DIM + k] =
                (float)(mix(ids[i] * DIM + (uint64_t)(k + number)) % 1000) / 1e3f;
        own[n_own++] = ids[i];
    }
    embed_step_args step = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .step = number + 1};
    CHECK_OK(embed_take_rows(t, true, n_own, own, uses, rows, &got));
    CHECK_OK(embed_set_step(t, number + 1));
    CHECK_OK(embed_step_rows(t, grad, &step));
    if (number % 5 == 4) CHECK_OK(embed_expire(t, NULL));
}

static void write_snapshot(embed_table *t, const char *folder, const char *part, int64_t since) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, part);
    CHECK_OK(embed_snapshot_write(t, path, since));
}

static status write_without_room(embed_table *t, const shard_case *c, int rank);
static void write_without_memory(embed_table *t, const shard_case *c, int rank);

static status run_case(const shard_case *c, comm *ranks, backend *be) {
    embed_config own = c->config;
    embed_table *t;
    int rank = ranks != NULL ? ranks->rank : 0;
    own.comm = ranks;
    TRY(embed_create(&t, be, &own));
    t->file_rows = c->file_rows;
    if (c->from != NULL) CHECK_OK(embed_snapshot_read(t, c->from, NULL));
    for (int i = 0; i < N_BATCHES && c->from == NULL; i++) {
        run_batch(c, t, rank, i);
        if (c->has_parts && i == N_BATCHES / 2) {
            write_snapshot(t, c->folder, "first", 0);
            embed_forget_left(t, embed_step(t));
        }
    }
    write_snapshot(t, c->folder, "last", 0);
    if (c->victim > 0) CHECK_OK(write_without_room(t, c, rank));
    if (c->has_parts) write_snapshot(t, c->folder, "since", N_BATCHES / 2 + 1);
    if (c->no_memory > 0) write_without_memory(t, c, rank);
    embed_destroy(t);
    return OK;
}

/* On n ranks, 0: in this process. */
static status run_on(const shard_case *c, int n) {
    transport *t;
    backend *be;
    comm *ranks = NULL;
    status st = n == 0 ? OK : ranks_fork(&t, n, 500);
    if (n > 0 && t == NULL) return st;
    CHECK_OK(backend_create_cpu(&be, NULL));
    if (n > 0) CHECK_OK(comm_create_host(&ranks, be, t));
    st = run_case(c, ranks, be);
    comm_destroy(ranks);
    backend_destroy(be);
    if (n == 0) return st;
    st = ranks_leave(t, st);
    if (st != OK) fprintf(stderr, "said: %s\n", status_reason());
    fflush(NULL);
    _exit(status_exit_code(st));
}

static bool same_bytes(const char *folder_a, const char *folder_b, const char *name) {
    char a[1024], b[1024];
    file_map x, y;
    snprintf(a, sizeof a, "%s/%s", folder_a, name);
    snprintf(b, sizeof b, "%s/%s", folder_b, name);
    CHECK_OK(file_map_open(&x, a));
    CHECK_OK(file_map_open(&y, b));
    bool is_same = x.n_bytes == y.n_bytes && memcmp(x.bytes, y.bytes, x.n_bytes) == 0;
    file_map_close(&x);
    file_map_close(&y);
    return is_same;
}

/* The files of the snapshots have the same bytes on any number of ranks; the manifest has the
 * checksums of the others, and counts. */
static void check_case(shard_case c, const char *const *names, size_t n_names) {
    static const int sizes[] = {2, 3, 8};
    char one[256], many[256];
    snprintf(one, sizeof one, "%s/one", test_folder());
    c.folder = one;
    CHECK_OK(run_on(&c, 0));
    for (int i = 0; i < 3; i++) {
        snprintf(many, sizeof many, "%s/many%d", test_folder(), sizes[i]);
        c.folder = many;
        CHECK_OK(run_on(&c, sizes[i]));
        for (size_t k = 0; k < n_names; k++)
            CHECK(same_bytes(one, many, names[k]));
    }
}

static const char *const last_files[] = {"last/rank-0-of-1/manifest.json",
                                         "last/rank-0-of-1/rows-00000.safetensors"};

/* Eight buckets for more ids than they hold: the least recently used rows leave. */
TEST(shards_of_one_level_evict_as_one_rank) {
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LRU,
                               .capacity = {8 * 64, 0},
                               .max_batch = BATCH},
                    .n_ids = 1000};
    snapshot_info info;
    check_case(c, last_files, 2);
    CHECK_OK(embed_snapshot_info(run_path("many8/last"), &info));
    CHECK(info.n_rows > 400 && info.slots[0] == 512);
}

/* Rows move between levels, and get a row at the second use: counts are by shard, too.  A sketch of
 * a table before there were shards would be forgotten. */
TEST(shards_of_two_levels_admit_as_one_rank) {
    const char *const names[] = {last_files[0], last_files[1], "last/rank-0-of-1/seen.safetensors"};
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LFU,
                               .capacity = {3 * 64, 6 * 64},
                               .max_batch = BATCH,
                               .admit_count = 4,
                               .admit_rate = 0.7f},
                    .n_ids = 1000};
    snapshot_info info;
    check_case(c, names, 3);
    CHECK_OK(embed_snapshot_info(run_path("many3/last"), &info));
    CHECK(info.tier_rows[0] > 50 && info.tier_rows[1] > 50 && info.n_seen > 100);
}

/* Incremental snapshots: rows expire and are evicted between the two. */
TEST(shards_write_what_changed_as_one_rank) {
    const char *const names[] = {last_files[0], last_files[1], "first/rank-0-of-1/manifest.json",
                                 "since/rank-0-of-1/manifest.json",
                                 "since/rank-0-of-1/gone.safetensors"};
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ROWWISE_ADAGRAD,
                               .policy = POLICY_STEP,
                               .capacity = {7 * 64, 0},
                               .max_batch = BATCH,
                               .ttl = 6,
                               .tracks_left = true},
                    .n_ids = 1000,
                    .has_parts = true};
    snapshot_info info;
    check_case(c, names, 5);
    CHECK_OK(embed_snapshot_info(run_path("many3/since"), &info));
    CHECK(info.n_gone > 50 && info.n_rows > 50);
}

/* One bucket is one shard: rank 0 holds all rows, more ranks than shards have none.  And ids that
 * are all of one shard of 16, whose holder has all the work. */
TEST(shards_may_be_fewer_than_ranks_or_unused) {
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_SGD,
                               .policy = POLICY_NONE,
                               .capacity = {64, 0},
                               .max_batch = BATCH},
                    .n_ids = 200};
    check_case(c, last_files, 2);
    for (int n = 0; n <= 8; n++) {
        char name[16];
        snprintf(name, sizeof name, n == 0 ? "one" : "many%d", n);
        folder_remove(run_path(name), 3);
    }
    c.config.policy = POLICY_LRU;
    c.config.capacity[0] = 16 * 64;
    c.n_ids = 1000;
    c.is_one_shard = true;
    check_case(c, last_files, 2);
}

/* What 3 ranks wrote is read by 8, 1 and 2: no row is lost, and none is twice. */
TEST(shards_are_read_by_another_number_of_ranks) {
    static const int sizes[] = {8, 0, 2};
    char written[256], again[256], from[300], to[300];
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LRU,
                               .capacity = {5 * 64, 10 * 64},
                               .max_batch = BATCH,
                               .admit_count = 2},
                    .n_ids = 1000};
    snprintf(written, sizeof written, "%s/three", test_folder());
    snprintf(from, sizeof from, "%s/last", written);
    c.folder = written;
    CHECK_OK(run_on(&c, 3));
    c.from = from;
    for (int i = 0; i < 3; i++) {
        snprintf(again, sizeof again, "%s/again%d", test_folder(), i);
        snprintf(to, sizeof to, "%s/last", again);
        c.folder = again;
        CHECK_OK(run_on(&c, sizes[i]));
        CHECK(same_snapshots(from, to));
        CHECK(same_bytes(from, to, "rank-0-of-1/seen.safetensors"));
    }
}

/* Files of 100 rows, in which rows of several ranks and levels meet. */
TEST(shards_fill_several_files_as_one_rank) {
    const char *const names[] = {
        "last/rank-0-of-1/manifest.json",           "last/rank-0-of-1/rows-00000.safetensors",
        "last/rank-0-of-1/rows-00001.safetensors",  "last/rank-0-of-1/rows-00004.safetensors",
        "since/rank-0-of-1/rows-00001.safetensors", "since/rank-0-of-1/gone.safetensors",
        "since/rank-0-of-1/manifest.json"};
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LRU,
                               .capacity = {3 * 64, 6 * 64},
                               .max_batch = BATCH,
                               .tracks_left = true},
                    .n_ids = 1000,
                    .has_parts = true,
                    .file_rows = 100};
    snapshot_info info;
    check_case(c, names, sizeof names / sizeof *names);
    CHECK_OK(embed_snapshot_info(run_path("many3/last"), &info));
    CHECK(info.n_files == (info.n_rows + 99) / 100 && info.n_files > 4);
}

static status write_without_room(embed_table *t, const shard_case *c, int rank) {
    struct rlimit small = {1000, 1000};
    char path[512];
    signal(SIGXFSZ, SIG_IGN);
    snprintf(path, sizeof path, "%s/full", c->folder);
    if (rank == c->victim) CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_FAILS(embed_snapshot_write(t, path, 0), ERR_IO,
                "rows-00000.safetensors: cannot be written");
    CHECK_CONTAINS(status_reason(), "rank 2: ");
    CHECK(!embed_is_snapshot(path));
    return OK;
}

/* One rank has no room: all fail, with its number, and there is no snapshot. */
TEST(shards_without_room_name_the_rank) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/run", test_folder());
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LRU,
                               .capacity = {8 * 64, 0},
                               .max_batch = BATCH},
                    .n_ids = 1000,
                    .victim = 2,
                    .folder = folder};
    CHECK_OK(run_on(&c, 3));
}

static int until_failure;

static void *count_alloc(void *ctx, size_t bytes) {
    void *block;
    (void)ctx;
    if (--until_failure == 0 || posix_memalign(&block, 64, bytes) != 0) return NULL;
    return block;
}

static void *count_resize(void *ctx, void *block, size_t bytes) {
    if (block == NULL) return count_alloc(ctx, bytes);
    return --until_failure == 0 ? NULL : (realloc)(block, bytes);
}

static void count_release(void *ctx, void *block) {
    (void)ctx;
    (free)(block);
}

/* Allocation after allocation of rank 1 fails, until a snapshot needs fewer. */
static void write_without_memory(embed_table *t, const shard_case *c, int rank) {
    const mem_allocator counted = {count_alloc, count_resize, count_release, NULL};
    comm *ranks = t->config.comm;
    for (int k = 1;; k++) {
        char path[512];
        int64_t is_done = 0;
        snprintf(path, sizeof path, "%s/memory%d", c->folder, k);
        until_failure = k;
        if (rank == 1) mem_set_allocator(&counted);
        status st = embed_snapshot_write(t, path, N_BATCHES / 2 + 1);
        if (rank == 1) mem_set_allocator(NULL);
        if (st != OK) CHECK_CONTAINS(status_reason(), "rank 1: ");
        if (st != OK) CHECK(!embed_is_snapshot(path));
        is_done = rank == 1 && until_failure > 0;
        CHECK_OK(comm_host_reduce(ranks, COMM_I64, COMM_MAX, 1, &is_done)); /* still in step */
        if (is_done) CHECK(st == OK && k > c->no_memory);
        if (is_done) return;
    }
}

/* Whichever allocation of a rank fails: all ranks fail, with its number, and are in step. */
TEST(shards_without_memory_name_the_rank) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/run", test_folder());
    shard_case c = {.config = {.dim = DIM,
                               .opt = OPT_ADAMW,
                               .policy = POLICY_LRU,
                               .capacity = {5 * 64, 0},
                               .max_batch = BATCH,
                               .admit_count = 2,
                               .tracks_left = true},
                    .n_ids = 1000,
                    .has_parts = true,
                    .no_memory = 8,
                    .folder = folder};
    CHECK_OK(run_on(&c, 3));
}

static status check_shares(embed_config c, transport *t) {
    enum { N = 4000 };
    embed_table *table;
    backend *be;
    comm *ranks;
    static uint64_t all[N];
    static float values[N * DIM];
    static uint8_t is_found[N];
    int64_t n_own = 0, n, n_rejected, n_erased;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(comm_create_host(&ranks, be, t));
    c.comm = ranks;
    CHECK_OK(embed_create(&table, be, &c));
    CHECK_EQ(embed_n_shards(table), EMBED_SHARDS);
    CHECK_EQ(embed_n_own_slots(table) * t->size, c.capacity[0] + c.capacity[1]);
    for (uint64_t id = 0; id < N; id++) {
        all[id] = id;
        CHECK(embed_shard_of(table, id) >= 0 && embed_shard_of(table, id) < EMBED_SHARDS);
        if (embed_rank_of(table, id) == t->rank) n_own++;
    }
    /* Rows of other ranks are left out by imports, not found, and not erased. */
    CHECK_OK(embed_insert(table, N, all, values, &n_rejected));
    CHECK_EQ(n_rejected, 0);
    CHECK_OK(embed_size(table, &n));
    CHECK_EQ(n, n_own);
    CHECK(fabs((double)n * t->size / N - 1) < 0.2); /* the share of a rank */
    CHECK_OK(embed_find(table, N, all, DIM, values, is_found));
    n = 0;
    for (int64_t i = 0; i < N; i++) {
        n += is_found[i];
        CHECK_EQ(is_found[i], embed_rank_of(table, all[i]) == t->rank);
    }
    all_reduce_args a = {COMM_I64, COMM_SUM, 1, &n, &n};
    CHECK_OK(ranks->ops->all_reduce(ranks, &a));
    CHECK_EQ(n, N);
    CHECK_OK(embed_erase(table, N, all, &n_erased));
    CHECK_EQ(n_erased, n_own);
    embed_destroy(table);
    comm_destroy(ranks);
    backend_destroy(be);
    return OK;
}

/* 1024 shards; a rank of four has the memory and the rows of a quarter. */
TEST(shards_are_held_by_their_ranks_alone) {
    embed_config c = {.dim = DIM,
                      .opt = OPT_SGD,
                      .policy = POLICY_LRU,
                      .capacity = {1536 * 64, 0},
                      .max_batch = 64};
    transport *t;
    status st = ranks_fork(&t, 4, 500);
    if (t == NULL) {
        CHECK_OK(st);
        return;
    }
    st = ranks_leave(t, st == OK ? check_shares(c, t) : st);
    fflush(NULL);
    _exit(status_exit_code(st));
}
