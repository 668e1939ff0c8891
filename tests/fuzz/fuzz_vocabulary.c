/* Arbitrary bytes as a vocabulary, and as data: matching one to the other must refuse, or give a
 * view that can be read.  The fuzz build skips the checksums (column_file.c). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "model/vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A small data set of its own: three users, items 3, 5 and 8, a feature. */
static const uint64_t offsets[] = {0, 2, 2, 5}, text_offsets[] = {0, 0, 1, 2};
static const uint32_t items[] = {1, 2, 3, 1, 2}, values[] = {1, 0, 2};
static const uint16_t actions[] = {0, 4, 1, 2, 3};
static const int64_t times[] = {1, 2, 3, 4, 5}, ids[] = {0, 3, 5, 8}, users[] = {1, 2, 3};

static seq_file small_data(void) {
    seq_file s = {.n_users = 3,
                  .n_items = 3,
                  .n_events = 5,
                  .offsets = offsets,
                  .item = items,
                  .action = actions,
                  .time = times,
                  .actions = ACTION_STARS,
                  .time_per_second = 1,
                  .user_id = users,
                  .item_id = ids,
                  .n_context = 1};
    snprintf(s.path, sizeof s.path, "small");
    snprintf(s.context[0].name, sizeof s.context[0].name, "age");
    s.context[0].value = values;
    s.context[0].values = (text_column){text_offsets, "mf", 3};
    return s;
}

/* Everything of a view is in range. */
static void read_all(const seq_file *s) {
    buf name = {0};
    for (uint64_t u = 0; u < s->n_users; u++) {
        for (uint64_t i = s->offsets[u]; i < s->offsets[u + 1]; i++)
            if (s->item[i] < 1 || seq_item_title(s, s->item[i], &name) != OK) abort();
        for (int f = 0; f < s->n_context; f++)
            if (s->context[f].value[u] >= s->context[f].values.n) abort();
        if (seq_row(s, seq_whole_begin(s, u)) != s->offsets[u]) abort();
    }
    buf_fini(&name);
}

static void match(const seq_file *vocabulary, const seq_file *data) {
    for (int i = 0; i < 4; i++) {
        vocabulary_view v;
        if (vocabulary_view_init(&v, vocabulary, data, i % 2 == 1, i >= 2, NULL) == OK)
            read_all(v.data);
        vocabulary_view_fini(&v);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    seq_file *s, small = small_data();
    log_set_level(LOG_QUIET);
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (seq_file_open(&s, path, NULL) == OK) {
        match(s, &small);
        match(&small, s);
        match(s, s);
        seq_file_close(s);
    }
    close(fd);
    return 0;
}
