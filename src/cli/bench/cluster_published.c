/* NVIDIA's figures on 16 H100 (recsys-examples, E2E_BENCHMARK.md and PERF_ANALYSIS.md, 2026): each
 * from the others by the model.
 *
 * Given: a step of one fixed shape, 63.89 TFLOP in 187.01 ms, of which the GPUs were idle for
 * 6.185 ms and NCCL was exposed for 2.927 ms.  So a GPU computes 359 TFLOP/s, and 6.2 ms of a step
 * are fixed.  The speed without a balancer, 75.6 TFLOP/s, gives the speed of their first kernels.
 * Nothing of what is compared below goes into it. */
#include "cli/bench/cluster.h"

static const double FIXED_TFLOP = 63.89e12, FIXED_STEP_S = .18701, IDLE_S = .006185;
static const double EXPOSED_S = .002927, ZIPF_FLOPS = 310.6e12, BALANCER = 115.8 / 75.6;
static const double NO_BALANCER_FLOPS = 75.6e12;
enum { N_GPUS = 16 };

/* Their model: 8 layers, 4 heads of 256, width 1024, item rows of 128 floats, 32 users a GPU. */
static config their_config(void) {
    config c = {.task = TASK_RANKING, .file = "published"};
    c.network = (config_network){.n_layers = 8,
                                 .hidden_size = 1024,
                                 .n_heads = 4,
                                 .dim_qk = 256,
                                 .dim_v = 256,
                                 .item_dim = 128,
                                 .contextual_dim = 256};
    c.trainer.train_batch_size = 32;
    c.data.max_history = 2048;
    return c;
}

/* The exposed communication of the fixed shape: 2048 items, as many actions, 3 contextual tokens;
 * gradients after the backward pass, ids sent during the step before. */
static status exposed_of_fixed(const cluster_work *w, double spread, const cluster_links *l,
                               double flops, double *out) {
    cluster_row row;
    cluster_rank r = {.flops = flops, .fixed_s = IDLE_S, .spread = spread};
    TRY(cluster_predict(w, &r, l, N_GPUS, &row));
    *out = row.exposed_s + row.rows_s + row.small_s + row.wait_s;
    return OK;
}

/* The step of other kernels is found from their speed without a balancer; then what the balancer
 * gains with them. */
static status gain_of_balancer(const cluster_work *w, double spread, const cluster_links *l,
                               double *out) {
    cluster_row none, equal;
    cluster_rank r = {.flops = 1e14, .fixed_s = IDLE_S, .spread = spread};
    for (int i = 0; i < 20; i++) { /* the speed at which the step has 75.6 TFLOP/s: it converges */
        TRY(cluster_predict(w, &r, l, N_GPUS, &none));
        r.flops *= NO_BALANCER_FLOPS / (none.work / none.step_s);
    }
    r.balance = BALANCE_EQUAL;
    TRY(cluster_predict(w, &r, l, N_GPUS, &equal));
    *out = none.step_s / equal.step_s * equal.work / none.work;
    return OK;
}

status cluster_published(double spread, cluster_check out[CLUSTER_CHECKS]) {
    config c = their_config();
    cluster_work w;
    const cluster_links *l = cluster_profile(0);
    double flops = FIXED_TFLOP / (FIXED_STEP_S - IDLE_S - EXPOSED_S);
    cluster_row row;
    TRY(cluster_work_of(&c, &w));
    w.n_context = 3;
    w.n_ids = 50000000;
    w.id_alpha = 1.05;
    out[0] = (cluster_check){"exposed NCCL, 4099 tokens a user", "ms", EXPOSED_S * 1e3, 0};
    TRY(exposed_of_fixed(&w, spread, l, flops, &out[0].model));
    out[0].model *= 1e3;
    w.lengths = LENGTHS_ZIPF;
    w.length_alpha = w.id_alpha = 1.2;
    w.max_length = 4096;
    w.n_context = 0;
    cluster_rank r = {flops, IDLE_S, spread, false, BALANCE_EQUAL};
    TRY(cluster_predict(&w, &r, l, N_GPUS, &row));
    out[1] = (cluster_check){"speed of a GPU, lengths by Zipf 1.2", "TFLOP/s", ZIPF_FLOPS * 1e-12,
                             row.work / row.step_s * 1e-12};
    out[2] = (cluster_check){"gain of the balancer, likewise", "x", BALANCER, 0};
    return gain_of_balancer(&w, spread, l, &out[2].model);
}
