/* Arbitrary bytes up to the first 0xff as a tokenizer.json, and the rest as a text for it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encode/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char PLAIN[] = "a <s>b  \xc3\xa9 e\xcc\x81 's \xef\xac\x81x\r\n";
    const char *text = (const char *)data, *end = n > 0 ? memchr(text, 0xff, n) : NULL;
    size_t n_file = end != NULL ? (size_t)(end - text) : n;
    tokenizer *t;
    word_ids ids = {0};
    const json_value *root;
    arena a;
    arena_init(&a, 4096);
    status st = json_parse(&a, "t.json", text, n_file, &root);
    if (st == OK) st = tokenizer_parse(&t, "t.json", root);
    arena_fini(&a);
    if (st != OK) return 0;
    if (tokenizer_split(t, PLAIN, sizeof PLAIN - 1, &ids) == OK)
        for (size_t i = 0; i < ids.n; i++)
            if (ids.ids[i] < 0) abort();
    if (end != NULL) (void)tokenizer_split(t, end + 1, n - n_file - 1, &ids);
    mem_free(ids.ids);
    tokenizer_destroy(t);
    return 0;
}
