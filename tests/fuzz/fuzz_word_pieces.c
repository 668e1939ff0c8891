/* Arbitrary bytes as a text for one vocabulary, and, up to the first 0xff, as a vocabulary for the
 * rest. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encode/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char SMALL[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nb\n##b\n\xc3\xa9\n.\n,\n[";

static void split(const char *vocabulary, size_t n_vocabulary, const char *text, size_t n) {
    for (int i = 0; i < 8; i++) {
        tokenizer *p;
        word_piece_options o = {i & 1, i & 2, i & 4};
        word_ids ids = {0};
        if (tokenizer_of_lines(&p, "vocab.txt", vocabulary, n_vocabulary, &o) != OK) return;
        if (tokenizer_split(p, text, n, &ids) != OK) abort();
        for (size_t k = 0; k < ids.n; k++)
            if (ids.ids[k] < 0 || (size_t)ids.ids[k] > n_vocabulary) abort();
        mem_free(ids.ids);
        tokenizer_destroy(p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    split(SMALL, sizeof SMALL - 1, text, n);
    const char *end = n > 0 ? memchr(text, 0xff, n) : NULL;
    if (end == NULL) return 0;
    size_t n_vocabulary = (size_t)(end - text);
    split(text, n_vocabulary, end + 1, n - n_vocabulary - 1);
    return 0;
}
