/* Whole encoders: golden vectors of transformers (tests/golden-encoder), and families made from
 * them. */
#include "encode/encoder.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "dense_test.h"
#include "encode/encoder_io.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

static const char *const KINDS[] = {"none",    "causal",  "sliding", "longformer",
                                    "dilated", "strided", "fixed",   "bits"};

static const char *golden_folder(int model) {
    static char path[64];
    snprintf(path, sizeof path, "tests/golden-encoder/bert-%d", model);
    return path;
}

static const char *case_path(int model, const char *kind) {
    static char path[128];
    snprintf(path, sizeof path, "tests/golden-encoder/bert-%d/cases/%s.safetensors", model, kind);
    return path;
}

/* The mask of a case, from its metadata. */
static mask *case_mask(const st_file *f, const char *path) {
    char text[256];
    mask *m;
    const char *kind = st_metadata(f, "mask"), *window = st_metadata(f, "window");
    const char *n_global = st_metadata(f, "global"), *dilation = st_metadata(f, "dilation");
    snprintf(text, sizeof text, "%s", kind);
    if (strcmp(kind, "sliding") == 0) snprintf(text, sizeof text, "sliding,window=%s", window);
    if (strcmp(kind, "longformer") == 0)
        snprintf(text, sizeof text, "longformer,window=%s,global=%s", window, n_global);
    if (strcmp(kind, "dilated") == 0)
        snprintf(text, sizeof text, "dilated,window=%s,dilation=%s", window, dilation);
    if (strcmp(kind, "bits") == 0) snprintf(text, sizeof text, "bits:%s", path);
    CHECK_OK(mask_create(&m, text));
    return m;
}

/* All results of a file of sequences. */
typedef struct results {
    float *hidden, *pooled;
    int64_t n_tokens, n_sequences;
} results;

static void results_fini(results *r) {
    mem_free(r->hidden);
    mem_free(r->pooled);
}

static void run_batch(encoder *e, results *r) {
    int32_t n = encoder_n_sequences(e), dim = encoder_config_of(e)->dim;
    int64_t n_tokens = encoder_offsets(e)[n];
    CHECK_OK(encoder_run(e));
    CHECK_OK(encoder_read(e, r->hidden + r->n_tokens * dim, r->pooled + r->n_sequences * dim));
    r->n_tokens += n_tokens;
    r->n_sequences += n;
    encoder_clear(e);
}

/* In batches as large as the encoder takes, or one sequence at a time. */
static results run_file(encoder *e, const char *path, bool is_alone, bool has_types) {
    results r = {0};
    encoder_input *in;
    encoder_sequence s;
    bool is_end = false;
    size_t dim = (size_t)encoder_config_of(e)->dim;
    CHECK_OK(MEM_NEW(&r.hidden, 4096 * dim));
    CHECK_OK(MEM_NEW(&r.pooled, 64 * dim));
    CHECK_OK(encoder_input_open(&in, path, NULL, 1 << 20, false));
    for (;;) {
        CHECK_OK(encoder_input_next(in, &s, &is_end));
        if (is_end) break;
        if (!encoder_fits(e, s.n) || (is_alone && encoder_n_sequences(e) > 0)) run_batch(e, &r);
        CHECK_OK(encoder_add(e, s.ids, has_types ? s.types : NULL, s.n));
    }
    run_batch(e, &r);
    encoder_input_close(in);
    return r;
}

/* The tolerances of tests/golden-encoder/README.md. */
static void check_rms(const char *what, const float *got, const float *want, int64_t n) {
    double difference = 0, size = 0;
    double limit = test_on.p == PRECISION_F32 ? 3e-6 : test_on.p == PRECISION_BF16 ? 1.5e-2 : 2e-3;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    if (!(sqrt(difference / size) <= limit))
        FAIL_TEST("%s is off by %.3g of its size, more than %.3g", what, sqrt(difference / size),
                  limit);
}

static void check_case(backend *be, int model, const char *kind, int64_t batch_tokens) {
    st_file *f;
    const st_tensor *hidden, *pooled;
    encoder *e;
    const char *path = case_path(model, kind);
    CHECK_OK(st_open(&f, path));
    CHECK_OK(st_get(f, "hidden", ST_F32, &hidden));
    CHECK_OK(st_get(f, "pooled", ST_F32, &pooled));
    mask *m = case_mask(f, path);
    encoder_options o = {.batch_tokens = batch_tokens, .mask = m};
    CHECK_OK(encoder_create(&e, golden_folder(model), be, &o));
    CHECK(encoder_has_pooler(e));
    results r = run_file(e, path, false, true);
    CHECK_EQ(r.n_tokens, hidden->shape[0]);
    CHECK_EQ(r.n_sequences, pooled->shape[0]);
    check_rms(path, r.hidden, hidden->data, hidden->n);
    check_rms(path, r.pooled, pooled->data, pooled->n);
    results_fini(&r);
    encoder_destroy(e);
    mask_destroy(m);
    st_close(f);
}

static void check_model(int model) {
    pool *workers;
    backend *be;
    CHECK_OK(pool_create(&workers, 2));
    CHECK_OK(test_backend(&be, workers));
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        check_case(be, model, KINDS[i], 4096);
        check_case(be, model, KINDS[i], 1); /* a few sequences at a time */
    }
    backend_destroy(be);
    pool_destroy(workers);
}

TEST(encoder_golden_bert_0) {
    check_model(0);
}

TEST(encoder_golden_bert_1) {
    check_model(1);
}

/* A batch gives each sequence the bits that it has alone. */
TEST(encoder_batch_equals_one_by_one) {
    static const char *const masks[] = {NULL, "causal", "longformer,window=2,global=1"};
    pool *workers;
    backend *be;
    if (test_on.kind != ON_CPU) SKIP_TEST("a promise of the CPU alone");
    CHECK_OK(pool_create(&workers, 2));
    CHECK_OK(test_backend(&be, workers));
    for (int i = 0; i < 3; i++) {
        mask *m = NULL;
        encoder *e;
        if (masks[i] != NULL) CHECK_OK(mask_create(&m, masks[i]));
        CHECK_OK(encoder_create(&e, golden_folder(1), be,
                                &(encoder_options){.batch_tokens = 2000, .mask = m}));
        results all = run_file(e, case_path(1, "none"), false, true);
        results one = run_file(e, case_path(1, "none"), true, true);
        CHECK_SAME(one.hidden, all.hidden, all.n_tokens * 64);
        CHECK_SAME(one.pooled, all.pooled, all.n_sequences * 64);
        results_fini(&all);
        results_fini(&one);
        encoder_destroy(e);
        mask_destroy(m);
    }
    backend_destroy(be);
    pool_destroy(workers);
}

/* The name of a tensor of bert-0 in another family; NULL: it has none. */
static const char *renamed(const char *name, const char *prefix, bool is_distil) {
    static char to[256];
    static const char *const parts[][2] = {{"attention.self.query", "attention.q_lin"},
                                           {"attention.self.key", "attention.k_lin"},
                                           {"attention.self.value", "attention.v_lin"},
                                           {"attention.output.dense", "attention.out_lin"},
                                           {"attention.output.LayerNorm", "sa_layer_norm"},
                                           {"intermediate.dense", "ffn.lin1"},
                                           {"output.dense", "ffn.lin2"},
                                           {"output.LayerNorm", "output_layer_norm"}};
    if (is_distil && (strstr(name, "pooler") != NULL || strstr(name, "token_type") != NULL))
        return NULL;
    snprintf(to, sizeof to, "%s%s", prefix, name);
    const char *layer = is_distil ? strstr(name, "encoder.layer.") : NULL;
    if (layer == NULL) return to;
    int index = atoi(layer + 14);
    const char *part = strchr(layer + 14, '.') + 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(parts[i][0]);
        if (strncmp(part, parts[i][0], n) != 0) continue;
        snprintf(to, sizeof to, "%stransformer.layer.%d.%s%s", prefix, index, parts[i][1],
                 part + n);
        return to;
    }
    FAIL_TEST("%s has no place in distilbert", name);
    return NULL;
}

enum { MAX_TENSORS = 128, PADDING_ID = 2 }; /* 2 is not among the ids of the case */

/* bert-0 as another family, in the test's folder.  RoBERTa has PADDING_ID + 1 more positions before
 * the others; DistilBERT has the type 0 in its positions. */
static void write_family(bool is_distil) {
    char path[256], *names[MAX_TENSORS];
    st_file *f;
    st_tensor t[MAX_TENSORS];
    size_t n = 0;
    float *positions;
    const st_tensor *types;
    CHECK_OK(st_open(&f, "tests/golden-encoder/bert-0/model.safetensors"));
    CHECK_OK(st_get(f, "embeddings.token_type_embeddings.weight", ST_F32, &types));
    CHECK_OK(MEM_NEW(&positions, (size_t)(96 + PADDING_ID + 1) * 48));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *from = &f->tensors[i];
        const char *name = renamed(from->name, is_distil ? "distilbert." : "roberta.", is_distil);
        if (name == NULL) continue;
        t[n] = *from;
        if (strstr(name, "position_embeddings") != NULL) {
            int64_t skipped = is_distil ? 0 : PADDING_ID + 1;
            for (int64_t k = 0; k < from->n; k++)
                positions[skipped * 48 + k] =
                    ((const float *)from->data)[k] +
                    (is_distil ? ((const float *)types->data)[k % 48] : 0);
            t[n].shape[0] += skipped;
            t[n].n += skipped * 48;
            t[n].data = positions;
        }
        names[n] = strndup(name, strlen(name));
        t[n].name = names[n];
        n++;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", test_folder());
    CHECK_OK(st_write(path, t, n, NULL, 0));
    while (n > 0)
        free(names[--n]);
    mem_free(positions);
    st_close(f);
    snprintf(path, sizeof path, "%s/config.json", test_folder());
    FILE *c = fopen(path, "w");
    CHECK(c != NULL);
    if (is_distil)
        fputs("{\"model_type\": \"distilbert\", \"dim\": 48, \"n_layers\": 3, \"n_heads\": 4, "
              "\"hidden_dim\": 96, \"vocab_size\": 120, \"max_position_embeddings\": 96}",
              c);
    else
        fprintf(c,
                "{\"model_type\": \"roberta\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
                "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 120, "
                "\"max_position_embeddings\": %d, \"pad_token_id\": %d}",
                96 + PADDING_ID + 1, PADDING_ID);
    CHECK_EQ(fclose(c), 0);
}

/* The same weights under other names give the same states. */
TEST(encoder_families_agree) {
    backend *be;
    encoder *bert, *other;
    encoder_options o = {.batch_tokens = 4096};
    CHECK_OK(test_backend(&be, NULL));
    CHECK_OK(encoder_create(&bert, golden_folder(0), be, &o));
    for (int is_distil = 0; is_distil < 2; is_distil++) {
        write_family(is_distil);
        CHECK_OK(encoder_create(&other, test_folder(), be, &o));
        CHECK_EQ(encoder_has_pooler(other), !is_distil);
        CHECK_EQ(encoder_max_len(encoder_config_of(other)), 96);
        results a = run_file(bert, case_path(0, "none"), false, !is_distil);
        results b = run_file(other, case_path(0, "none"), false, !is_distil);
        check_rms("hidden", b.hidden, a.hidden, a.n_tokens * 48);
        if (!is_distil) check_rms("pooled", b.pooled, a.pooled, a.n_sequences * 48);
        results_fini(&a);
        results_fini(&b);
        encoder_destroy(other);
    }
    encoder_destroy(bert);
    backend_destroy(be);
}

/* RoBERTa: a padding id within a sequence has the padding's position and is not counted. */
TEST(encoder_roberta_padding_within) {
    static const int32_t with[] = {7, PADDING_ID, 9}, without[] = {7, 9};
    float a[3 * 48], b[2 * 48];
    backend *be;
    encoder *e;
    mask *own;
    CHECK_OK(test_backend(&be, NULL));
    write_family(false);
    CHECK_OK(mask_create(&own, "sliding,window=0")); /* each token sees itself alone */
    CHECK_OK(encoder_create(&e, test_folder(), be,
                            &(encoder_options){.batch_tokens = 100, .mask = own}));
    CHECK_OK(encoder_add(e, with, NULL, 3));
    CHECK_OK(encoder_run(e));
    CHECK_OK(encoder_read(e, a, NULL));
    encoder_clear(e);
    CHECK_OK(encoder_add(e, without, NULL, 2));
    CHECK_OK(encoder_run(e));
    CHECK_OK(encoder_read(e, b, NULL));
    check_rms("the token after the padding", a + 2 * 48, b + 48, 48);
    encoder_destroy(e);
    mask_destroy(own);
    backend_destroy(be);
}

TEST(encoder_refuses_sequences) {
    int32_t ids[97] = {0}, high[] = {5, 120}, low[] = {-1}, types[] = {0, 2}, ok[] = {5, 6};
    backend *be;
    encoder *e;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_OK(encoder_create(&e, golden_folder(0), be, &(encoder_options){.batch_tokens = 100}));
    CHECK_EQ(encoder_capacity(e), 100);
    CHECK_FAILS(encoder_add(e, ids, NULL, 0), ERR_FORMAT, "without tokens");
    CHECK_FAILS(encoder_add(e, ids, NULL, 97), ERR_FORMAT, "positions for 96");
    CHECK_FAILS(encoder_add(e, high, NULL, 2), ERR_FORMAT, "token 1: id 120");
    CHECK_FAILS(encoder_add(e, low, NULL, 1), ERR_FORMAT, "id -1");
    CHECK_FAILS(encoder_add(e, ok, types, 2), ERR_FORMAT, "token 1: type 2");
    CHECK_EQ(encoder_n_sequences(e), 0);
    CHECK_OK(encoder_run(e)); /* an empty batch */
    CHECK_OK(encoder_add(e, ids, NULL, 96));
    CHECK(encoder_fits(e, 4) && !encoder_fits(e, 5));
    CHECK_FAILS(encoder_add(e, ids, NULL, 5), ERR_USAGE, "no room");
    encoder_destroy(e);
    backend_destroy(be);
}

/* Every tensor that is missing is named; so is one of a wrong shape. */
TEST(encoder_refuses_models) {
    char path[256];
    st_file *f;
    backend *be;
    encoder *e;
    log_set_level(LOG_QUIET);
    CHECK_OK(test_backend(&be, NULL));
    CHECK_OK(st_open(&f, "tests/golden-encoder/bert-0/model.safetensors"));
    CHECK_EQ(test_command(NULL, "cp tests/golden-encoder/bert-0/config.json %s", test_folder()), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", test_folder());
    size_t n = f->n_tensors;
    CHECK(n < MAX_TENSORS);
    for (size_t left_out = 0; left_out < n; left_out += n / 9) {
        st_tensor t[MAX_TENSORS];
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            if (i != left_out) t[k++] = f->tensors[i];
        CHECK_OK(st_write(path, t, k, NULL, 0));
        const char *name = f->tensors[left_out].name;
        encoder_options o = {.batch_tokens = 100};
        status st = encoder_create(&e, test_folder(), be, &o);
        if (strcmp(name, "pooler.dense.weight") == 0) {
            CHECK_FAILS(st, ERR_UNSUPPORTED, "pooler.dense.bias"); /* half a pooler */
        } else {
            CHECK_FAILS(st, ERR_FORMAT, name);
        }
        CHECK(e == NULL);
    }
    st_close(f);
    backend_destroy(be);
}

static status create_once(void *ctx) {
    encoder *e;
    TRY(encoder_create(&e, golden_folder(0), ctx, &(encoder_options){.batch_tokens = 100}));
    encoder_destroy(e);
    return OK;
}

TEST(encoder_no_memory) {
    backend *be;
    if (test_on.kind != ON_CPU) SKIP_TEST("memory of the host");
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK(oom_at_each_allocation(create_once, be) > 20);
    backend_destroy(be);
}

/* Invented weights have what a family's files have. */
TEST(encoder_of_invented_weights_has_its_familys_pooler) {
    encoder_config c = {.family = ENCODER_BERT,
                        .n_layers = 1,
                        .dim = 8,
                        .n_heads = 2,
                        .dim_ffn = 16,
                        .n_words = 20,
                        .n_positions = 10,
                        .n_types = 1,
                        .f = EPILOGUE_GELU,
                        .eps = 1e-12f};
    backend *be;
    encoder *e;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(encoder_create_random(&e, &c, 5, be, &(encoder_options){.batch_tokens = 10}));
    CHECK(encoder_has_pooler(e));
    encoder_destroy(e);
    c.family = ENCODER_DISTILBERT;
    CHECK_OK(encoder_create_random(&e, &c, 5, be, &(encoder_options){.batch_tokens = 10}));
    CHECK(!encoder_has_pooler(e));
    encoder_destroy(e);
    backend_destroy(be);
}

/* Runs a few tokens of the small golden model. */
static encoder_scores *run(const char *mask_text, const int32_t *lengths, int n) {
    backend *be;
    encoder *e;
    encoder_scores *s;
    mask *m = NULL;
    int32_t ids[96];
    for (int i = 0; i < 96; i++)
        ids[i] = (7 * i + 3) % 120;
    CHECK_OK(backend_create_cpu(&be, NULL));
    if (mask_text != NULL) CHECK_OK(mask_create(&m, mask_text));
    CHECK_OK(encoder_create(&e, "tests/golden-encoder/bert-0", be,
                            &(encoder_options){.batch_tokens = 300, .mask = m}));
    CHECK_OK(encoder_scores_create(&s, e, m));
    for (int i = 0; i < n; i++)
        CHECK_OK(encoder_add(e, ids, NULL, lengths[i]));
    CHECK_OK(encoder_run_scored(e, s));
    encoder_destroy(e);
    mask_destroy(m);
    backend_destroy(be);
    return s;
}

static void check_head(const head_scores *h, int64_t n_rows, int64_t n_pairs, double max_entropy) {
    CHECK_EQ(h->n_rows, n_rows);
    CHECK_EQ(h->n_pairs, n_pairs);
    CHECK(h->entropy >= 0 && h->entropy <= max_entropy + 1e-6);
    for (int k = 0; k < SCORE_WINDOWS; k++) {
        CHECK(h->within[k] >= 0 && h->within[k] <= (double)n_rows + 1e-4);
        if (k > 0) CHECK(h->within[k] >= h->within[k - 1]);
    }
    for (int k = 1; k < SCORE_THRESHOLDS; k++)
        CHECK(h->below[k] >= h->below[k - 1] && h->below[k] <= n_pairs);
}

TEST(encoder_scores_of_all_pairs) {
    static const int32_t lengths[] = {1, 40, 9};
    encoder_scores *s = run(NULL, lengths, 3);
    for (int l = 0; l < 3; l++)
        for (int h = 0; h < 4; h++)
            check_head(encoder_scores_at(s, l, h), 50, 1 + 1600 + 81, 40 * log(40) + 9 * log(9));
    /* Within 64 tokens lies all of it: every row sums to one. */
    CHECK(fabs(encoder_scores_at(s, 2, 1)->within[4] - 50) < 1e-4);
    CHECK(encoder_scores_at(s, 2, 1)->within[0] < 50);
    CHECK(encoder_scores_at(s, 2, 1)->entropy > 1);
    encoder_scores_destroy(s);
}

/* Sequences of a batch do not see each other: twice the same one has twice the sums. */
TEST(encoder_scores_of_a_second_sequence) {
    static const int32_t lengths[] = {40, 40};
    encoder_scores *one = run(NULL, lengths, 1), *two = run(NULL, lengths, 2);
    for (int h = 0; h < 4; h++) {
        const head_scores *a = encoder_scores_at(one, 1, h), *b = encoder_scores_at(two, 1, h);
        CHECK(fabs(b->entropy - 2 * a->entropy) < 1e-5 * a->entropy);
        CHECK(fabs(b->within[1] - 2 * a->within[1]) < 1e-4);
    }
    encoder_scores_destroy(one);
    encoder_scores_destroy(two);
}

/* A window of 0: each row has one weight, 1; nothing is below a threshold. */
TEST(encoder_scores_under_masks) {
    static const int32_t lengths[] = {5, 30};
    encoder_scores *s = run("sliding,window=0", lengths, 2);
    const head_scores *h = encoder_scores_at(s, 1, 2);
    check_head(h, 35, 35, 0);
    CHECK(h->entropy == 0 && h->within[0] == 35 && h->below[SCORE_THRESHOLDS - 1] == 0);
    CHECK(h->first == 2); /* row 0 of each sequence */
    encoder_scores_destroy(s);
    s = run("causal", lengths, 2);
    check_head(encoder_scores_at(s, 0, 0), 35, 15 + 465, 1e9);
    encoder_scores_destroy(s);
}

TEST(encoder_scores_as_text) {
    static const int32_t lengths[] = {12};
    encoder_scores *s = run(NULL, lengths, 1);
    buf text = {0};
    arena a;
    const json_value *v;
    double entropy;
    arena_init(&a, 4096);
    CHECK_OK(encoder_scores_json(s, &text));
    CHECK_OK(json_parse(&a, "scores", buf_str(&text), text.n_bytes, &v));
    const json_value *heads = json_member(v, "heads");
    CHECK_EQ(heads->n_children, 12);
    CHECK_EQ(json_member(v, "tokens")->integer, 12);
    CHECK_EQ(json_member(v, "windows")->n_children, SCORE_WINDOWS);
    CHECK_EQ(json_member(v, "thresholds")->n_children, SCORE_THRESHOLDS);
    CHECK_OK(json_member_double(heads->first, "entropy", &entropy));
    CHECK(fabs(entropy - encoder_scores_at(s, 0, 0)->entropy / 12) < 1e-9);
    CHECK_EQ(json_member(heads->first, "within")->n_children, SCORE_WINDOWS);
    buf_clear(&text);
    CHECK_OK(encoder_scores_svg(s, &text));
    CHECK_CONTAINS(buf_str(&text), "<svg ");
    CHECK_CONTAINS(buf_str(&text), "</svg>");
    buf_fini(&text);
    arena_fini(&a);
    encoder_scores_destroy(s);
}
