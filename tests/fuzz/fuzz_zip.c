/* Any bytes as a zip archive: the members must lie in it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    arena a;
    zip_list l;
    uint8_t *bytes = malloc(n + (n == 0));
    if (bytes == NULL) return 0;
    memcpy(bytes, data, n);
    arena_init(&a, 4096);
    if (zip_read(&l, &a, "fuzz", bytes, n) == OK) {
        for (size_t i = 0; i < l.n; i++) {
            const zip_member *m = &l.member[i];
            if (m->bytes < bytes || m->bytes + m->n_bytes > bytes + n) abort();
            if (zip_find(&l, m->name) != m) abort();
            (void)zip_verify(m, "fuzz");
        }
    }
    arena_fini(&a);
    free(bytes);
    return 0;
}
