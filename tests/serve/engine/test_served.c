/* What a served model measures before it is ready. */
#include "serve/engine/served.h"

#include "serve_test.h"

/* Keys and values in 8 bits change answers a little, and the engine says how much. */
TEST(engine_of_8_bit_keys_tells_its_error) {
    const char *run = serve_run("bits", retrieval_gin, NULL, 0);
    engine_config c = {.device = "cpu", .n_threads = 1, .kv_pages = 16, .has_fp8_kv = true};
    engine *plain = serve_open(run, NULL, 16), *narrow;
    engine_model_info a, b;
    CHECK_OK(engine_create(&narrow, &c));
    CHECK_OK(engine_load(narrow, "model", run));
    CHECK_OK(engine_model(plain, 0, &a));
    CHECK_OK(engine_model(narrow, 0, &b));
    CHECK(!a.has_fp8_kv && b.has_fp8_kv && b.fp8_error > 1e-7 && b.fp8_error < 0.1);
    CHECK(b.page_bytes * 3 < a.page_bytes);
    engine_event history[8];
    for (int i = 0; i < 8; i++)
        history[i] = serve_event(i + 1, 1000 + i);
    engine_request r = {.task = ENGINE_RECOMMEND,
                        .has_history = true,
                        .history = history,
                        .n_history = 8,
                        .top_k = 5,
                        .wants_vector = true,
                        .deadline_ns = 100000000000u};
    engine_answer x = serve_ask(plain, &r), y = serve_ask(narrow, &r), z = serve_ask(narrow, &r);
    double worst = 0, largest = 0;
    for (int32_t i = 0; i < x.dim; i++) {
        worst = fmax(worst, fabs((double)x.vector[i] - (double)y.vector[i]));
        largest = fmax(largest, fabs((double)x.vector[i]));
        CHECK(y.vector[i] == z.vector[i]); /* read from 8 bits, or just computed: the same */
    }
    CHECK(z.tokens_reused == 7 && worst > 0 && worst < 0.2 * largest);
    engine_answer_release(&x);
    engine_answer_release(&y);
    engine_answer_release(&z);
    engine_destroy(plain);
    engine_destroy(narrow);
}

/* Costs are measured when a model is loaded; whatever they are, answers name their source. */
TEST(engine_chooses_by_measured_costs) {
    static const char *const set[] = {"train_fn.max_sequence_length=200"};
    const char *run = serve_run("costs", retrieval_gin, set, 1);
    engine_config c = {.device = "cpu", .n_threads = 1, .kv_pages = 4, .kv_host_pages = 16};
    engine *e;
    engine_model_info m;
    engine_stats s;
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_load(e, "model", run));
    CHECK_OK(engine_model(e, 0, &m));
    CHECK(m.n_host_pages == 16 && m.load_us_token > 0 && m.compute_us_token >= 0);
    for (int round = 0; round < 2; round++)
        for (int64_t who = 0; who < 3; who++) {
            engine_event history[150];
            for (int i = 0; i < 150; i++)
                history[i] = serve_event(1 + (i * 7 + who) % 50, 1000 + i);
            engine_request r = {.task = ENGINE_RECOMMEND,
                                .has_history = true,
                                .history = history,
                                .n_history = 150,
                                .top_k = 5,
                                .deadline_ns = 100000000000u};
            engine_answer a = serve_ask(e, &r);
            CHECK(a.tokens_reused + a.tokens_computed == 150);
            CHECK(a.tokens_loaded <= a.tokens_reused);
            engine_answer_release(&a);
        }
    CHECK_OK(engine_model_stats(e, 0, &s));
    bool is_loaded = m.load_from_tokens > 0 && m.load_from_tokens <= 128;
    if (is_loaded) CHECK(s.tokens_loaded > 0 && s.kv_bytes_in > 0 && s.kv_host_used > 0);
    if (m.load_from_tokens < 0 || m.load_from_tokens > 150) CHECK_EQ(s.tokens_loaded, 0);
    CHECK(s.tokens_loaded + s.tokens_device == s.tokens_reused);
    engine_destroy(e);
}

/* FLOPs by hand: a layer of width 8 with one head of 8 and 8, 60 items; a history of n tokens has
 * n * n / 2 pairs, and each candidate sees all of it and itself. */
TEST(served_counts_flops) {
    enum { TOKEN = 2 * 8 * (2 * 16 + 8), PAIR = 2 * 16, HEAD = 2 * 8 * 60 };
    engine_config c = {.device = "cpu", .n_threads = 1, .kv_pages = -1};
    served *m;
    CHECK_OK(served_open(&m, &c, serve_run("flops", retrieval_gin, NULL, 0), NULL));
    CHECK(served_flops(m, 0, 0) == HEAD);
    CHECK(served_flops(m, 10, 0) == HEAD + 10 * TOKEN + 50 * PAIR);
    CHECK(served_flops(m, 10, 3) == HEAD + 13 * TOKEN + (50 + 33) * PAIR);
    engine_work w = served_work(m, &(engine_shape){.n_users = 2, .n_computed = 10});
    CHECK(w.flops == 2 * served_flops(m, 10, 0) && w.bytes > 0);
    w = served_work(m, &(engine_shape){.n_users = 1, .n_computed = 2, .n_reused = 8});
    CHECK(w.flops == HEAD + 2 * TOKEN + 18 * PAIR);
    served_drop(m);
}
