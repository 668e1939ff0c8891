/* Arbitrary bytes as a line of sequences for an encoder. */
#include <stdint.h>
#include <stdlib.h>

#include "encode/encoder_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char VOCABULARY[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nb\n##b\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    encoder_line l = {0};
    tokenizer *t;
    word_piece_options o = {true, true, true};
    if (tokenizer_of_lines(&t, "vocab.txt", VOCABULARY, sizeof VOCABULARY - 1, &o) != OK) abort();
    for (int max_len = 1; max_len < 9; max_len++) {
        bool is_text = false;
        if (encoder_line_parse(&l, (const char *)data, n, t, max_len, true) != OK) continue;
        is_text = l.n > 0 && l.ids[0] == 2 && l.ids[l.n - 1] == 3;
        if (!is_text) break; /* ids may be as many as they like */
        for (size_t i = 0; l.has_types && i < l.n; i++)
            if (l.types[i] == INT32_MIN) abort();
    }
    encoder_line_fini(&l);
    tokenizer_destroy(t);
    return 0;
}
