/* Hardware counters, where a GPU is and its driver lets this process read them: what a kernel must
 * move it does move, and tensor cores work in products alone. */
#include <math.h>
#include <string.h>

#include "ops/device.h"
#include "ops/ops.h"
#include "test.h"
/* after the ops, which have a parameter of the name span */
#include "profile/cupti.h"

static gpu_record got[64];
static int n_got;

static status keep(void *ctx, const gpu_record *r) {
    (void)ctx;
    CHECK(n_got < 64 && r->kind == GPU_COUNTERS && r->name != NULL);
    got[n_got++] = *r;
    return OK;
}

TEST(counters_say_why_there_are_none) {
    device_driver driver;
    const cupti_sink sink = {NULL, keep};
    device_driver_ask(&driver);
    if (driver.reason[0] == '\0') SKIP_TEST("here is a GPU");
    CHECK(!cupti_counters_start(&sink));
    CHECK(strlen(cupti_reason()) > 10);
}

enum { N = 1 << 29, DIM = 4096 }; /* a sum of 3 GiB: what stays in the L2 cache is little of it */

static status run_both(backend *be, void *x, void *y, float *w) {
    linear_args a = {.n = DIM, .n_in = DIM, .n_out = DIM, .x = x, .w = w, .y = y};
    TRY(be->ops->zero(be, x, (size_t)N * 2));
    TRY(be->ops->zero(be, y, (size_t)N * 2));
    TRY(be->ops->zero(be, w, (size_t)DIM * DIM * sizeof *w));
    TRY(be->ops->linear_fwd(be, &a)); /* chooses its kernel */
    TRY(be->ops->sync(be));
    cupti_counters_set_on(true);
    TRY(be->ops->add(be, N, x, y));
    int n_sums = n_got;
    TRY(be->ops->linear_fwd(be, &a));
    TRY(be->ops->sync(be));
    cupti_counters_set_on(false);
    TRY(be->ops->add(be, N, x, y)); /* not counted */
    TRY(be->ops->sync(be));
    return n_sums == 1 || n_got == 0 ? OK : fail(ERR_FORMAT, "%d kernels of a sum", n_sums);
}

TEST(counters_of_a_sum_and_a_product) {
    device_driver driver;
    backend *be;
    void *x = NULL, *y = NULL, *w = NULL;
    const cupti_sink sink = {NULL, keep};
    device_driver_ask(&driver);
    if (driver.reason[0] != '\0') SKIP_TEST("%s", driver.reason);
    if (!cupti_counters_start(&sink)) SKIP_TEST("%s", cupti_reason());
    CHECK_OK(backend_open(&be, NULL, "cuda", false));
    CHECK_OK(be->ops->set_precision(be, ACT_BF16, false));
    CHECK_OK(be->ops->alloc(be, &x, (size_t)N * 2));
    CHECK_OK(be->ops->alloc(be, &y, (size_t)N * 2));
    CHECK_OK(be->ops->alloc(be, &w, (size_t)DIM * DIM * sizeof(float)));
    CHECK_OK(run_both(be, x, y, w));
    bool is_good = cupti_counters_stop();
    be->ops->release(be, x);
    be->ops->release(be, y);
    be->ops->release(be, w);
    backend_destroy(be);
    if (!is_good) SKIP_TEST("%s", cupti_reason());
    float tensor = 0;
    for (int i = 0; i < n_got; i++) {
        printf("    %7.3f ms, occupancy %5.1f %%, tensor cores %5.1f %%, DRAM %8.3f MB, L2 %8.3f MB"
               "\n",
               (double)got[i].end_ns / 1e6, (double)got[i].occupancy, (double)got[i].tensor,
               (double)got[i].bytes / 1e6, (double)got[i].mark / 1e6);
        CHECK(got[i].occupancy > 0 && got[i].occupancy <= 100);
        CHECK(got[i].tensor >= 0 && got[i].tensor <= 100);
        CHECK(got[i].end_ns > 1000 && got[i].end_ns < 1000000000);
        if (i > 0 && got[i].tensor > tensor) tensor = got[i].tensor;
    }
    CHECK(n_got >= 2);
    double must = 3.0 * N * 2;
    CHECK(fabs((double)got[0].bytes - must) < .1 * must);
    /* The halves of an H200's L2 both count a byte that crosses between them: 1.5 here. */
    CHECK((double)got[0].mark > .9 * must && (double)got[0].mark < 2.5 * must);
    CHECK(got[0].tensor == 0);
    CHECK(tensor > 1); /* percent: zeros are multiplied as anything else */
}
