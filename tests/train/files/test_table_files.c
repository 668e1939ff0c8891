/* Snapshots of a run's tables, their export and their import, from the command line to the files.
 */
#include <dirent.h>
#include <sys/stat.h>

#include "embed/snapshot.h"
#include "table_run.h"

#define TABLE "movies/DynamicEmbeddingArgs."

/* The output of `hstu ARGS` in the test's folder; free it. */
static char *said(int code, const char *args) {
    char *text;
    int got = test_command(&text, "cd %s && ASAN_OPTIONS=detect_leaks=0 %s %s", test_folder(),
                           test_program(), args);
    if (got != code) FAIL_TEST("hstu %s: exit code %d, wanted %d:\n%s", args, got, code, text);
    return text;
}

static void check_says(int code, const char *args, const char *part) {
    char *text = said(code, args);
    CHECK_CONTAINS(text, part);
    free(text);
}

static table_run tracked(const char *set, int64_t every) {
    table_run r = {.n_threads = 2, .snapshot_every = every};
    if (set != NULL) r.set[r.n_set++] = set;
    return r;
}

static snapshot_info info_at(const char *run, int step) {
    char path[1024];
    snapshot_info info;
    snprintf(path, sizeof path, "%s/snapshots/step-%08d/table-0-mo_vies", run_path(run), step);
    CHECK_OK(embed_snapshot_info(path, &info));
    return info;
}

static bool has_snapshot(const char *run, int step) {
    char path[1024];
    snprintf(path, sizeof path, "%s/snapshots/step-%08d", run_path(run), step);
    return folder_exists(path);
}

/* A table for a quarter of the ids: rows are evicted and come back between the snapshots.  Merged
 * they are the table of the checkpoint, and a chain up to a step is the table of that step. */
static void check_chain(const char *set) {
    table_run plain = tracked(set, 0), r = tracked(set, 7), cut_short = tracked(set, 0);
    CHECK_OK(train(&plain, "plain", 0, 30, false));
    CHECK_OK(train(&r, "run", 0, 30, false));
    CHECK(same_file(run_path("plain"), run_path("run"), "model.safetensors"));
    CHECK(same_tables(run_path("plain"), run_path("run"))); /* watching changes nothing */
    CHECK_EQ(info_at("run", 7).since, 0);
    int64_t n_gone = 0;
    for (int step = 14; step <= 28; step += 7) {
        CHECK_EQ(info_at("run", step).since, step - 7);
        CHECK_EQ(info_at("run", step).step, step);
        n_gone += info_at("run", step).n_gone;
    }
    CHECK(n_gone > 20);
    CHECK_EQ(info_at("run", 30).since, 28); /* the last step */
    free(said(0, "import tables run/snapshots/step-* --out whole"));
    CHECK(same_snapshots(run_path("whole/table-0-mo_vies"), run_path("run/last/table-0-mo_vies")));
    CHECK_OK(train(&cut_short, "short", 0, 21, false));
    free(said(0, "import tables run/snapshots/step-000000[012][0147] --out part"));
    CHECK(same_snapshots(run_path("part/table-0-mo_vies"), run_path("short/last/table-0-mo_vies")));
}

TEST(table_files_snapshots_make_the_table) {
    check_chain(quarter);
}

TEST(table_files_snapshots_of_rows_that_expire) {
    check_chain(TABLE "steps_to_live=5");
}

/* A chain that lacks a link, or has one in the wrong place. */
TEST(table_files_snapshots_in_another_order_are_refused) {
    table_run r = tracked(quarter, 5);
    CHECK_OK(train(&r, "run", 0, 20, false));
    check_says(2, "import tables run/snapshots/step-00000010 --out x", "name the full snapshot");
    check_says(2, "import tables run/snapshots/step-00000005 run/snapshots/step-00000015 --out x",
               "read the snapshots in between first");
    check_says(2,
               "import tables run/snapshots/step-00000005 run/snapshots/step-00000010 "
               "run/snapshots/step-00000015 run/snapshots/step-00000010 --out x",
               "from the oldest to the newest");
    check_says(1, "import tables nowhere --out x", "nowhere: no such folder");
    check_says(1, "import tables data --out x", "say --table NAME");
    CHECK(!folder_exists(run_path("x")));
}

/* Snapshots after the checkpoint from which a run resumes are written again, starting with a full
 * one: the keys that left in between are not known. */
TEST(table_files_snapshots_of_a_resumed_run) {
    table_run r = tracked(quarter, 5);
    CHECK_OK(train(&r, "run", 0, 13, false)); /* a checkpoint at 13, and snapshots at 5, 10, 13 */
    CHECK(has_snapshot("run", 13));
    CHECK_EQ(test_command(NULL, "cp -r %s/snapshots/step-00000013 %s/snapshots/step-00000017",
                          run_path("run"), run_path("run")),
             0);
    CHECK_EQ(test_command(NULL, "mkdir %s/snapshots/.step-00000014.tmp", run_path("run")), 0);
    CHECK_OK(train(&r, "run", 0, 22, true));
    CHECK(has_snapshot("run", 10) && !has_snapshot("run", 17));
    CHECK(!folder_exists(run_path("run/snapshots/.step-00000014.tmp")));
    CHECK_EQ(info_at("run", 15).since, 0);
    CHECK_EQ(info_at("run", 20).since, 15);
    free(said(0, "import tables run/snapshots/step-* --out whole"));
    CHECK(same_snapshots(run_path("whole/table-0-mo_vies"), run_path("run/last/table-0-mo_vies")));
}

TEST(table_files_snapshots_need_a_dynamic_table) {
    table_run r = tracked("BenchmarkDatasetArgs.embedding_args=[@movies/EmbeddingArgs()]", 5);
    CHECK_FAILS(train(&r, "run", 1, 0, false), ERR_CONFIG, "--snapshot-every");
    CHECK(!folder_exists(run_path("run"))); /* or the next attempt would find a run there */
}

/* A user may move a snapshot to a larger disk and leave a link: the link goes, not what it leads
 * to.
 */
TEST(table_files_snapshots_that_are_links_are_not_followed) {
    table_run r = tracked(quarter, 5);
    CHECK_OK(train(&r, "run", 0, 10, false));
    CHECK_EQ(test_command(NULL,
                          "cd %s && mkdir elsewhere && touch elsewhere/manifest.json elsewhere/x "
                          "&& ln -s ../../elsewhere run/snapshots/step-00000015",
                          test_folder()),
             0);
    CHECK_OK(train(&r, "run", 0, 15, true));
    CHECK(file_exists(run_path("elsewhere/manifest.json")) && file_exists(run_path("elsewhere/x")));
    CHECK_EQ(info_at("run", 15).since, 0);
}

/* Whatever the folders hold besides tables, and however a path is written. */
TEST(table_files_of_odd_folders) {
    table_run r = tracked(quarter, 0);
    CHECK_OK(train(&r, "run", 0, 3, false));
    free(said(0, "export run --what tables --out out"));
    check_says(2, "info out", "name one of them (out/table-");
    /* "." and ".." stand for the table's own name. */
    CHECK_EQ(mkdir(run_path("in"), 0777), 0);
    int code = test_command(NULL,
                            "cd %s/out/table-0-mo_vies/rank-0-of-1 && ASAN_OPTIONS=detect_leaks=0 "
                            "%s import tables .. --out %s/in/there",
                            test_folder(), test_program(), test_folder());
    CHECK_EQ(code, 0);
    CHECK(!folder_exists(run_path("in/rank-0-of-1")));
    CHECK(same_snapshots(run_path("in/there/table-0-mo_vies"), run_path("out/table-0-mo_vies")));
    /* Pipes would be waited for, and links lead anywhere. */
    CHECK_EQ(test_command(NULL,
                          "cd %s && ln -s /etc out/table-0-mo_vies/etc && mkfifo run/last/pipe && "
                          "ln -s nowhere run/last/link && ln -s /etc run/last/table-0-mo_vies/etc",
                          test_folder()),
             0);
    free(said(0, "export run --what tables --out again"));
    CHECK(!folder_exists(run_path("again/table-0-mo_vies/etc")));
    free(said(0, "import tables out --out run"));
    CHECK_OK(checkpoint_verify(run_path("run/last")));
    CHECK(!folder_exists(run_path("run/last/table-0-mo_vies/etc")));
    /* A folder with the name of a table and nothing in it. */
    CHECK_EQ(mkdir(run_path("out/table-1-empty"), 0777), 0);
    check_says(1, "import tables out --out x", "out/table-1-empty: no snapshot of a dynamic table");
    CHECK(!folder_exists(run_path("x")));
    /* A failure leaves nothing beside the checkpoint, nor what a killed import left. */
    CHECK_EQ(mkdir(run_path("run/checkpoints/.step-00000003.1.tmp"), 0777), 0);
    check_says(1, "import tables out --out run", "table-1-empty");
    CHECK_EQ(
        test_command(NULL, "test \"$(ls -A %s)\" = step-00000003", run_path("run/checkpoints")), 0);
    CHECK_OK(checkpoint_verify(run_path("run/last")));
}

/* More files than there may be tables: a table of 16 GiB has as many. */
TEST(table_files_of_many_files_are_copied) {
    table_run r = tracked(quarter, 0);
    CHECK_OK(train(&r, "run", 0, 3, false));
    CHECK_EQ(test_command(NULL,
                          "cd %s/last/table-0-mo_vies/rank-0-of-1 && touch $(seq -f more-%%g 300)",
                          run_path("run")),
             0);
    free(said(0, "export run --what tables --out out"));
    CHECK(file_exists(run_path("out/table-0-mo_vies/rank-0-of-1/more-300")));
}

/* One process at a time writes to a run. */
TEST(table_files_are_not_imported_while_the_run_trains) {
    table_run r = tracked(quarter, 0);
    int lock;
    CHECK_OK(train(&r, "run", 0, 3, false));
    free(said(0, "export run --what tables --out out"));
    CHECK_OK(run_lock(run_path("run"), &lock));
    check_says(2, "import tables out --out run", "another process");
    CHECK_FAILS(train(&r, "run", 0, 6, true), ERR_USAGE, "trains this run or imports");
    free(said(0, "export run --what tables --out more")); /* reading is free */
    run_unlock(lock);
    free(said(0, "import tables out --out run"));
    CHECK_OK(train(&r, "run", 0, 6, true));
}

/* The command line's way, with a table put back into its run. */
TEST(table_files_of_a_run_are_exported_and_imported) {
    table_run r = tracked(quarter, 10);
    CHECK_OK(train(&r, "run", 0, 20, false));
    check_says(0, "export run --what tables --out out", "1 table");
    CHECK(same_snapshots(run_path("out/table-0-mo_vies"), run_path("run/last/table-0-mo_vies")));
    /* The folder of one table, however its path ends. */
    check_says(0, "import tables out/table-0-mo_vies// --out one", "1 table");
    CHECK(same_snapshots(run_path("one/table-0-mo_vies"), run_path("out/table-0-mo_vies")));
    check_says(0, "export run/last --what weights --out w.safetensors", "the weights of");
    CHECK_EQ(test_command(NULL, "cmp %s/w.safetensors %s/last/model.safetensors", test_folder(),
                          run_path("run")),
             0);
    check_says(2, "export run --what tables --out out", "choose another --out");
    check_says(0, "export run --what weights --out w.safetensors", "the weights of");
    check_says(2, "export run --what soup --out i",
               "items, components, users, weights, tables or events");
    check_says(1, "export run --what tables --format pt --out i", "safetensors only");
    check_says(2, "export run --out i", "--what and --out are needed");
    check_says(2, "import nvidia x --out i", "--gin-config-file, --data and --out are needed");
    check_says(2, "import soup x --out i", "cannot be imported");
    check_says(2, "import tables out", "--out are needed");
    check_says(2, "import tables out --out i --evict-strategy fifo", "lru, lfu or step");
    /* Ten steps back: the run's checkpoint takes the older table, and stays whole. */
    check_says(0, "import tables run/snapshots/step-00000010 --out run", "1 table");
    CHECK_OK(checkpoint_verify(run_path("run/last")));
    CHECK(same_snapshots(run_path("run/snapshots/step-00000010/table-0-mo_vies"),
                         run_path("run/last/table-0-mo_vies")));
    r.snapshot_every = 0;
    CHECK_OK(train(&r, "run", 0, 25, true));
    /* A table with another optimizer, or with a name that the run does not have, is refused. */
    table_run sgd = tracked("OptimizerArgs.optimizer_str='sgd'", 0);
    CHECK_OK(train(&sgd, "sgd", 0, 3, false));
    check_says(2, "import tables out --out sgd", "rows of 8 values for adam");
    CHECK_EQ(
        test_command(NULL, "mv %s %s", run_path("out/table-0-mo_vies"), run_path("out/table-7")),
        0);
    check_says(2, "import tables out --out sgd", "has no table 'table-7'");
    CHECK_OK(checkpoint_verify(run_path("sgd/last")));
}

static void write_item(const char *item, int rank, const void *bytes, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/dump/mo_vies_emb_%s.rank_%d.world_size_2", test_folder(), item,
             rank);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* Two ranks' raw files of dynamicemb, Adam's state and ages included. */
TEST(table_files_of_dynamicemb_are_imported) {
    enum { N = 60, DIM = 8 };
    CHECK_EQ(mkdir(run_path("dump"), 0777), 0);
    for (int rank = 0; rank < 2; rank++) {
        int64_t keys[N], ages[N];
        float values[N][DIM], state[N][2 * DIM];
        for (int i = 0; i < N; i++) {
            keys[i] = 1 + 2 * i + rank;
            ages[i] = 1000 - keys[i];
            for (int c = 0; c < 2 * DIM; c++) {
                state[i][c] = (float)(keys[i] * 10 + c);
                if (c < DIM) values[i][c] = (float)keys[i] / 64 + (float)c;
            }
        }
        write_item("keys", rank, keys, sizeof keys);
        write_item("values", rank, values, sizeof values);
        write_item("scores", rank, ages, sizeof ages);
        write_item("opt_values", rank, state, sizeof state);
    }
    check_says(0, "import tables dump --table mo_vies --out dir", "1 table of 120 rows in dir");
    all_rows *all = rows_in(run_path("dir/table-0-mo_vies"));
    CHECK_EQ(all->n, 2 * N);
    for (int id = 1; id <= 2 * N; id++) {
        CHECK(all->is_there[id] && all->score[id] == (uint64_t)id - 1); /* the oldest is 0 */
        for (int c = 0; c < DIM; c++)
            CHECK(all->row[id][c] == (float)id / 64 + (float)c);
        for (int c = 0; c < 2 * DIM; c++)
            CHECK(all->row[id][DIM + c] == (float)(id * 10 + c));
    }
    free(all);
    check_says(0, "info dir/table-0-mo_vies", "optimizer adam, eviction lru");
    /* Into a run: its ids are the dump's keys. */
    table_run r = tracked(NULL, 0);
    CHECK_OK(train(&r, "run", 0, 3, false));
    check_says(0, "import tables dump --table mo_vies --out run", "1 table of 120 rows");
    all_rows *new_ones = rows_in(run_path("run/last/table-0-mo_vies"));
    all = rows_in(run_path("dir/table-0-mo_vies"));
    CHECK(memcmp(all->score, new_ones->score, sizeof all->score) == 0);
    CHECK(memcmp(all->row, new_ones->row, sizeof all->row) == 0);
    /* The rows are as new as the run: with the step of a new table they would soon expire. */
    CHECK_EQ(all->stamp[5], 1);
    CHECK_EQ(new_ones->stamp[5], 3);
    free(new_ones);
    free(all);
    CHECK_OK(train(&r, "run", 0, 6, true));
    check_says(2, "import tables dump --table users --out run", "has no table 'users'");
    /* A folder has the table's name in plain letters; so a run finds its table by the true name. */
    CHECK_EQ(
        test_command(NULL, "cd %s/dump && for f in *; do cp $f mo.${f#mo_}; done", test_folder()),
        0);
    check_says(0, "import tables dump --table mo.vies --out plain", "1 table of 120 rows");
    CHECK(folder_exists(run_path("plain/table-0-mo_vies")));
    check_says(0, "import tables dump --table mo.vies --out run", "1 table of 120 rows");
    CHECK_EQ(test_command(NULL,
                          "cd %s/dump && printf '\\0\\0\\300\\177' | dd bs=4 seek=9 conv=notrunc "
                          "of=mo.vies_emb_values.rank_1.world_size_2 2>/dev/null",
                          test_folder()),
             0);
    check_says(1, "import tables dump --table mo.vies --out x",
               "table-0-mo_vies: the row of key 4 holds numbers that are not finite");
    CHECK(!folder_exists(run_path("x")));
    check_says(1, "import tables dump --table users --out dir2", "no users_emb_keys");
    check_says(2, "import tables dump dump --table mo_vies --out dir2", "a dump is one folder");
    check_says(0, "import tables dump --table mo_vies --evict-strategy lfu --out counted",
               "120 rows");
    all = rows_in(run_path("counted/table-0-mo_vies"));
    CHECK(all->score[5] == 995ull << 32);
    free(all);
}
