/* hstu bench layers: its own check, of layers with a cache against layers without. */
#include "cli/bench/serve_layers.h"

#include <math.h>

#include "base/thread.h"
#include "device.h"
#include "test.h"

static int n_rows;

static status take(void *ctx, const layers_row *row) {
    (void)ctx;
    n_rows++;
    CHECK(row->error == 0 && row->plain > 0 && row->flops > 0);
    CHECK(isnan(row->goal));
    return OK;
}

/* On the CPU keys in pages change no bit, whatever the sizes. */
TEST(serve_layers_cache_changes_nothing) {
    static const int32_t lengths[][2] = {{130, 1}, {64, 63}, {70, 70}};
    layers_shape shape = {.n_layers = 2, .n_heads = 2, .head_dim = 8, .n_candidates = 3, .seed = 5};
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 3; i++) {
        layers_row only = {.batch = 2, .length = lengths[i][0], .n_new = lengths[i][1]};
        CHECK_OK(serve_layers_run(be, &shape, &only, take, NULL));
    }
    CHECK(n_rows == 3);
    layers_row wrong = {.batch = 1, .length = 10, .n_new = 11};
    CHECK_FAILS(serve_layers_run(be, &shape, &wrong, take, NULL), ERR_USAGE, "of a history of 10");
    layers_row none = {.batch = 3};
    CHECK_FAILS(serve_layers_run(be, &shape, &none, take, NULL), ERR_USAGE, "no such row");
    backend_destroy(be);
}
