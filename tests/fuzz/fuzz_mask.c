/* Arbitrary bytes as the text of a mask and, after its first line, as the file that bits: and csr:
 * name: parsing and reading must refuse, or give rows that can be filled and tiles that hold them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ops/mask_tiles.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use_mask(const char *text) {
    mask *m;
    mask_tiles *p;
    if (mask_create(&m, text) != OK) return;
    int64_t own = mask_length(m, 0), length = own > 0 && own < 300 ? own : 70;
    if (mask_tiles_create(&p, m, 0, length) == OK) {
        if (mask_tiles_count(p, 64) != p->n_listed) abort();
        mask_tiles_destroy(p);
    }
    mask_destroy(m);
}

/* What parses, as a text again, must parse to the same rule. */
static void check_text(const char *text) {
    char again[MASK_TEXT_MAX], third[MASK_TEXT_MAX];
    mask_rule r, s;
    const char *path;
    if (mask_rule_parse(&r, text, &path) != OK || path != NULL) return;
    mask_rule_text(&r, again, sizeof again);
    if (mask_rule_parse(&s, again, &path) != OK) abort();
    mask_rule_text(&s, third, sizeof third);
    if (strcmp(again, third) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char text[256], path[300];
    const uint8_t *end = memchr(data, '\n', n);
    size_t n_text = end != NULL ? (size_t)(end - data) : n;
    snprintf(text, sizeof text, "%.*s", (int)(n_text < 200 ? n_text : 200), (const char *)data);
    check_text(text);
    if (strncmp(text, "bits:", 5) != 0 && strncmp(text, "csr:", 4) != 0) {
        use_mask(text);
        return 0;
    }
    if (end == NULL) return 0;
    int fd = memfd_create("fuzz", 0);
    size_t n_file = n - n_text - 1;
    if (fd < 0 || write(fd, end + 1, n_file) != (ssize_t)n_file) abort();
    snprintf(path, sizeof path, "%s:/proc/self/fd/%d", text[0] == 'b' ? "bits" : "csr", fd);
    use_mask(path);
    close(fd);
    return 0;
}
