/* Reads a prepared data set through libhstu: one user's history and the first jagged batch.
 *
 *   ./hstu synth --out build/demo
 *   cc -Iinclude examples/read_data.c libhstu.a $(make -s print-libs) -o build/read_data
 *   build/read_data build/demo */
#include <inttypes.h>
#include <stdio.h>

#include "hstu.h"

static int complain(const char *what) {
    fprintf(stderr, "%s: %s\n", what, hstu_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "build/demo";
    hstu_data *data = NULL;
    hstu_data_info info;
    hstu_history history;
    if (hstu_data_open(&data, path) != HSTU_OK) return complain(path);
    hstu_data_get_info(data, &info);
    printf("%" PRIu64 " users, %" PRIu64 " items, %" PRIu64 " events\n", info.users, info.catalogue,
           info.events);

    if (hstu_data_history(data, 0, &history) != HSTU_OK) return complain(path);
    printf("the first user's last events:\n");
    for (uint64_t i = history.length > 5 ? history.length - 5 : 0; i < history.length; i++) {
        char title[64];
        if (hstu_data_item_title(data, history.item[i], title, sizeof title) != HSTU_OK)
            return complain(path);
        printf("  %" PRId64 "  %s\n", history.time[i], title);
    }

    hstu_batcher_config config;
    hstu_batcher *batcher = NULL;
    hstu_batch batch;
    hstu_batcher_defaults(&config);
    config.batch_size = 4;
    if (hstu_batcher_create(&batcher, data, &config) != HSTU_OK) return complain("batches");
    if (hstu_batcher_next(batcher, &batch) != HSTU_OK) return complain("batches");
    printf("the first batch: %" PRId32 " users, %" PRId32 " tokens:", batch.n_users,
           batch.n_tokens);
    for (int32_t b = 0; b < batch.n_users; b++)
        printf(" %" PRId32, batch.offsets[b + 1] - batch.offsets[b]);
    printf("\n");
    hstu_batcher_destroy(batcher);
    hstu_data_close(data);
    return 0;
}
