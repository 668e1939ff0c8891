/* Arbitrary bytes as a safetensors file: opening must refuse, or give tensors that can be read. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    st_file *f;
    static volatile unsigned char sink; /* keeps the reads */
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (st_open(&f, path) == OK) {
        for (size_t i = 0; i < f->n_tensors; i++) {
            const st_tensor *t = &f->tensors[i];
            size_t bytes = (size_t)t->n * st_dtype_bytes(t->dtype);
            if (bytes > 0) sink = ((const unsigned char *)t->data)[bytes - 1];
            if (st_find(f, t->name) == NULL) abort();
            (void)sink;
        }
        st_close(f);
    }
    close(fd);
    return 0;
}
