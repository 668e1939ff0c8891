/* AUC, as the evaluation computes it. */
#include <stdio.h>

#include "golden.h"
#include "train/report/metrics.h"

status golden_metrics_auc(golden *g) {
    const st_tensor *scores, *want;
    int64_t *label, n;
    int32_t *bits;
    double got[AUC_MAX_TASKS];
    auc a;
    TRY(golden_get(g, "scores", &scores));
    TRY(golden_get(g, "auc", &want));
    TRY(golden_ints(g, "labels", &label, &n));
    TRY(NN_NEW_HOST(&g->memory, &bits, n));
    for (int64_t i = 0; i < n; i++)
        bits[i] = (int32_t)label[i];
    TRY(auc_init(&a, (int)want->n));
    status st = auc_add(&a, scores->data, bits, n);
    if (st == OK) st = auc_compute(&a, got);
    auc_fini(&a);
    for (int64_t k = 0; st == OK && k < want->n; k++)
        golden_check_value(g, "auc", got[k], golden_at(want, k), 1e-12);
    return st;
}
