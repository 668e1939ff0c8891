/* Arbitrary bytes as the config.json of an encoder, as the index of its shards and as a
 * tokenizer_config.json. */
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "encode/encoder_config.h"
#include "encode/encoder_files.h"
#include "encode/word_pieces.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static status count(void *ctx, const char *tensor, const char *file) {
    size_t *total = ctx;
    *total += (size_t)(tensor[0] != '\0') + (size_t)(file[0] == '/');
    if (file[0] == '/' || file[0] == '.') abort(); /* leads out of the folder */
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    encoder_config c;
    word_piece_options o;
    size_t total = 0;
    log_set_level(LOG_QUIET);
    const json_value *root;
    arena a;
    arena_init(&a, 4096);
    if (json_parse(&a, "config.json", (const char *)data, n, &root) == OK) {
        if (encoder_config_parse(&c, "config.json", root) == OK &&
            (c.dim % c.n_heads != 0 || encoder_max_len(&c) < 1 || c.n_layers < 1 || c.n_words < 1))
            abort();
        (void)encoder_index_parse("index.json", root, count, &total);
        (void)word_piece_options_parse(&o, "tokenizer_config.json", root);
    }
    arena_fini(&a);
    return 0;
}
