/* The KV cache changes no bit of any answer: random schedules on models whose histories have
 * several pages.  `hstu bench cache RUN` runs as many as one likes. */
#include "cli/bench/bench.h"
#include "serve_test.h"

static void check_tiers(const char *gin, const char *const *set, size_t n_set, uint64_t n,
                        int64_t host_pages, bool is_fp8) {
    cache_check_config c = {.run = serve_run("long", gin, set, n_set),
                            .data = synth_folder(),
                            .device = "cpu",
                            .n = (int64_t)n,
                            .seed = 7,
                            .kv_host_pages = host_pages,
                            .has_fp8_kv = is_fp8};
    cache_check_result r;
    CHECK_OK(cache_check(&c, &r));
    CHECK((r.tokens_loaded > r.tokens_reused / 16) == (host_pages > 0));
    if (r.n_different != 0) FAIL_TEST("%s", r.first);
    CHECK(r.n_schedules == n && r.n_answers > 4 * n);
    if (r.tokens_reused < r.tokens_computed / 4 || r.n_evictions < n / 4)
        FAIL_TEST("%llu tokens reused, %llu computed, %llu pages evicted: that proves little",
                  (unsigned long long)r.tokens_reused, (unsigned long long)r.tokens_computed,
                  (unsigned long long)r.n_evictions);
    CHECK(r.n_reloads == n / 97 && r.n_restarts == n / 61);
}

static void check_model(const char *gin, const char *const *set, size_t n_set, uint64_t n) {
    check_tiers(gin, set, n_set, n, 0, false);
}

/* Position and time bias: the last row of a history changes with the next event. */
TEST(serve_check_of_research_retrieval) {
    static const char *const set[] = {"train_fn.max_sequence_length=150",
                                      "hstu_encoder.num_blocks=2"};
    check_model(retrieval_gin, set, 2, test_is_brief() ? 98 : 130);
}

/* Items and actions in turn, candidates that are never kept. */
TEST(serve_check_of_ranking) {
    static const char *const set[] = {"DatasetArgs.max_history_seqlen=90",
                                      "NetworkArgs.num_layers=2",
                                      "NetworkArgs.disable_contextual_mask=True"};
    check_model(ranking_gin, set, 3, test_is_brief() ? 98 : 130);
}

/* Pages that come back from host memory, and keys and values in 8 bits: with the cache and without,
 * they are rounded alike, so that answers stay equal to the bit. */
static const char *const tier_set[] = {
    "DatasetArgs.max_history_seqlen=90", "NetworkArgs.num_layers=2", "NetworkArgs.hidden_size=16",
    "NetworkArgs.num_attention_heads=2", "NetworkArgs.disable_contextual_mask=True"};

TEST(serve_check_of_two_tiers) {
    check_tiers(ranking_gin, tier_set, 5, test_is_brief() ? 16 : 40, 12, false);
}

TEST(serve_check_of_two_tiers_in_8_bits) {
    check_tiers(ranking_gin, tier_set, 5, test_is_brief() ? 16 : 40, 12, true);
}

/* Nothing is reused where a new event changes older rows. */
TEST(serve_check_refuses_what_cannot_be_reused) {
    static const char *const set[] = {"train_fn.main_module='SASRec'"};
    cache_check_config c = {.run = serve_run("sasrec", retrieval_gin, set, 1), .device = "cpu"};
    cache_check_result r;
    CHECK_FAILS(cache_check(&c, &r), ERR_UNSUPPORTED, "softmax");
}
