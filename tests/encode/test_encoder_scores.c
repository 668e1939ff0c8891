#include "encode/encoder_scores.h"

#include "base/mem.h"
#include "format/json.h"
#include "test.h"

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
    buf text;
    arena a;
    const json_value *v;
    double entropy;
    arena_init(&a, 4096);
    buf_init(&text);
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
