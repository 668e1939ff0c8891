#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "disk_fault.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "nn/params.h"
#include "oom.h"
#include "train_test.h"

/* Parameters without a model: a table of rows, a matrix and a vector. */
typedef struct toy {
    backend *be;
    param params[3];
    optimizer optimizer;
    float store[6][64];
    checkpoint c;
} toy;

static const char toy_config[] = "{\"source\":{\"task\":\"retrieval\"}}";

/* What its vocabulary is made of. */
static const int64_t toy_ids[5] = {0, 3, 5, 8, 13};
static const seq_file toy_names = {.n_items = 4, .time_per_second = 1, .item_id = toy_ids};

/* One backend for all toys of a test; it has no state that they share. */
static backend *toy_backend;

static void toy_make(toy *t, float start) {
    static const int64_t shape[3][2] = {{5, 4}, {4, 3}, {7, 0}};
    static const char *const names[3] = {"table", "layer.w", "layer.bias"};
    static moments state[3];
    *t = (toy){0};
    if (toy_backend == NULL) CHECK_OK(backend_create_cpu(&toy_backend, NULL));
    t->be = toy_backend;
    for (int i = 0; i < 3; i++) {
        param *p = &t->params[i];
        snprintf(p->name, sizeof p->name, "%s", names[i]);
        p->n_dims = i < 2 ? 2 : 1;
        p->shape[0] = shape[i][0], p->shape[1] = shape[i][1];
        p->n = i < 2 ? shape[i][0] * shape[i][1] : shape[i][0];
        p->value = t->store[i];
        for (int64_t k = 0; k < p->n; k++)
            p->value[k] = start + (float)(i * 100 + k) / 3;
    }
    for (int i = 0; i < 3; i++) {
        static float m[3][64], v[3][64];
        for (int k = 0; k < 64; k++)
            m[i][k] = start - (float)k / 7, v[i][k] = start + (float)k;
        state[i] = (moments){m[i], v[i]};
    }
    t->optimizer = (optimizer){.rows = ROWS_DENSE, .kind = OPT_ADAMW, .state = state};
    t->c = (checkpoint){.be = t->be,
                        .data = &toy_names,
                        .params = t->params,
                        .n_params = 3,
                        .optimizer = &t->optimizer};
    t->c.state =
        (train_state){.seed = UINT64_MAX,
                      .step = 7,
                      .epoch = 2,
                      .split.rule = split_rule_of(SPLIT_LEAVE_TWO_OUT),
                      .batches = {.seed = 9, .epoch = 2, .next_batch = 3, .data = 1ull << 63},
                      .in_epoch = {.1 + .2, 3, 4, 1e-9},
                      .in_round = {.5, 5, 6, 2},
                      .first_loss = 4.95,
                      .loss_scale = 256,
                      .n_good_steps = 31,
                      .best_metric = .25,
                      .best_step = 5};
    snprintf(t->c.state.batches.settings, sizeof t->c.state.batches.settings, "toy");
}

static void toy_free(void) {
    backend_destroy(toy_backend);
}

static status toy_save(toy *t, const char *run, uint64_t step, int keep, bool is_best) {
    t->c.state.step = step;
    return checkpoint_save(&t->c, run, toy_config, "float32", keep, is_best);
}

static const char *in_run(const char *run, const char *name) {
    static char path[4][CHECKPOINT_PATH_BYTES + 64];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", run, name);
    return p;
}

TEST(checkpoint_round_trip_is_exact) {
    toy a, b;
    const char *run = run_path("run");
    char folder[CHECKPOINT_PATH_BYTES];
    toy_make(&a, 1.5f);
    CHECK_OK(toy_save(&a, run, 7, 2, false));
    toy_make(&b, 0);
    CHECK_OK(checkpoint_find(run, folder));
    CHECK_OK(checkpoint_load(&b.c, folder));
    for (int i = 0; i < 3; i++) {
        CHECK(memcmp(a.params[i].value, b.params[i].value, (size_t)a.params[i].n * 4) == 0);
        /* The toys share their moments: the moments of `b` were overwritten and are restored. */
        CHECK(b.optimizer.state[i].m[1] == 1.5f - 1.0f / 7);
        CHECK(b.optimizer.state[i].v[2] == 3.5f);
    }
    const train_state *s = &b.c.state;
    CHECK(s->seed == UINT64_MAX && s->step == 7 && s->epoch == 2);
    CHECK(s->split.rule.kind == SPLIT_LEAVE_TWO_OUT && s->batches.data == 1ull << 63);
    CHECK(s->batches.next_batch == 3 && s->in_epoch.loss == .1 + .2 && s->in_epoch.seconds == 1e-9);
    CHECK(s->in_epoch.n_loss == 3 && s->in_epoch.n_tokens == 4 && s->first_loss == 4.95);
    CHECK(s->in_round.loss == .5 && s->in_round.n_loss == 5 && s->in_round.n_tokens == 6);
    CHECK(s->loss_scale == 256 && s->n_good_steps == 31);
    CHECK(s->best_metric == .25 && s->best_step == 5);
    CHECK_STR(s->batches.settings, "toy");
    /* Only float16 runs have a loss scale. */
    a.c.state.loss_scale = 0;
    CHECK_OK(toy_save(&a, run, 8, 2, false));
    CHECK_OK(checkpoint_find(run, folder));
    CHECK_OK(checkpoint_load(&b.c, folder));
    CHECK(b.c.state.loss_scale == 0 && b.c.state.n_good_steps == 0);
    toy_free();
}

/* Puts the seal right, as somebody who forges a manifest would. */
static void reseal(const char *folder) {
    char path[CHECKPOINT_PATH_BYTES + 64], want[9], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    CHECK_OK(file_read_all(path, 1 << 16, &text, &n));
    char *digits = json_seal(text, n, want);
    CHECK(digits != NULL);
    memcpy(digits, want, 8);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(text, 1, n, f) == n && fclose(f) == 0);
    mem_free(text);
}

/* A manifest may only name files of its own folder, and has no keys but its own. */
TEST(checkpoint_with_a_manifest_of_other_files_is_refused) {
    static const struct {
        const char *edit, *want;
    } edits[] = {
        {"s|\"files\": *\\[|&{\"name\":\"../x\",\"bytes\":0,\"xxh64\":\"0\"},|",
         "names a file elsewhere"},
        {"s|\"files\": *\\[|&{\"name\":\"\",\"bytes\":0,\"xxh64\":\"0\"},|",
         "names a file elsewhere"},
        {"s|\"files\": *\\[|\"tables\":[{\"name\":\"table-0/../x\",\"seal\":\"0\"}],&|",
         "names a table elsewhere"},
        {"s|\"files\": *\\[|\"tables\":[{\"name\":\"tables\",\"seal\":\"0\"}],&|",
         "names a table elsewhere"},
        {"s|\"files\"|\"filed\"|", "has the unknown key 'filed'"},
        {"s|\"files\": *\\[|\"tables\":3,&|", "lists no tables"},
        {"s|\"files\": *\\[|\"files\":3,\"tables\":[|", "lists no files"},
        {"s|\"files\": *\\[|\"tablez\":[],&|", "has the unknown key 'tablez'"},
        {"s|\"files\": *\\[|&{\"name\":\"x\",\"bytes\":0,\"xxh64\":\"0\",\"y\":1},|",
         "has the unknown key 'y'"},
        {"s|\"files\": *\\[|\"tables\":[{\"seal\":\"0\",\"nam\":\"table-0\"}],&|",
         "has the unknown key 'nam'"},
        {"s|\"files\": *\\[|&3,|", "lists no object"},
        {"s|\"step\": 2|\"step\": 3|", "state.json is of step 21, manifest.json of 31"},
        {"s|\"step\": 2|\"step\": -2|", "manifest.json of -22"},
        {"s|checkpoint 2|checkpoint 1|", "is a format this version does not know"},
    };
    toy a, b;
    char folder[CHECKPOINT_PATH_BYTES];
    toy_make(&a, 1);
    toy_make(&b, 0);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *run = run_path("run");
        CHECK_OK(toy_save(&a, run, 10 + i, 1, false));
        CHECK_OK(checkpoint_find(run, folder));
        CHECK_EQ(test_command(NULL, "sed -i '%s' %s/manifest.json", edits[i].edit, folder), 0);
        CHECK_FAILS(checkpoint_load(&b.c, folder),
                    strstr(edits[i].edit, "checkpoint 1") != NULL ? ERR_UNSUPPORTED : ERR_FORMAT,
                    strstr(edits[i].edit, "checkpoint 1") != NULL
                        ? edits[i].want
                        : "it does not fit its own checksum");
        reseal(folder);
        status st = checkpoint_load(&b.c, folder);
        CHECK(st == ERR_FORMAT || st == ERR_UNSUPPORTED);
        CHECK_CONTAINS(status_reason(), edits[i].want);
    }
    toy_free();
}

/* A vocabulary gives the numbers of a model their meaning: it is there, and it is the checkpoint's
 * own. */
TEST(checkpoint_without_its_vocabulary_is_refused) {
    toy a;
    char folder[CHECKPOINT_PATH_BYTES];
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("run"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("run"), folder));
    CHECK_OK(checkpoint_verify(folder));
    CHECK_EQ(test_command(NULL, "echo x >%s/vocabulary.seq", folder), 0);
    CHECK_FAILS(checkpoint_verify(folder), ERR_FORMAT, "vocabulary.seq");
    CHECK(unlink(in_run(folder, "vocabulary.seq")) == 0);
    CHECK_FAILS(checkpoint_verify(folder), ERR_FORMAT, "vocabulary.seq");
    CHECK_FAILS(checkpoint_seal(folder, 7, NULL), ERR_IO, "vocabulary.seq");
    CHECK_EQ(test_command(NULL,
                          "sed -i '/vocabulary.seq/,/xxh64/d; s/state.json/vocabulary.seq/' "
                          "%s/manifest.json",
                          folder),
             0);
    reseal(folder);
    CHECK_FAILS(checkpoint_verify(folder), ERR_FORMAT, "it does not list all files");
    toy_free();
}

/* No bit of a manifest may change, not even in a blank. */
TEST(checkpoint_refuses_every_flip_of_its_manifest) {
    toy a;
    char folder[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES + 64];
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("run"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("run"), folder));
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && setvbuf(f, NULL, _IONBF, 0) == 0 && fseek(f, 0, SEEK_END) == 0);
    long n = ftell(f);
    for (long i = 0; i < 8 * n; i++) {
        CHECK(fseek(f, i / 8, SEEK_SET) == 0);
        int byte = fgetc(f);
        CHECK(fseek(f, i / 8, SEEK_SET) == 0 && fputc(byte ^ 1 << i % 8, f) != EOF);
        status st = checkpoint_verify(folder);
        if (st != ERR_FORMAT && st != ERR_UNSUPPORTED)
            FAIL_TEST("bit %ld of byte %ld: %s", i % 8, i / 8, status_name(st));
        CHECK(fseek(f, i / 8, SEEK_SET) == 0 && fputc(byte, f) != EOF);
    }
    fclose(f);
    CHECK_OK(checkpoint_verify(folder));
    toy_free();
}

/* The folder's name, the manifest and the state are of one step; a copy elsewhere may have any
 * name. */
TEST(checkpoint_under_the_name_of_another_step_is_refused) {
    toy a;
    const char *run = run_path("run");
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, 7, 2, false));
    CHECK_EQ(test_command(NULL,
                          "cd %s/checkpoints && cp -r step-00000007 step-00000012 && cp -r "
                          "step-00000007 ../kept && cp -r step-00000007 ../step-12",
                          run),
             0);
    CHECK_FAILS(checkpoint_verify(in_run(run, "checkpoints/step-00000012")), ERR_FORMAT,
                "it holds step 7");
    CHECK_OK(checkpoint_verify(in_run(run, "kept")));
    CHECK_OK(checkpoint_verify(in_run(run, "step-12")));
    CHECK_OK(checkpoint_verify(in_run(run, "last")));
    toy_free();
}

/* What stands under a checkpoint's name but is none: said at the start of a training, and never a
 * reason for pruning to go round and round. */
TEST(checkpoint_names_that_are_something_else) {
    static const char *const makes[] = {"touch step-00000001", "cp -r step-00000020 step-5",
                                        "mkfifo step-00000001", "ln -s nowhere step-00000001",
                                        "mkdir step-x"};
    toy a;
    const char *run = run_path("run");
    toy_make(&a, 1);
    for (size_t i = 0; i < sizeof makes / sizeof *makes; i++) {
        CHECK_EQ(test_command(NULL, "rm -rf %s", run), 0);
        CHECK_OK(checkpoint_check_run(run));
        CHECK_OK(toy_save(&a, run, 20, 1, false));
        CHECK_OK(checkpoint_check_run(run));
        CHECK_EQ(test_command(NULL, "cd %s/checkpoints && %s", run, makes[i]), 0);
        CHECK_FAILS(checkpoint_check_run(run), ERR_FORMAT, "no checkpoint's folder");
        CHECK_OK(toy_save(&a, run, 30, 1, false));
        CHECK_EQ(test_command(NULL, "test -e %s/checkpoints/step-00000020", run), 1);
        CHECK_EQ(test_command(NULL, "ls %s/checkpoints | grep -v step-00000030 | grep -q .", run),
                 0);
    }
    toy_free();
}

/* A run goes back to an older checkpoint: what it saves then replaces what it saved before. */
TEST(checkpoint_of_an_earlier_way_is_replaced) {
    toy a, b;
    const char *run = run_path("run");
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, 7, 5, false));
    CHECK_OK(toy_save(&a, run, 8, 5, false));
    CHECK_EQ(test_command(NULL, "cd %s && ln -sfn checkpoints/step-00000007 last", run), 0);
    toy_make(&b, 5);
    CHECK_OK(toy_save(&b, run, 8, 5, false));
    toy_make(&a, 0);
    CHECK_OK(checkpoint_load(&a.c, in_run(run, "last")));
    CHECK(a.params[0].value[0] == 5);
    CHECK_EQ(test_command(NULL, "ls -A %s/checkpoints | grep -q tmp", run), 1);
    toy_free();
}

/* Links lead out of the run: they are removed, what they lead to stays. */
TEST(checkpoint_links_are_not_followed) {
    toy a;
    const char *run = run_path("run");
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, 10, 1, false));
    CHECK_EQ(test_command(NULL,
                          "cd %s && mkdir -p ../out/in && touch ../out/manifest.json ../out/in/x "
                          "&& ln -s ../../out checkpoints/.step-1.tmp && ln -s ../../out "
                          "checkpoints/step-00000001 && mkdir checkpoints/.step-2.tmp && ln -s "
                          "../../../out checkpoints/.step-2.tmp/out",
                          run),
             0);
    CHECK_OK(toy_save(&a, run, 20, 1, false));
    CHECK_EQ(test_command(NULL, "cd %s && test -e ../out/manifest.json -a -e ../out/in/x", run), 0);
    CHECK_EQ(test_command(NULL, "cd %s/checkpoints && test $(ls -A) = step-00000020", run), 0);
    toy_free();
}

TEST(checkpoint_opens_as_safetensors_with_documented_names) {
    toy a;
    st_file *f;
    const st_tensor *t;
    const char *run = run_path("run");
    toy_make(&a, 2);
    CHECK_OK(toy_save(&a, run, 7, 2, false));
    CHECK_OK(st_open(&f, in_run(run, "last/model.safetensors")));
    CHECK_EQ(f->n_tensors, 3);
    CHECK_OK(st_get(f, "layer.w", ST_F32, &t));
    CHECK(t->n_dims == 2 && t->shape[0] == 4 && t->shape[1] == 3);
    CHECK(((const float *)t->data)[1] == 2 + 101.0f / 3);
    CHECK_STR(st_metadata(f, "dtype_str"), "float32");
    CHECK_STR(st_metadata(f, "config"), toy_config);
    st_close(f);
    CHECK_OK(st_open(&f, in_run(run, "last/optimizer.safetensors")));
    CHECK(f->n_tensors == 6 && st_find(f, "table.m") != NULL && st_find(f, "table.v") != NULL);
    st_close(f);
    toy_free();
}

/* Every byte of every file is covered by a checksum: a flipped byte is found, and so is every
 * truncation. */
static void damage(const char *path, long at, bool cuts) {
    if (cuts) {
        CHECK(truncate(path, at) == 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0);
    int byte = fgetc(f);
    CHECK(fseek(f, at, SEEK_SET) == 0 && fputc(byte ^ 16, f) != EOF);
    CHECK(fclose(f) == 0);
}

static void check_damage(toy *b, const char *folder, const char *name, bool cuts) {
    char path[CHECKPOINT_PATH_BYTES + 64], kept[CHECKPOINT_PATH_BYTES + 128];
    file_map map;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(kept, sizeof kept, "%s.kept", path);
    CHECK_OK(file_map_open(&map, path));
    long n = (long)map.n_bytes;
    file_map_close(&map);
    CHECK_EQ(test_command(NULL, "cp %s %s", path, kept), 0);
    for (long at = 0; at < n; at += n / 23 + 1) {
        damage(path, at, cuts);
        status st = checkpoint_load(&b->c, folder);
        if (st == OK)
            FAIL_TEST("%s %s at byte %ld went unseen", name, cuts ? "cut" : "flipped", at);
        CHECK(st == ERR_FORMAT || st == ERR_UNSUPPORTED);
        CHECK_CONTAINS(status_reason(), folder);
        if (st == ERR_FORMAT) CHECK_CONTAINS(status_reason(), "Use an older one");
        CHECK_EQ(test_command(NULL, "cp %s %s", kept, path), 0);
    }
    CHECK(unlink(kept) == 0);
    CHECK_OK(checkpoint_load(&b->c, folder));
}

/* Any first digit is allowed after "step-", and nothing but digits. */
TEST(checkpoint_step_of_a_name) {
    CHECK_EQ(checkpoint_step_of("step-00000012"), 12);
    CHECK_EQ(checkpoint_step_of("step-00000000"), 0);
    CHECK_EQ(checkpoint_step_of("step-90000000"), 90000000);
    CHECK_EQ(checkpoint_step_of("step-900000000000"), 900000000000);
    static const char *const others[] = {
        "step-",  "step--1",           "step- 1",
        "step-:", "step-00000012.tmp", "last-00000012",
        "step-5", "step-000000005",    "step-99999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK_EQ(checkpoint_step_of(others[i]), -1);
}

/* A run that was killed before its link: the newest step counts, also where that is 0. */
TEST(checkpoint_is_found_without_its_link) {
    static const char *const step[] = {"step-00000000", "step-00000002", "step-00000001"};
    char folder[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES];
    const char *run = run_path("run");
    CHECK(!checkpoint_is_to_come(run));
    CHECK_EQ(test_command(NULL, "mkdir -p %s/checkpoints && : >%s/config.json", run, run), 0);
    CHECK(checkpoint_is_to_come(run));
    CHECK_FAILS(checkpoint_find(run, folder), ERR_FORMAT, "the run has no checkpoint yet");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", run, step[i]);
        CHECK_EQ(mkdir(path, 0777), 0);
        CHECK(!checkpoint_is_to_come(run));
        CHECK_OK(checkpoint_find(run, folder));
        CHECK_CONTAINS(folder, step[i == 0 ? 0 : 1]);
    }
}

TEST(checkpoint_finds_every_damage) {
    toy a;
    char folder[CHECKPOINT_PATH_BYTES];
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "manifest.json"};
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("run"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("run"), folder));
    for (int i = 0; i < 4; i++) {
        check_damage(&a, folder, names[i], false);
        check_damage(&a, folder, names[i], true);
    }
    CHECK(unlink(in_run(folder, "state.json")) == 0);
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, "state.json: the file is missing");
    CHECK_CONTAINS(status_reason(), "Use an older one");
    CHECK(unlink(in_run(folder, "manifest.json")) == 0);
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, "never finished");
    toy_free();
}

TEST(checkpoint_of_another_model_is_refused) {
    toy a;
    char folder[CHECKPOINT_PATH_BYTES];
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("run"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("run"), folder));
    a.params[1].shape[0] = 3, a.params[1].shape[1] = 4;
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT,
                "'layer.w' has the shape (4, 3), but the model here has (3, 4)");
    toy_make(&a, 1);
    snprintf(a.params[2].name, sizeof a.params[2].name, "other");
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, "'other' is missing");
    toy_make(&a, 1);
    a.c.n_params = 2;
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, "3 tensors, but the model here has 2");
    toy_make(&a, 1);
    a.optimizer.rows = ROWS_LAZY;
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, "the modes do not mix");
    CHECK_FAILS(checkpoint_find(run_path("none"), folder), ERR_IO, "no such folder");
    CHECK_FAILS(checkpoint_find(test_folder(), folder), ERR_FORMAT, "neither a checkpoint");
    toy_free();
}

/* Sets one value of a checkpoint's file, and makes its manifest fit. */
static void forge_value(const char *folder, const char *file, const char *tensor, int64_t i,
                        float value) {
    char path[CHECKPOINT_PATH_BYTES + 64];
    st_file *f;
    const st_tensor *t;
    file_map map;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    CHECK_OK(st_open(&f, path));
    CHECK_OK(st_get(f, tensor, ST_F32, &t));
    CHECK_OK(file_map_open(&map, path));
    const float *from = (const float *)t->data + i; /* found again by what follows it */
    size_t n = (size_t)(t->n - i) * sizeof *from, at = 0;
    while (at + n < map.n_bytes && memcmp(map.bytes + at, from, n) != 0)
        at++;
    file_map_close(&map);
    st_close(f);
    FILE *out = fopen(path, "r+b");
    CHECK(out != NULL && fseek(out, (long)at, SEEK_SET) == 0);
    CHECK(fwrite(&value, sizeof value, 1, out) == 1 && fclose(out) == 0);
    CHECK_OK(checkpoint_seal(folder, 7, NULL));
}

/* Values that only another program can have written. */
TEST(checkpoint_with_values_that_are_not_finite_is_refused) {
    toy a;
    char folder[CHECKPOINT_PATH_BYTES];
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("run"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("run"), folder));
    forge_value(folder, "model.safetensors", "layer.w", 0, 3e38f);
    CHECK_OK(checkpoint_load(&a.c, folder));
    CHECK(a.params[1].value[0] == 3e38f);
    forge_value(folder, "model.safetensors", "layer.w", 10, NAN);
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_NUMERIC,
                "model.safetensors: row 3 of 'layer.w' holds a number that is not finite");
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run_path("other"), 7, 2, false));
    CHECK_OK(checkpoint_find(run_path("other"), folder));
    forge_value(folder, "optimizer.safetensors", "table.v", 0, -INFINITY);
    CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_NUMERIC, "row 0 of 'table.v'");
    toy_free();
}

/* A checkpoint whose state says `value` of a count. */
static void save_count(toy *a, const char *run, const char *key, const char *value, char *folder) {
    CHECK_OK(toy_save(a, run, 7, 2, false));
    CHECK_OK(checkpoint_find(run, folder));
    CHECK_EQ(test_command(NULL, "sed -i '0,/\"%s\": [0-9]*/s//\"%s\": %s/' %s/state.json", key, key,
                          value, folder),
             0);
    CHECK_OK(checkpoint_seal(folder, 7, NULL));
}

/* Counts at the end of their range would overflow with the next step. */
TEST(checkpoint_with_counts_that_no_run_reaches_is_refused) {
    static const char *const keys[] = {"epoch", "loss_positions", "tokens", "best_step"};
    static const char *const values[] = {"9223372036854775807", "9007199254740993"};
    toy a;
    char folder[CHECKPOINT_PATH_BYTES], want[64], run[16];
    toy_make(&a, 1);
    for (int i = 0; i < 8; i++) {
        const char *key = keys[i / 2], *value = values[i % 2];
        snprintf(want, sizeof want, "'%s' is %s", key, value);
        snprintf(run, sizeof run, "counts-%d", i);
        save_count(&a, run_path(run), key, value, folder);
        CHECK_FAILS(checkpoint_load(&a.c, folder), ERR_FORMAT, want);
    }
    save_count(&a, run_path("whole"), "tokens", "9007199254740992", folder);
    CHECK_OK(checkpoint_load(&a.c, folder));
    toy_free();
}

TEST(checkpoint_keeps_the_newest_and_the_best) {
    toy a;
    const char *run = run_path("run");
    char *text;
    toy_make(&a, 1);
    for (uint64_t step = 10; step <= 60; step += 10)
        CHECK_OK(toy_save(&a, run, step, 2, step == 20));
    CHECK_EQ(test_command(&text, "cd %s && ls -A checkpoints && readlink last best", run), 0);
    CHECK_STR(text, "step-00000020\nstep-00000050\nstep-00000060\ncheckpoints/step-00000060\n"
                    "checkpoints/step-00000020\n");
    free(text);
    /* The next save removes what a killed run left. */
    CHECK_EQ(test_command(NULL,
                          "cd %s/checkpoints && mkdir .step-00000070.99.tmp && echo x >"
                          " .step-00000070.99.tmp/model.safetensors",
                          run),
             0);
    CHECK_OK(toy_save(&a, run, 70, 2, false));
    CHECK_EQ(test_command(NULL, "test -e %s/checkpoints/.step-00000070.99.tmp", run), 1);
    toy_free();
}

/* Step 0 is older than all others, in whatever order the folder lists them. */
TEST(checkpoint_of_step_0_is_the_oldest) {
    char *text;
    CHECK_EQ(test_command(NULL,
                          "cd %s && for i in 00 01 02 03 04 05 06 07 08 09 10 11; do mkdir -p "
                          "checkpoints/step-000000$i; done && ln -s checkpoints/step-00000011 last",
                          test_folder()),
             0);
    checkpoint_prune(test_folder(), 11);
    CHECK_EQ(
        test_command(&text, "cd %s && ls checkpoints | wc -l && ls checkpoints", test_folder()), 0);
    CHECK(strncmp(text, "11\nstep-00000001\n", 17) == 0);
    free(text);
    checkpoint_prune(test_folder(), 1);
    CHECK_EQ(test_command(&text, "ls %s/checkpoints", test_folder()), 0);
    CHECK_STR(text, "step-00000011\n");
    free(text);
}

/* What a crash must not lose is on disk when a save returns: four written files and the folder
 * that each appeared in, then the folder of the checkpoint, the one it was renamed in, and for each
 * link that of the run. */
TEST(checkpoint_is_synced_with_its_folders_and_links) {
    toy t;
    toy_make(&t, 1.5f);
    CHECK_OK(toy_save(&t, run_path("run"), 7, 2, false));
    for (int is_best = 0; is_best < 2; is_best++) {
        sync_files = sync_folders = 0;
        CHECK_OK(toy_save(&t, run_path("run"), 8 + (uint64_t)is_best, 2, is_best));
        CHECK(sync_files >= 4 && sync_folders == 4 + 3 + is_best);
    }
    toy_free();
}

TEST(checkpoint_with_a_number_that_is_none_is_not_written) {
    toy a;
    const char *run = run_path("run");
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, 1, 2, false));
    a.params[1].value[5] = NAN;
    CHECK_FAILS(toy_save(&a, run, 2, 2, false), ERR_NUMERIC, "'layer.w'");
    CHECK_EQ(test_command(NULL, "test \"$(ls -A %s/checkpoints)\" = step-00000001", run), 0);
    toy_free();
}

/* A limit of the file size stands in for a full disk. */
TEST(checkpoint_full_disk_loses_nothing) {
    toy a;
    const char *run = run_path("run");
    char folder[CHECKPOINT_PATH_BYTES];
    struct rlimit none, small;
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, 1, 2, false));
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &none) == 0);
    small = (struct rlimit){100, none.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    status st = toy_save(&a, run, 2, 2, false);
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK_EQ(st, ERR_IO);
    CHECK_CONTAINS(status_reason(), "model.safetensors: cannot be written");
    CHECK_EQ(test_command(NULL, "test \"$(ls -A %s/checkpoints)\" = step-00000001", run), 0);
    CHECK_OK(checkpoint_find(run, folder));
    CHECK_OK(checkpoint_load(&a.c, folder));
    CHECK_EQ(a.c.state.step, 1);
    toy_free();
}

/* Killed between any two instructions: `last` is whole every time. */
TEST(checkpoint_killed_at_random_stays_whole) {
    toy a;
    const char *run = run_path("run");
    char folder[CHECKPOINT_PATH_BYTES];
    uint64_t newest = 1;
    toy_make(&a, 1);
    CHECK_OK(toy_save(&a, run, newest, 2, false));
    /* On a busy machine a save takes longer than the first rounds last. */
    for (int round = 0; round < 12 || (newest == 1 && round < 100); round++) {
        pid_t child = fork();
        if (child == 0)
            for (uint64_t step = newest + 1;; step++)
                if (toy_save(&a, run, step, 2, step % 3 == 0) != OK) _exit(1);
        usleep((useconds_t)(8000 + round * 9700));
        kill(child, SIGKILL);
        int code;
        CHECK(waitpid(child, &code, 0) == child && WIFSIGNALED(code));
        CHECK_OK(checkpoint_find_last(run, folder));
        CHECK_OK(checkpoint_load(&a.c, folder));
        CHECK(a.c.state.step >= newest);
        newest = a.c.state.step;
    }
    CHECK(newest > 1);
    toy_free();
}

static status save_and_load(void *ctx) {
    toy *t = ctx;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(toy_save(t, run_path("run"), t->c.state.step + 1, 1, false));
    TRY(checkpoint_find(run_path("run"), folder));
    return checkpoint_load(&t->c, folder);
}

TEST(checkpoint_out_of_memory) {
    toy a;
    toy_make(&a, 1);
    CHECK(oom_at_each_allocation(save_and_load, &a) > 20);
    toy_free();
}

/* Checkpoints that ranks write together: the bytes of one rank, on any number of them, and whole or
 * not there when one of them cannot write. */

/* A table that ranks hold together, which travels in two pieces, a matrix that all have, and a
 * vector shorter than the ranks are many. */
enum { ROWS = 230000, DIM = 5, WIDTH = 130000 };

typedef struct shared_toy {
    backend *be;
    param params[3];
    moments state[3];
    optimizer optimizer;
    int32_t rows[ROWS];
    float table[ROWS * DIM], sums[ROWS], matrix[2 * WIDTH], vector[3];
    checkpoint c;
} shared_toy;

static param make_param(const char *name, int n_dims, int64_t n0, int64_t n1, float *value) {
    param p = {
        .n_dims = n_dims, .shape = {n0, n1}, .n = n0 * (n_dims > 1 ? n1 : 1), .value = value};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* Row-wise AdaGrad has one number of state for each row. */
static void shared_toy_make(shared_toy *t, comm *c) {
    int64_t n = 0;
    for (int32_t row = 0; row < ROWS; row++) {
        if (c != NULL && dynamic_rank_of_row((uint64_t)row, c->size) != c->rank) continue;
        for (int k = 0; k < DIM; k++)
            t->table[n * DIM + k] = (float)(row * DIM + k) / 3;
        t->sums[n] = (float)row / 7;
        t->rows[n++] = row;
    }
    for (int i = 0; i < 2 * WIDTH; i++)
        t->matrix[i] = (float)i / 9;
    for (int i = 0; i < 3; i++)
        t->vector[i] = (float)i;
    t->params[0] = make_param("table", 2, n, DIM, t->table);
    t->params[1] = make_param("matrix", 2, 2, WIDTH, t->matrix);
    t->params[2] = make_param("vector", 1, 3, 0, t->vector);
    t->params[0].is_table = true;
    if (c != NULL) t->params[0].rows = t->rows, t->params[0].whole_rows = ROWS;
    t->state[0].m = t->sums;
    t->state[2] = (moments){t->vector, t->vector};
    t->optimizer = (optimizer){
        .rows = ROWS_LAZY, .kind = OPT_ADAMW, .table_kind = OPT_ROWWISE_ADAGRAD, .state = t->state};
    t->c = (checkpoint){.be = t->be,
                        .data = &toy_names,
                        .params = t->params,
                        .n_params = 3,
                        .world = c,
                        .ranks = c,
                        .optimizer = &t->optimizer};
    t->c.state = (train_state){.split.rule = split_rule_of(SPLIT_LEAVE_TWO_OUT), .best_metric = -1};
}

/* What a rank does. */
typedef struct toy_job {
    const char *run;
    int n_saves;
    int victim;   /* rank that has no room for a file from the second save on; -1: none */
    int nan_rank; /* rank with a number that is not finite from then on; -1: none */

} toy_job;

static status save_on(const toy_job *j, transport *tr) {
    shared_toy *t;
    comm *c = NULL;
    CHECK_OK(MEM_NEW(&t, 1));
    CHECK_OK(backend_create_cpu(&t->be, NULL));
    if (tr != NULL) CHECK_OK(comm_create_host(&c, t->be, tr));
    shared_toy_make(t, c);
    status st = OK;
    for (int i = 0; i < j->n_saves && st == OK; i++) {
        struct rlimit small = {100000, 100000};
        if (i > 0 && tr != NULL && tr->rank == j->victim)
            CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        if (i > 0 && tr != NULL && tr->rank == j->nan_rank) t->table[7] = NAN;
        t->c.state.step = (uint64_t)(i + 1);
        st = checkpoint_save(&t->c, j->run, "{}", "float32", 5, false);
    }
    comm_destroy(c);
    backend_destroy(t->be);
    mem_free(t);
    return st;
}

/* On n ranks, 0: in this process; what the first rank says goes to the file. */
static status run_on(const toy_job *j, int n) {
    transport *t;
    if (n == 0) return save_on(j, NULL);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    signal(SIGXFSZ, SIG_IGN);
    int rank = t->rank;
    st = save_on(j, t);
    if (st != OK && rank == 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/said", j->run);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL);
        fputs(status_reason(), f);
        fclose(f);
    }
    st = ranks_leave(t, st);
    fflush(NULL);
    _exit(status_exit_code(st));
}

TEST(checkpoint_parts_have_the_bytes_of_one_rank) {
    static const int sizes[] = {2, 3, 4, 8};
    toy_job j = {.n_saves = 1, .victim = -1, .nan_rank = -1};
    char one[512], many[512];
    snprintf(one, sizeof one, "%s/one", test_folder());
    j.run = one;
    CHECK_OK(run_on(&j, 0));
    for (int i = 0; i < 4; i++) {
        snprintf(many, sizeof many, "%s/many%d", test_folder(), sizes[i]);
        j.run = many;
        CHECK_OK(run_on(&j, sizes[i]));
        CHECK(same_file(one, many, "model.safetensors"));
        CHECK(same_file(one, many, "optimizer.safetensors"));
        CHECK(same_file(one, many, "manifest.json"));
    }
}

TEST(checkpoint_parts_need_the_same_folder) {
    part_file *f;
    CHECK_FAILS(part_file_open(&f, run_path("elsewhere/model.safetensors")), ERR_IO,
                "all ranks must see the folder of the run");
    CHECK(f == NULL);
}

static void overwrite(const char *path, long at, const void *bytes, size_t n) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0 && fwrite(bytes, 1, n, f) == n);
    CHECK_EQ(fclose(f), 0);
}

/* The sums of two writers, in any pieces and any order, are that of the file; another byte, words
 * that have changed places and a file that is shorter are noticed. */
TEST(checkpoint_parts_are_what_was_written) {
    enum { N = 300000, CUT = 123457 };
    const char *const wrong = "is not what the ranks wrote";
    char path[512];
    part_file *f[2];
    uint64_t sum = 0;
    buf header = {0};
    snprintf(path, sizeof path, "%s/parts", test_folder());
    float *x;
    CHECK_OK(MEM_NEW(&x, N));
    for (int i = 0; i < N; i++)
        x[i] = (float)i * 0.25f;
    CHECK_OK(buf_append(&header, "headers!", 8));
    CHECK_OK(part_file_make(path, &header, 8 + N * sizeof *x));
    buf_fini(&header);
    for (int i = 0; i < 2; i++)
        CHECK_OK(part_file_open(&f[i], path));
    CHECK_OK(part_file_write(f[1], 8 + CUT * sizeof *x, x + CUT, (N - CUT) * sizeof *x));
    for (int at = CUT - 7; at >= 0; at -= 7)
        CHECK_OK(part_file_write(f[0], 8 + (size_t)at * sizeof *x, x + at, 7 * sizeof *x));
    CHECK_OK(part_file_write(f[0], 8, x, CUT % 7 * sizeof *x));
    for (int i = 0; i < 2; i++) {
        sum += part_file_sum(f[i]);
        CHECK_OK(part_file_close(f[i], OK));
    }
    CHECK_OK(part_file_check(path, 8, sum));
    CHECK_FAILS(part_file_check(path, 8, sum + 1), ERR_IO, wrong);
    CHECK_FAILS(part_file_check(path, 12, sum), ERR_IO, wrong);
    float swapped[2] = {x[70001], x[70000]};
    overwrite(path, 8 + 70000 * 4, swapped, sizeof swapped);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    overwrite(path, 8 + 70000 * 4, x + 70000, 8);
    CHECK_OK(part_file_check(path, 8, sum));
    overwrite(path, 8 + N * 4 - 1, "?", 1);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    CHECK_EQ(truncate(path, 8 + N * 4 - 4), 0);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    CHECK_FAILS(part_file_check("/nowhere/parts", 8, sum), ERR_IO, "/nowhere/parts");
    mem_free(x);
}

/* Ranks take their rows from a file of any number of ranks. */
TEST(checkpoint_parts_are_read_by_rows) {
    toy_job j = {.n_saves = 1, .victim = -1, .nan_rank = -1, .run = run_path("run")};
    char folder[CHECKPOINT_PATH_BYTES];
    comm fake = {.rank = 1, .size = 3};
    shared_toy *a, *b;
    CHECK_OK(run_on(&j, 2));
    CHECK_OK(checkpoint_find(j.run, folder));
    CHECK_OK(MEM_NEW(&a, 1));
    CHECK_OK(MEM_NEW(&b, 1));
    CHECK_OK(backend_create_cpu(&a->be, NULL));
    shared_toy_make(a, &fake);
    b->be = a->be;
    shared_toy_make(b, &fake);
    CHECK(a->params[0].shape[0] > ROWS / 4 && a->params[0].shape[0] < ROWS / 2);
    memset(b->table, 0, sizeof b->table);
    memset(b->sums, 0, sizeof b->sums);
    b->c.world = b->c.ranks = NULL;
    CHECK_OK(checkpoint_load(&b->c, folder));
    CHECK(memcmp(a->table, b->table, (size_t)a->params[0].n * sizeof(float)) == 0);
    CHECK(memcmp(a->sums, b->sums, (size_t)a->params[0].shape[0] * sizeof(float)) == 0);
    backend_destroy(a->be);
    mem_free(a);
    mem_free(b);
}

static void check_failed(toy_job *j, const char *const *words, int n_words) {
    char path[512], folder[CHECKPOINT_PATH_BYTES], *said;
    size_t n;
    checkpoint_origin origin;
    CHECK(run_on(j, 3) != OK);
    snprintf(path, sizeof path, "%s/said", j->run);
    CHECK_OK(file_read_all(path, 4096, &said, &n));
    for (int i = 0; i < n_words; i++)
        CHECK_CONTAINS(said, words[i]);
    mem_free(said);
    CHECK_OK(checkpoint_find(j->run, folder));
    CHECK_OK(checkpoint_verify(folder));
    CHECK_OK(checkpoint_read_origin(&origin, folder));
    CHECK_EQ(origin.step, 1);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002", j->run);
    CHECK(!folder_exists(path));
}

/* One rank cannot write: the job says which and what, and the checkpoint of before is whole. */
TEST(checkpoint_parts_without_room_name_the_rank) {
    for (int rank = 0; rank < 3; rank++) {
        char name[32], want[32];
        snprintf(name, sizeof name, "run%d", rank);
        snprintf(want, sizeof want, "rank %d: ", rank);
        toy_job j = {.n_saves = 3, .victim = rank, .nan_rank = -1, .run = run_path(name)};
        const char *words[] = {want, "model.safetensors: cannot be written"};
        check_failed(&j, words, 2);
    }
}

TEST(checkpoint_parts_refuse_what_is_not_finite) {
    toy_job j = {.n_saves = 3, .victim = -1, .nan_rank = 2, .run = run_path("run")};
    const char *words[] = {"'table' holds numbers that are not finite"};
    check_failed(&j, words, 1);
}
