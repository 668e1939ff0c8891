/* Any bytes as a file that may be compressed or an archive: opened, listed, and the first files
 * read.  The file lives in memory; input.h reaches it by its name under /proc. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/input.h"

enum { MAX_READ_BYTES = 1 << 20, MAX_MEMBERS_READ = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Reads to the end, or as far as a bomb may take our time. */
static void drain(input *in) {
    static char block[10000];
    size_t got = 1;
    for (size_t total = 0; got > 0 && total < MAX_READ_BYTES; total += got)
        if (input_read(in, block, sizeof block, &got) != OK) return;
}

static void read_bundle(const char *path) {
    bundle *b;
    input *in;
    const char *const *names;
    size_t n;
    if (bundle_open(&b, path) != OK) return;
    if (bundle_list(b, &names, &n) == OK) {
        for (size_t i = 0; i < n && i < MAX_MEMBERS_READ; i++) {
            if (bundle_open_member(b, names[i], true, &in) != OK) continue;
            drain(in);
            input_close(in);
        }
    }
    bundle_close(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_bundle(path);
    input *in;
    if (input_open(&in, path) == OK) {
        drain(in);
        input_close(in);
    }
    close(fd);
    return 0;
}
