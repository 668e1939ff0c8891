#include "tune/encoder_plan.h"

#include <math.h>
#include <stdio.h>

#include "device.h"
#include "format/json.h"
#include "test.h"
#include "tune/plan_file.h"

static encoder_config small(void) {
    return (encoder_config){.family = ENCODER_BERT,
                            .n_layers = 2,
                            .dim = 24,
                            .n_heads = 3,
                            .dim_ffn = 96,
                            .n_words = 50,
                            .n_positions = 40,
                            .n_types = 1,
                            .f = EPILOGUE_GELU,
                            .eps = 1e-12f};
}

/* The device, where kernels can be compiled for it. */
static backend *open_device(void) {
    backend *be;
    char version[256];
    if (test_on.kind == ON_MIRROR) SKIP_TEST("plans need the device itself");
    if (test_on.kind == ON_CPU && !target_compiler_version(version, sizeof version))
        SKIP_TEST("no C compiler");
    if (test_on.kind == ON_CUDA && !target_nvrtc_version(version, sizeof version))
        SKIP_TEST("no NVRTC");
    CHECK_OK(test_real_backend(&be, NULL));
    return be;
}

enum { ROWS = 12 + 33 + 1 };

/* Two batches, the second of them larger, so that tensors between kernels grow. */
static void encode(const encoder_config *c, backend *be, const mask *m,
                   const encoder_layers *layers, float *out) {
    static const int32_t lengths[] = {12, 33, 1};
    encoder *e;
    int32_t ids[64];
    int64_t at = 0;
    encoder_options o = {.batch_tokens = 60, .mask = m, .layers = layers};
    CHECK_OK(encoder_create_random(&e, c, 5, be, &o));
    for (int b = 0; b < 3; b++) {
        for (int i = 0; i < lengths[b]; i++)
            ids[i] = (7 * i + 3 * b) % c->n_words;
        CHECK_OK(encoder_add(e, ids, NULL, lengths[b]));
        if (b == 1) continue;
        CHECK_OK(encoder_run(e));
        CHECK_OK(encoder_read(e, out + at * c->dim, NULL));
        at += encoder_offsets(e)[encoder_n_sequences(e)];
        encoder_clear(e);
    }
    CHECK_EQ(at, ROWS);
    encoder_destroy(e);
}

static double error_of(const float *a, const float *b, int n) {
    double difference = 0, size = 0;
    for (int i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Relative to the states. */
static double limit(void) {
    static const double limits[] = {[PRECISION_F32] = 1e-6,
                                    [PRECISION_TF32] = 2e-3,
                                    [PRECISION_BF16] = 1.5e-2,
                                    [PRECISION_F16] = 2e-3};
    return limits[test_on.p];
}

/* An encoder gives the same states by a plan and without one. */
static void check_plan_of(encoder_config c, const char *plan, const char *mask_text) {
    backend *be = open_device();
    float want[ROWS * 24], got[ROWS * 24];
    encoder_plan *p;
    mask *m = NULL;
    if (mask_text != NULL) CHECK_OK(mask_create(&m, mask_text));
    encoder_plan_options o = {
        .plan = plan, .cache = test_folder(), .mask = m, .mask_text = mask_text};
    CHECK_OK(encoder_plan_create(&p, be, &c, &o));
    encode(&c, be, m, NULL, want);
    encode(&c, be, m, encoder_plan_layers(p), got);
    CHECK(error_of(got, want, ROWS * 24) < limit());
    CHECK(encoder_plan_used(p).n_by_plan == 2 && encoder_plan_used(p).n_built_in == 0);
    encoder_plan_destroy(p);
    mask_destroy(m);
    test_real_backend_end(be);
}

static void check_plan(const char *plan, const char *mask_text) {
    check_plan_of(small(), plan, mask_text);
}

/* 41115: bias0 alone, the attention by hand, products with norms. */
TEST(an_encoder_runs_by_a_plan) {
    check_plan("41115", NULL);
}
/* An FFN that is no multiple of the model's width: one kernel for both of its products, and one for
 * each operator. */
TEST(an_ffn_of_any_width_runs_by_a_plan) {
    encoder_config c = small();
    c.dim_ffn = 50;
    check_plan_of(c, "41115", NULL);
    uint16_t value;
    char text[8];
    CHECK_OK(plan_from_segments("1-2,3-7,8-10,11-14", true, &value));
    snprintf(text, sizeof text, "%d", value);
    check_plan_of(c, text, NULL);
    CHECK_OK(plan_from_segments("3-7", true, &value));
    snprintf(text, sizeof text, "%d", value);
    check_plan_of(c, text, NULL);
}
TEST(a_plan_with_a_generated_attention_and_a_mask) {
    uint16_t value;
    char text[8];
    CHECK_OK(plan_from_segments("1-2,3-7,8-10,11-14", false, &value));
    snprintf(text, sizeof text, "%d", value);
    check_plan(text, "causal");
    check_plan(text, NULL);
}
TEST(the_attention_by_hand_takes_every_mask) {
    uint16_t value;
    char text[8];
    CHECK_OK(plan_from_segments("3-7,8-9,11-12,14-15", true, &value));
    snprintf(text, sizeof text, "%d", value);
    check_plan(text, "bigbird,window=2,global=1");
}

static status try_plan(const char *plan, const encoder_config *c, const char *mask_text) {
    backend *be = open_device();
    encoder_plan *p = NULL;
    mask *m = NULL;
    if (mask_text != NULL) CHECK_OK(mask_create(&m, mask_text));
    encoder_plan_options o = {
        .plan = plan, .cache = test_folder(), .mask = m, .mask_text = mask_text};
    status st = encoder_plan_create(&p, be, c, &o);
    CHECK((p == NULL) == (st != OK));
    encoder_plan_destroy(p);
    mask_destroy(m);
    test_real_backend_end(be);
    return st;
}

TEST(plans_that_an_encoder_refuses) {
    encoder_config c = small(), relu = small();
    relu.f = EPILOGUE_RELU;
    CHECK_FAILS(try_plan("21845", &c, NULL), ERR_UNSUPPORTED, "several kernels");
    CHECK_FAILS(try_plan("8347", &c, "sliding"), ERR_UNSUPPORTED, "generates the attention");
    CHECK_FAILS(try_plan("41115", &relu, NULL), ERR_UNSUPPORTED, "another activation");
    CHECK_FAILS(try_plan("65536", &c, NULL), ERR_USAGE, "beyond 65535");
    CHECK_FAILS(try_plan("/nowhere/plan.json", &c, NULL), ERR_IO, "nowhere");
    CHECK_OK(try_plan("auto", &relu, NULL));
    /* The heads may be merged by a kernel of their own, nothing else of the attention may. */
    static const struct {
        const char *segments;
        status st;
    } splits[] = {{"3-7", OK}, {"3-6", OK}, {"3-5", ERR_UNSUPPORTED}, {"4-7", ERR_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        uint16_t value;
        char text[8];
        CHECK_OK(plan_from_segments(splits[i].segments, false, &value));
        snprintf(text, sizeof text, "%d", value);
        CHECK_EQ(try_plan(text, &c, NULL), splits[i].st);
    }
}

/* The JSON that a search keeps. */
static void keep(const plan_store *s, plan_file *f, bool expects_kept) {
    buf text = {0};
    char path[4096];
    bool is_kept;
    CHECK_OK(
        buf_printf(&text,
                   "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": "
                   "\"%s\",\n  \"value\": %d,\n  \"ms\": %g,\n  \"arch\": \"%s\",\n  \"dtype\": "
                   "\"%s\",\n  \"mask\": \"%s\",\n  \"heads\": %d,\n  \"dim\": %d,\n  "
                   "\"ffn\": %d,\n  \"length\": %d,\n  \"tokens\": %d\n}",
                   f->layer, f->value, f->ms, f->arch, f->dtype, f->mask, f->n_heads, f->dim_head,
                   f->dim_ffn, f->max_len, (int)f->n_tokens));
    CHECK_OK(json_add_seal(&text));
    CHECK_OK(plan_store_put(s, f, &text, &is_kept, path));
    CHECK_EQ(is_kept, expects_kept);
    buf_fini(&text);
}

TEST(kept_plans_are_found_by_what_they_are_for) {
    plan_store s;
    plan_file f = {.layer = "bert",
                   .value = 1,
                   .arch = "sm_90",
                   .dtype = "float16",
                   .mask = "none",
                   .n_heads = 12,
                   .dim_head = 64,
                   .max_len = 512,
                   .n_tokens = 4096,
                   .ms = 2},
              want = f, found;
    bool is_found;
    CHECK_OK(plan_store_open(&s, test_folder()));
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(!is_found);
    keep(&s, &f, true);
    f.value = 2, f.n_tokens = 1024;
    keep(&s, &f, true);
    f.value = 3, f.ms = 3; /* slower than the one that is there */
    keep(&s, &f, false);
    f.value = 4, f.ms = 1;
    keep(&s, &f, true);
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(is_found && found.value == 1 && found.n_tokens == 4096 && found.ms == 2);
    want.n_tokens = 1500;
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(is_found && found.value == 4);
    want.n_tokens = 100; /* too far from any */
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(!is_found);
    want = f;
    want.n_tokens = 256; /* a factor of four */
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(is_found && found.value == 4);
    want.n_tokens = 255;
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(!is_found);
    f.n_tokens = 1 << 20;
    f.value = 5, f.ms = 0; /* of an unknown time: any other one is better */
    keep(&s, &f, true);
    f.value = 6, f.ms = 7;
    keep(&s, &f, true);
    f.n_tokens = 4 << 20;
    f.value = 7, f.ms = 6;
    keep(&s, &f, true);
    want.n_tokens = 2 << 20; /* as near to both: the faster one */
    CHECK_OK(plan_store_find(&s, &want, &found, &is_found));
    CHECK(is_found && found.value == 7);
}

/* A plan is for its layer alone, and does not replace that of another. */
TEST(kept_plans_of_other_layers) {
    static const plan_file base = {.layer = "bert",
                                   .arch = "sm_90",
                                   .dtype = "float16",
                                   .mask = "none",
                                   .n_heads = 12,
                                   .dim_head = 64,
                                   .max_len = 512,
                                   .n_tokens = 4096,
                                   .ms = 2};
    plan_file other[8], found;
    plan_store s;
    bool is_found;
    for (int i = 0; i < 8; i++)
        other[i] = base;
    snprintf(other[1].layer, sizeof other[1].layer, "hstu");
    snprintf(other[2].arch, sizeof other[2].arch, "sm_80");
    snprintf(other[3].dtype, sizeof other[3].dtype, "float32");
    snprintf(other[4].mask, sizeof other[4].mask, "causal");
    other[5].n_heads = 16;
    other[6].dim_head = 32;
    other[7].dim_ffn = 1000;
    CHECK_OK(plan_store_open(&s, test_folder()));
    for (int i = 0; i < 8; i++) {
        CHECK_OK(plan_store_find(&s, &other[i], &found, &is_found));
        CHECK(!is_found);
        other[i].value = (uint16_t)(i + 1);
        keep(&s, &other[i], true);
        for (int k = 0; k <= i; k++) {
            CHECK_OK(plan_store_find(&s, &other[k], &found, &is_found));
            CHECK(is_found && found.value == k + 1 && found.dim_ffn == other[k].dim_ffn);
        }
    }
}

/* auto: the kept plan of a batch, the built-in layers where there is none. */
TEST(auto_takes_a_kept_plan) {
    encoder_config c = small();
    backend *be = open_device();
    float want[ROWS * 24], got[ROWS * 24];
    plan_store s;
    plan_file f = {.value = 41115, .ms = 1};
    chain_shape shape = {.n_heads = 3, .dim_head = 8, .max_len = 33, .n_tokens = 34};
    kernel_cache cache;
    target *t;
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_OK(target_create_on(&t, be, NULL, &cache));
    plan_file_key(&f, t, chain_of(CHAIN_BERT), &shape, NULL, NULL);
    target_destroy(t);
    encoder_plan_options o = {.plan = "auto", .cache = test_folder()};
    encoder_plan *p;
    CHECK_OK(plan_store_open(&s, test_folder()));
    keep(&s, &f, true);
    CHECK_OK(encoder_plan_create(&p, be, &c, &o));
    encode(&c, be, NULL, NULL, want);
    encode(&c, be, NULL, encoder_plan_layers(p), got);
    CHECK(error_of(got, want, ROWS * 24) < limit());
    encoder_plan_use use = encoder_plan_used(p);
    CHECK(use.n_by_plan == 1 && use.n_built_in == 1 && use.value == 41115);
    encoder_plan_destroy(p);
    test_real_backend_end(be);
}
