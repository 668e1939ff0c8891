/* Configs as checkpoints carry them: any bytes, and what loads must write itself out and load
 * again. */
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    config *c, *again = NULL;
    buf text = {0};
    log_set_level(LOG_QUIET);
    if (config_load_json(&c, "fuzz", (const char *)data, n) != OK) return 0;
    if (c->is_benchmark) goto done; /* its features are not read back */
    if (config_write_json(c, &text, 0) != OK) abort();
    if (config_load_json(&again, "fuzz", buf_str(&text), text.n_bytes) != OK) abort();
done:
    config_destroy(c);
    config_destroy(again);
    buf_fini(&text);
    return 0;
}
