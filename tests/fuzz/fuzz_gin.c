/* Any bytes as a gin file: read, checked, defaults filled in, echoed; the echo must be JSON. */
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "config/config.h"
#include "config/gin.h"
#include "format/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_echo(const config *c) {
    buf text = {0};
    arena memory;
    const json_value *root;
    arena_init(&memory, 1 << 14);
    if (config_write_json(c, &text, 0) != OK) abort();
    if (json_parse(&memory, "echo", buf_str(&text), text.n_bytes, &root) != OK) abort();
    arena_fini(&memory);
    buf_fini(&text);
}

/* The same bytes as one --set. */
static void check_override(const uint8_t *data, size_t n) {
    gin_config g;
    const char *text;
    gin_init(&g);
    if (arena_copy_text(&g.memory, (const char *)data, n, &text) == OK &&
        gin_override(&g, text) == OK)
        (void)gin_finish(&g);
    gin_fini(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    config *c;
    config_source source = {.text = (const char *)data, .text_bytes = n, .text_name = "fuzz.gin"};
    log_set_level(LOG_QUIET);
    check_override(data, n);
    if (config_load(&c, &source) != OK) return 0;
    check_echo(c);
    (void)config_check_trainable(c);
    config_destroy(c);
    return 0;
}
