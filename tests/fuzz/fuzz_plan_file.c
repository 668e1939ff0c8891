/* Arbitrary bytes as the file of a tuned plan, with a seal that vouches for them where they end as
 * an object does.  Reading must refuse, or give a plan whose kernels are within the layer. */
#include <stdint.h>
#include <sys/stat.h>

#include "base/log.h"
#include "format/json.h"
#include "fuzz_folder.h"
#include "tune/library.h"
#include "tune/plan_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[256];
    plan_file f;
    buf text = {0};
    log_set_level(LOG_QUIET);
    if (fuzz_folder[0] == '\0') fuzz_folder_make("plan");
    if (buf_append(&text, data, n) != OK) abort();
    (void)json_add_seal(&text);
    fuzz_file_write("plan.json", text.data, text.n_bytes);
    buf_fini(&text);
    snprintf(path, sizeof path, "%s/plan.json", fuzz_folder);
    if (plan_file_read(&f, path) != OK) return 0;
    if (f.n_tiles > CHAIN_OPS || f.n_sequences < 0 || f.n_tokens < 0) abort();
    for (int i = 0; i < f.n_tiles; i++) {
        const plan_file_tile *t = &f.tile[i];
        if (t->first < 0 || t->last < t->first || t->last >= CHAIN_OPS ||
            t->params.rank >= LIBRARY_RANKS)
            abort();
    }
    return 0;
}
