#include "serve/slot.h"

#include "serve/engine_int.h"
#include "serve_test.h"

/* Where the engine learns how long requests may take, one that names no deadline has that long, and
 * one that names its own has its own. */
TEST(slot_has_patience_with_requests_without_a_deadline) {
    const char *run = serve_run("retrieval", retrieval_gin, NULL, 0);
    for (int learns = 0; learns < 2; learns++) {
        engine_config c = {.data = synth_folder(),
                           .device = "cpu",
                           .n_threads = 1,
                           .deadline_ns = 100000000000u,
                           .learns_deadline = learns};
        engine *e;
        engine_answer a;
        engine_stats stats;
        CHECK_OK(engine_create(&e, &c));
        CHECK_OK(engine_load(e, "model", run));
        slot *s = engine_slot(e, 0);
        slot_stats(s, &stats);
        CHECK(stats.patience_s == 100);
        pthread_mutex_lock(&s->lock);
        s->queue.patience.s = 1e-8; /* of overload before */
        pthread_mutex_unlock(&s->lock);
        engine_request own = serve_recommend(1, 3), none = own;
        none.deadline_ns = 0;
        engine_ask(e, &none, &a);
        CHECK_EQ(a.outcome, learns ? ENGINE_OVERLOAD : ENGINE_OK);
        engine_answer_release(&a);
        CHECK_EQ(s->queue.patience.n_asked, 1); /* counted once, whatever the answer */
        a = serve_ask(e, &own);
        engine_answer_release(&a);
        CHECK_EQ(s->queue.patience.n_asked, 2);
        engine_destroy(e);
    }
}
