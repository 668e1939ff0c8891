/* Snapshots of dynamic tables: what was written is read, by any number of ranks; changes and
 * tombstones; damage is refused; a crash at any moment leaves whole snapshots only. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk_fault.h"
#include "embed/table_int.h"
#include "format/json.h"
#include "table_rig.h"

enum { DIM = 6 };

static embed_table *make_table(backend *be, opt_kind opt, embed_policy policy, int64_t level0,
                               int64_t level1, embed_store *store) {
    embed_table *t;
    embed_config c = {.dim = DIM,
                      .opt = opt,
                      .policy = policy,
                      .capacity = {level0, level1},
                      .max_batch = 512,
                      .seed = 3,
                      .first = FIRST_NORMAL,
                      .first_scale = 1,
                      .tracks_left = true,
                      .store = store};
    CHECK_OK(embed_create(&t, be, &c));
    return t;
}

static const char *folder_of(const char *name) {
    static char text[4][4096];
    static int at;
    at = (at + 1) % 4;
    snprintf(text[at], sizeof text[at], "%s/%s", test_folder(), name);
    return text[at];
}

static void fill(embed_table *t, uint64_t first, int64_t n) {
    const embed_batch *b;
    uint64_t ids[48];
    for (int64_t done = 0; done < n; done += 48) {
        int64_t part = n - done < 48 ? n - done : 48;
        for (int64_t i = 0; i < part; i++)
            ids[i] = (first + (uint64_t)(done + i)) * 0x9e3779b97f4a7c15ull;
        CHECK_OK(embed_fetch(t, FETCH_INSERT, part, ids, NULL, &b));
    }
}

/* A sum over all rows and what goes with them that does not depend on their order. */
typedef struct digest {
    int64_t n;
    uint64_t sum;
} digest;

static status add_rows(void *ctx, const embed_rows *rows) {
    digest *d = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        uint64_t h = table_hash(rows->keys[i]) ^ table_hash(rows->scores[i] + 77) ^
                     table_hash(rows->stamps[i] + 7777);
        for (int c = 0; c < rows->n_floats; c++) {
            uint32_t bits;
            memcpy(&bits, &rows->rows[i * rows->n_floats + c], 4);
            h = table_hash(h + bits);
        }
        d->sum += h;
    }
    d->n += rows->n;
    return OK;
}

static digest digest_of(embed_table *t) {
    digest d = {0};
    CHECK_OK(embed_export(t, 0, add_rows, &d));
    return d;
}

static void check_same(embed_table *a, embed_table *b) {
    digest x = digest_of(a), y = digest_of(b);
    CHECK_EQ(x.n, y.n);
    CHECK(x.sum == y.sum);
}

static backend *cpu(void) {
    backend *be;
    CHECK_OK(test_real_backend(&be, NULL));
    return be;
}

TEST(snapshot_is_read_as_written) {
    backend *be = cpu();
    for (int opt = OPT_SGD; opt <= OPT_ROWWISE_ADAGRAD; opt++) {
        char name[32];
        embed_store *stores[2];
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "store-%d-%d", opt, i);
            CHECK_OK(embed_store_open_file(&stores[i], folder_of(name),
                                           DIM + optimizer_n_state((opt_kind)opt, DIM)));
        }
        embed_table *t = make_table(be, (opt_kind)opt, POLICY_LFU, 128, 192, stores[0]);
        embed_table *u = make_table(be, (opt_kind)opt, POLICY_LFU, 320, 64, stores[1]);
        int64_t n_rejected;
        CHECK_OK(embed_set_step(t, 5));
        fill(t, 1, 900);
        CHECK_OK(embed_set_step(t, 9));
        fill(t, 300, 40);
        snprintf(name, sizeof name, "snap-%d", opt);
        sync_folders = 0;
        CHECK_OK(embed_snapshot_write(t, folder_of(name), 0));
        CHECK_EQ(sync_folders, 4); /* made twice; its files, before its name; its name */
        fill(u, 5000, 50);         /* goes: a full snapshot replaces */
        CHECK_OK(embed_snapshot_read(u, folder_of(name), &n_rejected));
        CHECK_EQ(n_rejected, 0);
        CHECK_EQ(embed_step(u), 9);
        CHECK_EQ(digest_of(u).n, 900);
        check_same(t, u);
        CHECK_FAILS(embed_snapshot_write(t, folder_of(name), 0), ERR_USAGE, "already");
        embed_destroy(t);
        embed_destroy(u);
        embed_store_destroy(stores[0]);
        embed_store_destroy(stores[1]);
    }
    test_real_backend_end(be);
}

/* A folder whose files are gone must not read as an empty snapshot. */
TEST(snapshot_without_its_files) {
    snapshot_info info;
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_ADAMW, POLICY_LRU, 4096, 0, NULL);
    fill(t, 1, 1500);
    CHECK_FAILS(embed_snapshot_info(folder_of("snap"), &info), ERR_FORMAT, "no rank-0-of-1 folder");
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 0));
    CHECK_OK(embed_snapshot_info(folder_of("snap"), &info));
    CHECK_EQ(info.n_rows, 1500);
    CHECK_EQ(test_command(NULL, "rm '%s'/rank-0-of-1/*", folder_of("snap")), 0);
    CHECK_FAILS(embed_snapshot_info(folder_of("snap"), &info), ERR_FORMAT, "missing");
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(snapshot_of_changes_with_tombstones) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_ADAGRAD, POLICY_LRU, 640, 0, NULL);
    embed_table *u = make_table(be, OPT_ADAGRAD, POLICY_LRU, 640, 0, NULL);
    uint64_t erased[30];
    fill(t, 1, 300);
    CHECK_OK(embed_snapshot_write(t, folder_of("full"), 0));
    CHECK_OK(embed_set_step(t, 2));
    fill(t, 400, 100);
    for (uint64_t i = 0; i < 30; i++)
        erased[i] = (i + 10) * 0x9e3779b97f4a7c15ull;
    CHECK_OK(embed_erase(t, 30, erased, NULL));
    fill(t, 12, 3); /* back again: no tombstone may kill it */
    float row[2 * DIM] = {1, 2, 3, 4, 5, 6};
    const embed_rows written = {
        1,      (uint64_t[]){200 * 0x9e3779b97f4a7c15ull}, (uint64_t[]){9}, (uint32_t[]){2}, row,
        2 * DIM};
    CHECK_OK(embed_import(t, &written, NULL));
    CHECK_OK(embed_snapshot_write(t, folder_of("changes"), 2));
    CHECK_OK(embed_set_step(t, 3));
    fill(t, 1000, 900); /* evicts most others: evicted keys are tombstones too */
    CHECK_OK(embed_snapshot_write(t, folder_of("more"), 3));
    snapshot_info info;
    CHECK_OK(embed_snapshot_info(folder_of("changes"), &info));
    CHECK_EQ(info.n_rows, 104);
    CHECK_EQ(info.n_gone, 27);
    CHECK_FAILS(embed_snapshot_read(u, folder_of("more"), NULL), ERR_USAGE, "in between");
    CHECK_OK(embed_snapshot_read(u, folder_of("full"), NULL));
    CHECK_EQ(digest_of(u).n, 300);
    CHECK_OK(embed_set_step(u, 2));
    CHECK_OK(embed_snapshot_read(u, folder_of("changes"), NULL));
    CHECK_EQ(digest_of(u).n, 300 + 100 - 27);
    CHECK_OK(embed_set_step(u, 3));
    CHECK_OK(embed_snapshot_read(u, folder_of("more"), NULL));
    uint8_t is_found[1];
    CHECK_OK(embed_find(u, 1, (uint64_t[]){15 * 0x9e3779b97f4a7c15ull}, 0, NULL, is_found));
    CHECK_EQ(is_found[0], 0);
    check_same(t, u);
    embed_destroy(t);
    embed_destroy(u);
    test_real_backend_end(be);
}

/* Any changed byte of any file is noticed before the table is touched. */
TEST(snapshot_damaged_anywhere_is_refused) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_SGD, POLICY_LRU, 128, 0, NULL);
    uint64_t state = 1;
    fill(t, 1, 20);
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 0));
    digest before = digest_of(t);
    static const char *const names[] = {"rows-00000.safetensors", "manifest.json"};
    for (int k = 0; k < 2; k++) {
        char path[4096];
        struct stat about;
        snprintf(path, sizeof path, "%s/rank-0-of-1/%s", folder_of("snap"), names[k]);
        CHECK_EQ(stat(path, &about), 0);
        for (int i = 0; i < 150; i++) {
            long at = (long)rig_random(&state, (uint64_t)about.st_size);
            FILE *f = fopen(path, "r+b");
            CHECK(f != NULL);
            fseek(f, at, SEEK_SET);
            int c = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(c ^ (1 << rig_random(&state, 7)), f);
            fflush(f);
            status st = embed_snapshot_read(t, folder_of("snap"), NULL);
            CHECK(st != OK);
            if (st == ERR_FORMAT) {
                CHECK_CONTAINS(status_reason(), folder_of("snap/rank-0-of-1"));
                CHECK_CONTAINS(status_reason(), "use another one");
            }
            digest now = digest_of(t);
            CHECK(now.n == before.n && now.sum == before.sum);
            fseek(f, at, SEEK_SET);
            fputc(c, f);
            fclose(f);
        }
    }
    CHECK_OK(embed_snapshot_read(t, folder_of("snap"), NULL));
    embed_destroy(t);
    test_real_backend_end(be);
}

TEST(snapshot_killed_at_any_moment_is_whole_or_not_there) {
    backend *be = cpu();
    uint64_t state = 3;
    int n_whole = 0;
    if (test_on.kind == ON_CUDA) SKIP_TEST("CUDA does not survive a fork");
    embed_table *t = make_table(be, OPT_ADAMW, POLICY_LRU, 8192, 0, NULL);
    fill(t, 1, 4000);
    digest want = digest_of(t);
    for (int round = 0; round < 40; round++) {
        char name[32];
        snprintf(name, sizeof name, "snap-%d", round);
        const char *folder = folder_of(name);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(embed_snapshot_write(t, folder, 0) == OK ? 0 : 1);
        usleep((useconds_t)rig_random(&state, 5000));
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, NULL, 0), child);
        if (!embed_is_snapshot(folder)) {
            /* The next attempt clears away what this one left. */
            CHECK_OK(embed_snapshot_write(t, folder, 0));
        } else {
            n_whole++;
        }
        embed_table *u = make_table(be, OPT_ADAMW, POLICY_LRU, 8192, 0, NULL);
        CHECK_OK(embed_snapshot_read(u, folder, NULL));
        digest have = digest_of(u);
        CHECK(have.n == want.n && have.sum == want.sum);
        embed_destroy(u);
    }
    printf("    %d of 40 were done before the kill\n", n_whole);
    embed_destroy(t);
    test_real_backend_end(be);
}

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK_EQ(fwrite(bytes, 1, n, f), n);
    CHECK_EQ(fclose(f), 0);
}

/* Two ranks, Adam state, ages as scores. */
TEST(snapshot_imports_raw_dumps) {
    enum { N = 50 };
    backend *be = cpu();
    const char *folder = folder_of("dump");
    embed_table *t = make_table(be, OPT_ADAMW, POLICY_LRU, 256, 0, NULL);
    int64_t n_imported;
    char name[4200];
    CHECK_EQ(mkdir(folder, 0777), 0);
    for (int rank = 0; rank < 2; rank++) {
        int64_t keys[N], ages[N];
        float values[N][DIM], state[N][2 * DIM];
        for (int i = 0; i < N; i++) {
            keys[i] = -3 + 2 * i + rank;
            ages[i] = 1000 - keys[i];
            for (int c = 0; c < 2 * DIM; c++) {
                state[i][c] = (float)(keys[i] * 100 + c);
                if (c < DIM) values[i][c] = (float)(keys[i] * 1000 + c);
            }
        }
        snprintf(name, sizeof name, "item_emb_keys.rank_%d.world_size_2", rank);
        write_bytes(folder, name, keys, sizeof keys);
        snprintf(name, sizeof name, "item_emb_values.rank_%d.world_size_2", rank);
        write_bytes(folder, name, values, sizeof values);
        snprintf(name, sizeof name, "item_emb_scores.rank_%d.world_size_2", rank);
        write_bytes(folder, name, ages, sizeof ages);
        snprintf(name, sizeof name, "item_emb_opt_values.rank_%d.world_size_2", rank);
        write_bytes(folder, name, state, sizeof state);
    }
    CHECK_OK(embed_import_dump(t, folder, "item", true, &n_imported));
    CHECK_EQ(n_imported, 2 * N);
    for (int64_t key = -3; key < 97; key++) {
        float row[3 * DIM];
        uint8_t is_found;
        CHECK_OK(embed_find(t, 1, (const uint64_t *)&key, 3 * DIM, row, &is_found));
        CHECK_EQ(is_found, 1);
        for (int c = 0; c < DIM; c++) {
            CHECK(row[c] == (float)(key * 1000 + c));
            CHECK(row[DIM + c] == (float)(key * 100 + c));
            CHECK(row[2 * DIM + c] == (float)(key * 100 + DIM + c));
        }
    }
    /* Without optimizer values rows begin with the first state. */
    embed_config config = *embed_config_of(t);
    embed_destroy(t);
    config.first_state = 0.5f;
    CHECK_OK(embed_create(&t, be, &config));
    for (int rank = 0; rank < 2; rank++) {
        snprintf(name, sizeof name, "%s/item_emb_opt_values.rank_%d.world_size_2", folder, rank);
        CHECK_EQ(unlink(name), 0);
    }
    CHECK_OK(embed_import_dump(t, folder, "item", true, &n_imported));
    float stateless[3 * DIM];
    CHECK_OK(embed_find(t, 1, (const uint64_t[]){5}, 3 * DIM, stateless, NULL));
    for (int c = 0; c < 2 * DIM; c++)
        CHECK(stateless[DIM + c] == 0.5f);
    CHECK(stateless[1] == 5001);
    CHECK_FAILS(embed_import_dump(t, folder, "user", true, &n_imported), ERR_IO, "user_emb");
    write_bytes(folder, "item_emb_values.rank_1.world_size_2", "abc", 3);
    CHECK_FAILS(embed_import_dump(t, folder, "item", true, &n_imported), ERR_FORMAT, "no rows of");
    embed_destroy(t);
    test_real_backend_end(be);
}

/* Steps that the table has not seen have no changes, which would be an empty snapshot. */
TEST(snapshot_refuses_steps_that_are_none) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_SGD, POLICY_LRU, 128, 0, NULL);
    const char *folder = folder_of("snap");
    fill(t, 1, 20);
    CHECK_FAILS(embed_snapshot_write(t, folder, -1), ERR_USAGE, "since step -1");
    CHECK_FAILS(embed_snapshot_write(t, folder, 2), ERR_USAGE, "is at step 1");
    CHECK_FAILS(embed_snapshot_write(t, folder, (int64_t)1 << 32), ERR_USAGE, "since step");
    CHECK_OK(embed_snapshot_write(t, folder, 0));
    CHECK_EQ(digest_of(t).n, 20);
    embed_destroy(t);
    test_real_backend_end(be);
}

/* One character of the manifest is another one, and its seal fits. */
static void change_manifest(const char *at, size_t offset, char c) {
    char path[4096], text[8192] = {0}, want[9];
    snprintf(path, sizeof path, "%s/rank-0-of-1/manifest.json", folder_of("snap"));
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fread(text, 1, sizeof text - 1, f) > 0);
    char *name = strstr(text, at);
    CHECK(name != NULL);
    name[offset] = c;
    char *digits = json_seal(text, strlen(text), want);
    CHECK(digits != NULL);
    memcpy(digits, want, 8);
    fseek(f, 0, SEEK_SET);
    CHECK_EQ(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

/* A reader makes room for the rows that a manifest counts. */
TEST(snapshot_counts_no_more_rows_than_it_has) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_SGD, POLICY_LRU, 128, 0, NULL);
    snapshot_info info;
    fill(t, 1, 20);
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 0));
    change_manifest("\"rows\": 20", strlen("\"rows\": "), '9');
    CHECK_FAILS(embed_snapshot_info(folder_of("snap"), &info), ERR_FORMAT,
                "counts more rows than its files have");
    embed_destroy(t);
    test_real_backend_end(be);
}

/* A list of keys to erase counts only with its checksum. */
TEST(snapshot_must_list_its_tombstones) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_SGD, POLICY_LRU, 128, 0, NULL);
    char from[4096], to[4096];
    fill(t, 1, 20);
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 1));
    snprintf(from, sizeof from, "%s/rank-0-of-1/gone.safetensors", folder_of("snap"));
    snprintf(to, sizeof to, "%s/rank-0-of-1/Gone.safetensors", folder_of("snap"));
    CHECK_EQ(link(from, to), 0);
    change_manifest("gone.safetensors", 0, 'G');
    CHECK_FAILS(embed_snapshot_read(t, folder_of("snap"), NULL), ERR_FORMAT,
                "does not list all files");
    CHECK_EQ(digest_of(t).n, 20);
    embed_destroy(t);
    test_real_backend_end(be);
}

/* The clock of an LRU table continues from the scores of a dump, and must fit a manifest. */
TEST(snapshot_refuses_dumps_of_times_that_are_none) {
    backend *be = cpu();
    embed_table *t = make_table(be, OPT_SGD, POLICY_LRU, 128, 0, NULL);
    const char *folder = folder_of("dump");
    uint64_t key = 7, score = UINT64_MAX;
    float values[DIM] = {1};
    int64_t n_imported;
    CHECK_EQ(mkdir(folder, 0777), 0);
    write_bytes(folder, "item_emb_keys.rank_0.world_size_1", &key, sizeof key);
    write_bytes(folder, "item_emb_values.rank_0.world_size_1", values, sizeof values);
    write_bytes(folder, "item_emb_scores.rank_0.world_size_1", &score, sizeof score);
    CHECK_FAILS(embed_import_dump(t, folder, "item", false, &n_imported), ERR_FORMAT,
                "time of use");
    score = INT64_MAX;
    write_bytes(folder, "item_emb_scores.rank_0.world_size_1", &score, sizeof score);
    CHECK_OK(embed_import_dump(t, folder, "item", false, &n_imported));
    CHECK_EQ(n_imported, 1);
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 0));
    CHECK_OK(embed_snapshot_read(t, folder_of("snap"), NULL));
    embed_destroy(t);
    test_real_backend_end(be);
}

/* A table continues with the sketch and its count of uses. */
TEST(snapshot_keeps_the_sketch) {
    backend *be = cpu();
    embed_table *t;
    embed_config c = {
        .dim = DIM, .policy = POLICY_LRU, .capacity = {128, 0}, .max_batch = 512, .admit_count = 2};
    CHECK_OK(embed_create(&t, be, &c));
    fill(t, 1, 20);
    CHECK_OK(embed_snapshot_write(t, folder_of("snap"), 0));
    fill(t, 1, 20);
    CHECK_OK(embed_snapshot_read(t, folder_of("snap"), NULL));
    uint64_t n = 0;
    for (int i = 0; i < embed_n_shards(t); i++)
        n += t->seen.n_seen[i];
    CHECK_EQ(n, 20);
    embed_destroy(t);
    test_real_backend_end(be);
}

/* Keys that left in a later step are still to be told. */
TEST(snapshot_forgets_only_keys_that_left_before) {
    embed_gone gone[] = {{10, 5}, {11, 4}, {12, 6}};
    embed_table t = {.gone = gone, .n_gone = 3};
    embed_forget_left(&t, 5);
    CHECK(t.n_gone == 2 && gone[0].key == 10 && gone[1].key == 12);
}

TEST(snapshot_shape_of_a_dump_of_one_column) {
    int32_t dim;
    int64_t n;
    opt_kind opt;
    const char zeros[16] = {0};
    write_bytes(test_folder(), "t_emb_keys.rank_0.world_size_1", zeros, 16);
    write_bytes(test_folder(), "t_emb_values.rank_0.world_size_1", zeros, 8);
    CHECK_OK(embed_dump_shape(test_folder(), "t", &dim, &opt, &n));
    CHECK(dim == 1 && n == 2 && opt == OPT_SGD);
    write_bytes(test_folder(), "t_emb_values.rank_0.world_size_1", zeros, 4);
    CHECK_FAILS(embed_dump_shape(test_folder(), "t", &dim, &opt, &n), ERR_FORMAT, "are no rows");
}
