/* Five recommendations for some users of a trained run.
 *
 *   recommend RUN DATA USER...
 *
 * Build: make examples, or cc recommend.c $(pkg-config --cflags --libs hstu). */
#include <hstu.h>
#include <stdio.h>
#include <stdlib.h>

enum { K = 5, TITLE_BYTES = 60 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, hstu_error());
    return 1;
}

int main(int argc, char **argv) {
    hstu_model *model;
    int status = 0;
    if (argc < 4) {
        fprintf(stderr, "usage: recommend RUN DATA USER...\n");
        return 2;
    }
    if (hstu_model_open(&model, argv[1], argv[2], "auto") != HSTU_OK) return failed(argv[1]);
    const hstu_data *data = hstu_model_data(model);
    for (int i = 3; i < argc && status == 0; i++) {
        uint64_t user;
        uint32_t item[K];
        float score[K];
        if (hstu_data_find_user(data, argv[i], &user) != HSTU_OK ||
            hstu_model_recommend(model, &user, 1, K, 0, item, score) != HSTU_OK) {
            status = failed(argv[i]);
            break;
        }
        printf("%s\n", argv[i]);
        for (int k = 0; k < K && item[k] != 0; k++) {
            char title[TITLE_BYTES];
            if (hstu_data_item_title(data, item[k], title, sizeof title) == HSTU_OK)
                printf("  %8.4f  %s\n", (double)score[k], title);
        }
    }
    hstu_model_close(model);
    return status;
}
