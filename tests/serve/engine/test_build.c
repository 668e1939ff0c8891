/* hstu build: the folder answers as the run does, is whole or not there, and refuses every change.
 */
#include "serve/engine/build.h"

#include <math.h>
#include <unistd.h>

#include "base/half.h"
#include "serve/engine/served.h"
#include "serve_test.h"
#include "table_run.h"

static const char *retrieval_run(void) {
    return serve_run("run", retrieval_gin, NULL, 0);
}

static build_report make_engine(const char *run, const char *out, config_dtype dtype) {
    build_config c = {
        .run = run, .out = out, .dtype = dtype, .limits = {.max_batch = 5, .kv_pages = -1}};
    build_report r;
    CHECK_OK(build_engine(&c, &r));
    return r;
}

static build_report make_fp8_engine(const char *run, const char *out) {
    build_config c = {.run = run,
                      .out = out,
                      .dtype = DTYPE_BFLOAT16,
                      .is_fp8 = true,
                      .limits = {.max_batch = 5, .kv_pages = -1}};
    build_report r;
    CHECK_OK(build_engine(&c, &r));
    return r;
}

/* Users of the data get the same answers from both. */
static void check_same_answers(const char *run, const char *folder, bool is_ranking) {
    engine *a = serve_open(run, synth_folder(), 0), *b = serve_open(folder, synth_folder(), 0);
    engine_id candidates[4] = {serve_id(3), serve_id(9), serve_id(20), serve_id(41)};
    for (int64_t user = 1; user <= 20; user++) {
        engine_request r = serve_recommend(user, 5);
        if (is_ranking) {
            r.task = ENGINE_RANK;
            r.top_k = 0;
            r.candidates = candidates;
            r.n_candidates = 4;
        }
        engine_answer x = serve_ask(a, &r), y = serve_ask(b, &r);
        CHECK(x.n_items == y.n_items && x.n_items > 0);
        for (size_t i = 0; i < x.n_items; i++) {
            CHECK(x.items[i].number == y.items[i].number);
            CHECK(memcmp(x.items[i].values, y.items[i].values,
                         (size_t)x.n_columns * sizeof(float)) == 0);
        }
        engine_answer_release(&x);
        engine_answer_release(&y);
    }
    engine_destroy(a);
    engine_destroy(b);
}

TEST(build_of_retrieval_answers_as_the_run) {
    const char *run = retrieval_run(), *folder = run_path("engine");
    build_report r = make_engine(run, folder, DTYPE_FLOAT32);
    CHECK(r.n_asked == 32 && r.score_error == 0 && r.weight_error == 0 && r.top_kept == 1);
    CHECK(r.step == 2 && r.n_items == 60 && !r.is_ranking && r.n_numbers > 60 * 8);
    check_same_answers(run, folder, false);
}

TEST(build_of_ranking_answers_as_the_run) {
    const char *run = serve_run("run", ranking_gin, NULL, 0), *folder = run_path("engine");
    build_report r = make_engine(run, folder, DTYPE_FLOAT32);
    CHECK(r.is_ranking && r.score_error == 0);
    check_same_answers(run, folder, true);
}

TEST(build_takes_dynamic_tables_along) {
    const char *run = serve_run("run", ranking_tables, NULL, 0), *folder = run_path("engine");
    build_report r = make_engine(run, folder, DTYPE_FLOAT32);
    CHECK(r.n_tables == 1 && r.score_error == 0);
    check_same_answers(run, folder, true);
}

/* Half the bytes, and an error that is said. */
TEST(build_in_16_bits_says_its_error) {
    const char *run = retrieval_run();
    build_report exact = make_engine(run, run_path("f32"), DTYPE_FLOAT32);
    const config_dtype types[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16};
    const double limit[] = {1.0 / 256, 1.0 / 2048};
    for (int i = 0; i < 2; i++) {
        const char *folder = run_path(i == 0 ? "bf16" : "f16");
        engine_facts facts;
        build_report r = make_engine(run, folder, types[i]);
        CHECK(r.weight_error > limit[i] / 8 && r.weight_error <= limit[i]);
        CHECK(r.score_error > 0 && r.score_error < 0.05 && r.top_kept > 0.9);
        CHECK(r.weight_bytes < exact.weight_bytes);
        CHECK_OK(engine_folder_verify(folder, &facts));
        CHECK(facts.dtype == types[i] && facts.weight_error == r.weight_error);
        CHECK(facts.limits.max_batch == 5 && facts.limits.kv_pages == -1);
    }
}

/* The CPU rounds as a GPU does: the answers are near those of the run, not those of bfloat16, and
 * do not depend on the batch. */
TEST(build_in_fp8_says_its_error) {
    static const char *const softmax[] = {"train_fn.main_module = 'SASRec'"};
    const char *runs[] = {retrieval_run(), serve_run("ranking", ranking_gin, NULL, 0)};
    for (int i = 0; i < 2; i++) {
        const char *folder = run_path("engine");
        engine_facts facts;
        build_report bf16 = make_engine(runs[i], folder, DTYPE_BFLOAT16);
        build_report r = make_fp8_engine(runs[i], folder);
        CHECK(r.weight_error == bf16.weight_error);
        CHECK(r.score_error != bf16.score_error && r.score_error < 0.05);
        CHECK(i == 1 || r.top_kept > 0.8);
        CHECK_OK(engine_folder_verify(folder, &facts));
        CHECK(facts.is_fp8 && facts.dtype == DTYPE_BFLOAT16);
        check_same_answers(folder, folder, i == 1);
    }
    build_config c = {.run = serve_run("sasrec", retrieval_gin, softmax, 1),
                      .out = run_path("none"),
                      .dtype = DTYPE_BFLOAT16,
                      .is_fp8 = true,
                      .limits = {.kv_pages = -1}};
    build_report r;
    CHECK_FAILS(build_engine(&c, &r), ERR_UNSUPPORTED, "with --dtype bfloat16");
    CHECK(!folder_exists(c.out));
}

/* The limits of the folder are the server's, unless it is told otherwise. */
TEST(build_keeps_limits) {
    const char *folder = run_path("engine");
    served *m;
    build_config c = {.run = retrieval_run(),
                      .out = folder,
                      .dtype = DTYPE_FLOAT32,
                      .limits = {.max_batch = 3, .max_tokens = 700, .kv_pages = 9}};
    build_report r;
    engine_config s = {.device = "cpu", .n_threads = 1, .kv_pages = -1};
    CHECK_OK(build_engine(&c, &r));
    CHECK_OK(served_open(&m, &s, folder, NULL));
    CHECK(m->max_batch == 3 && m->max_tokens == 700 && m->store.n_pages == 9);
    served_drop(m);
    s.max_batch = 7;
    s.max_tokens = 900;
    s.kv_pages = 11;
    CHECK_OK(served_open(&m, &s, folder, NULL));
    CHECK(m->max_batch == 7 && m->max_tokens == 900 && m->store.n_pages == 11);
    CHECK(m->infer.table.small.rows == NULL);
    served_drop(m);
    c.limits.has_int8_items = true;
    CHECK_OK(build_engine(&c, &r)); /* compares its answers with the run's, bit for bit */
    CHECK_OK(served_open(&m, &s, folder, NULL));
    CHECK(m->infer.table.small.rows != NULL);
    served_drop(m);
}

static void flip(const char *path, long at, int bit) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0);
    int c = fgetc(f);
    CHECK(c != EOF && fseek(f, at, SEEK_SET) == 0);
    fputc(c ^ 1 << bit, f);
    CHECK(fclose(f) == 0);
}

TEST(build_refuses_every_flipped_byte) {
    char run[512], folder[512];
    static const char *const names[] = {"weights.safetensors", "vocabulary.seq", "state.json",
                                        "engine.json"};
    snprintf(run, sizeof run, "%s", retrieval_run());
    snprintf(folder, sizeof folder, "%s", run_path("engine"));
    make_fp8_engine(run, folder);
    for (int i = 0; i < 4; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        int64_t bytes;
        uint64_t hash;
        engine_facts facts;
        CHECK_OK(path_join(path, sizeof path, folder, names[i]));
        CHECK_OK(manifest_hash_file(path, &bytes, &hash));
        for (long at = 0; at < (long)bytes; at += test_is_brief() ? 5 : 1) {
            flip(path, at, (int)(at % 8));
            status st = engine_folder_verify(folder, &facts);
            if (st != ERR_FORMAT || strstr(status_reason(), "hstu build") == NULL)
                FAIL_TEST("%s: byte %ld: %s", names[i], at, st == OK ? "" : status_reason());
            flip(path, at, (int)(at % 8));
        }
        CHECK_OK(engine_folder_verify(folder, &facts));
        CHECK(truncate(path, (off_t)bytes - 1) == 0);
        CHECK_FAILS(engine_folder_verify(folder, &facts), ERR_FORMAT, "hstu build");
        make_fp8_engine(run, folder); /* replaces a damaged one */
        CHECK_OK(engine_folder_verify(folder, &facts));
        CHECK(i == 3 || unlink(path) == 0);
        CHECK(i == 3 || engine_folder_verify(folder, &facts) == ERR_FORMAT);
        make_fp8_engine(run, folder);
    }
}

/* What opens a model refuses it, too, and nobody takes an engine folder for a run. */
TEST(build_damage_reaches_who_opens_it) {
    const char *run = retrieval_run(), *folder = run_path("engine");
    char path[CHECKPOINT_PATH_BYTES];
    served *m;
    engine_config s = {.device = "cpu", .n_threads = 1, .kv_pages = -1};
    build_config c = {.run = folder, .out = run_path("again"), .dtype = DTYPE_FLOAT32};
    build_report r;
    make_engine(run, folder, DTYPE_FLOAT32);
    CHECK_FAILS(build_engine(&c, &r), ERR_USAGE, "an engine folder already");
    CHECK_FAILS(checkpoint_find(folder, path), ERR_USAGE, "made to be served");
    CHECK_FAILS(checkpoint_choose(folder, "best", path), ERR_USAGE, "holds one model");
    CHECK_OK(path_join(path, sizeof path, folder, "weights.safetensors"));
    flip(path, 4000, 3);
    CHECK_OK(served_open(&m, &s, folder, NULL)); /* it is checked meanwhile */
    CHECK_FAILS(served_checked(m), ERR_FORMAT, "checksum");
    CHECK_FAILS(served_checked(m), ERR_FORMAT, "hstu build");
    served_drop(m);
}

/* No answer of weights that were not checked leaves an engine; a model that is there is not
 * replaced by a damaged one. */
TEST(build_damage_lets_no_answer_out) {
    const char *run = retrieval_run(), *folder = run_path("engine");
    char path[CHECKPOINT_PATH_BYTES];
    engine_request r = serve_recommend(1, 3);
    engine_answer a;
    float row[64];
    make_engine(run, folder, DTYPE_FLOAT32);
    engine *good = serve_open(folder, NULL, 4);
    CHECK_OK(engine_wait_checked(good, 0));
    CHECK_OK(path_join(path, sizeof path, folder, "weights.safetensors"));
    int64_t bytes;
    uint64_t hash;
    CHECK_OK(manifest_hash_file(path, &bytes, &hash));
    flip(path, (long)bytes - 2, 3); /* of the normalised items, which are mapped */
    CHECK_FAILS(engine_load(good, "model", folder), ERR_FORMAT, "checksum");
    engine *bad = serve_open(folder, NULL, 4);
    engine_ask(bad, &r, &a);
    CHECK(a.outcome == ENGINE_FAILED && strstr(a.error, "checksum") != NULL && a.n_items == 0);
    engine_answer_release(&a);
    CHECK_FAILS(engine_item_rows(bad, 0, 1, 1, row), ERR_FORMAT, "checksum");
    CHECK_FAILS(engine_wait_checked(bad, 0), ERR_FORMAT, "hstu build");
    engine_destroy(bad);
    engine_destroy(good);
}

/* Item rows of a float32 engine are read where they are mapped; those of 16 bits are copied. */
TEST(build_maps_item_rows) {
    const char *run = retrieval_run(), *folder = run_path("engine");
    engine_config s = {.device = "cpu", .n_threads = 1, .kv_pages = -1};
    served *m;
    for (int i = 0; i < 2; i++) {
        make_engine(run, folder, i == 0 ? DTYPE_FLOAT32 : DTYPE_BFLOAT16);
        CHECK_OK(served_open(&m, &s, folder, NULL));
        const char *bytes = (const char *)m->trained.weights->map.bytes;
        size_t n = m->trained.weights->map.n_bytes;
        const char *rows = (const char *)m->infer.table.items.rows;
        const char *own = (const char *)model_item_param(m->s->model)->value;
        CHECK((rows > bytes && rows < bytes + n) == (i == 0));
        CHECK((own > bytes && own < bytes + n) == (i == 0));
        CHECK_OK(served_checked(m));
        served_drop(m);
    }
}

/* A target that is something else stays as it is, and a failure leaves nothing. */
TEST(build_is_whole_or_not_there) {
    const char *run = retrieval_run(), *other = run_path("other");
    char path[CHECKPOINT_PATH_BYTES], weights[CHECKPOINT_PATH_BYTES];
    build_config c = {.run = run, .out = other, .dtype = DTYPE_FLOAT32};
    build_report r;
    CHECK_OK(folder_create(other, NULL));
    CHECK_FAILS(build_engine(&c, &r), ERR_USAGE, "is not an engine folder");
    CHECK(folder_exists(other));
    c.out = run_path("new/deeper");
    CHECK(build_engine(&c, &r) == OK || !folder_exists(c.out));
    snprintf(weights, sizeof weights, "%s/last/model.safetensors", run);
    flip(weights, 3000, 1);
    c.out = run_path("none");
    CHECK_FAILS(build_engine(&c, &r), ERR_FORMAT, "damaged");
    CHECK(!folder_exists(c.out));
    snprintf(path, sizeof path, "%s.%ld.tmp", c.out, (long)getpid());
    CHECK(!folder_exists(path));
}

TEST(half_from_float_rounds_to_the_nearest) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = half_f16_to_float((uint16_t)h), b = half_bf16_to_float((uint16_t)h);
        if (isfinite(f)) CHECK(half_f16_from_float(f) == h);
        if (isfinite(b)) CHECK(half_bf16_from_float(b) == h);
        if (h % 32768 >= 0x7bff) continue;
        /* Between two neighbours: the nearer one, and in the middle the even one. */
        float next = half_f16_to_float((uint16_t)(h + 1)), middle = (f + next) / 2;
        CHECK(half_f16_from_float(middle) == (h % 2 == 0 ? h : h + 1));
        CHECK(half_f16_from_float(nextafterf(middle, f)) == h);
        CHECK(half_f16_from_float(nextafterf(middle, next)) == h + 1);
    }
    CHECK(isinf(half_f16_to_float(half_f16_from_float(65520))));
    CHECK(half_f16_from_float(65519) == 0x7bff && half_bf16_from_float(1.00390625f) == 0x3f80);
}
