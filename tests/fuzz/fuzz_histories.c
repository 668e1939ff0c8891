/* Any bytes as a history: every event that is accepted names an item of the data, in order of
 * time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/histories.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static seq_file toy(int is_text) {
    static const int64_t numbers[] = {0, 1, 12, 99};
    static const uint64_t offsets[] = {0, 0, 1, 4, 6};
    seq_file s = {.path = "toy", .n_items = 3, .actions = ACTION_STARS, .time_per_second = 1000};
    s.item_id = numbers;
    s.has_text_items = is_text;
    s.item_text = (text_column){offsets, "1a,bxy", 4};
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    seq_file s = toy(n % 2);
    char *text = malloc(n + 1);
    given_history g;
    if (text == NULL) return 0;
    if (n > 0) memcpy(text, bytes, n);
    text[n] = '\0';
    if (given_history_read(&g, &s, 0, text, n) == OK)
        for (size_t i = 0; i < g.n; i++)
            if (g.item[i] < 1 || g.item[i] > 3 ||
                (g.action[i] > 4 && g.action[i] != ACTION_UNKNOWN) ||
                (i > 0 && g.time[i] < g.time[i - 1]))
                abort();
    given_history_fini(&g);
    free(text);
    return 0;
}
