/* Arbitrary bytes as a .seq file: opening must refuse, or give views that can all be read.  The
 * fuzz build skips the checksums (column_file.c). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "data/set/seq_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    log_set_level(LOG_QUIET);
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    seq_file *s;
    if (seq_file_open(&s, path, NULL) == OK) {
        buf name = {0};
        static volatile int64_t sum; /* keeps the reads */
        for (uint64_t u = 0; u < s->n_users; u++) {
            if (seq_user_name(s, u, &name) != OK) abort();
            for (uint64_t i = s->offsets[u]; i < s->offsets[u + 1]; i++) {
                if (seq_item_title(s, s->item[i], &name) != OK) abort();
                sum = s->time[i] + s->action[i];
            }
        }
        (void)sum;
        buf_fini(&name);
        seq_file_close(s);
    }
    close(fd);
    return 0;
}
