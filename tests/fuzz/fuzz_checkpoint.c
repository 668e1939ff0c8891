/* Arbitrary bytes as a checkpoint.  The first byte says as what: one of its files beside good ones,
 * or all of them but the vocabulary, which has a target of its own.  Unless the bytes are a
 * manifest, one is written that vouches for the files, so that the readers get behind the
 * checksums.
 *
 * Loading must refuse, or give a checkpoint that can be saved and loaded again with the same state.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/json.h"
#include "fuzz_folder.h"
#include "train/files/checkpoint.h"

enum { MANIFEST = CHECKPOINT_VOCABULARY, N_FILES, N_VALUES = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A model of one table and one vector, as far as a checkpoint knows it. */
static float values[6][N_VALUES];
static moments state[2] = {{values[2], values[3]}, {values[4], values[5]}};
static param params[2] = {
    {.name = "table", .n_dims = 2, .shape = {3, 2}, .n = 6, .value = values[0], .is_table = true},
    {.name = "bias", .n_dims = 1, .shape = {3}, .n = 3, .value = values[1]}};
static optimizer adam = {.rows = ROWS_DENSE, .kind = OPT_ADAMW, .params = params, .state = state};

static struct {
    char name[64];
    char *bytes;
    size_t n;
    bool is_changed;
} good[N_FILES];

static checkpoint make_checkpoint(backend *be) {
    static const int64_t ids[3] = {0, 3, 5};
    static const seq_file names = {.n_items = 2, .time_per_second = 1, .item_id = ids};
    checkpoint c = {.be = be, .data = &names, .params = params, .n_params = 2, .optimizer = &adam};
    c.state.best_metric = -1;
    snprintf(c.state.batches.settings, sizeof c.state.batches.settings, "toy");
    return c;
}

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder, name);
    return path;
}

/* A good checkpoint, whose files are kept to be put back. */
static void prepare(backend *be) {
    static const char config_json[] = "{\"source\":{\"task\":\"retrieval\"}}";
    checkpoint c = make_checkpoint(be);
    fuzz_folder_make("checkpoint");
    if (checkpoint_save(&c, fuzz_folder, config_json, "float32", 1, false) != OK) abort();
    /* Under a name that says nothing of a step. */
    char whole[512];
    snprintf(whole, sizeof whole, "%s", in_folder("whole"));
    if (rename(in_folder("checkpoints/step-00000000"), whole) != 0) abort();
    for (int i = 0; i < N_FILES; i++) {
        snprintf(good[i].name, sizeof good[i].name, "whole/%s",
                 i == MANIFEST ? "manifest.json" : checkpoint_file_names[i]);
        if (file_read_all(in_folder(good[i].name), 1 << 20, &good[i].bytes, &good[i].n) != OK)
            abort();
    }
}

/* A manifest that ends with a seal gets the right one. */
static void replace(int file, const uint8_t *bytes, size_t n) {
    char copy[4096], want[9];
    good[file].is_changed = true;
    if (file == MANIFEST && n <= sizeof copy) {
        memcpy(copy, bytes, n);
        char *digits = json_seal(copy, n, want);
        if (digits != NULL) memcpy(digits, want, 8);
        bytes = (const uint8_t *)copy;
    }
    fuzz_file_write(good[file].name, bytes, n);
}

static void put_back(void) {
    for (int i = 0; i < N_FILES; i++)
        if (good[i].is_changed) fuzz_file_write(good[i].name, good[i].bytes, good[i].n);
    for (int i = 0; i < N_FILES; i++)
        good[i].is_changed = false;
}

/* Pieces: which file, how long (two bytes), the bytes. */
static void replace_all(const uint8_t *data, size_t n) {
    while (n >= 3) {
        size_t bytes = (size_t)data[1] | (size_t)data[2] << 8;
        if (bytes > n - 3) bytes = n - 3;
        replace(data[0] % N_FILES, data + 3, bytes);
        data += 3 + bytes;
        n -= 3 + bytes;
    }
}

static void check_again(backend *be, const checkpoint *c) {
    checkpoint again = make_checkpoint(be);
    char folder[CHECKPOINT_PATH_BYTES];
    status st = checkpoint_save(c, in_folder("again"), "{}", "float32", 1, false);
    if (st == ERR_NUMERIC) return; /* values that are not finite */
    if (st != OK || checkpoint_find(in_folder("again"), folder) != OK ||
        checkpoint_load(&again, folder) != OK)
        abort();
    if (again.state.step != c->state.step || again.state.seed != c->state.seed ||
        again.state.epoch != c->state.epoch ||
        !split_rule_is_same(&again.state.split.rule, &c->state.split.rule) ||
        again.state.best_step != c->state.best_step ||
        again.state.first_loss != c->state.first_loss)
        abort();
    checkpoint_remove(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    backend *be;
    config *saved = NULL;
    checkpoint_origin origin;
    if (n == 0) return 0;
    log_set_level(LOG_QUIET);
    if (backend_create_cpu(&be, NULL) != OK) abort();
    if (fuzz_folder[0] == '\0') prepare(be);
    put_back();
    if (data[0] % 5 < N_FILES)
        replace(data[0] % 5, data + 1, n - 1);
    else
        replace_all(data + 1, n - 1);
    char folder[256];
    snprintf(folder, sizeof folder, "%s", in_folder("whole"));
    if (!good[MANIFEST].is_changed) {
        if (checkpoint_read_origin(&origin, folder) != OK) origin.step = 0;
        if (checkpoint_seal(folder, origin.step, NULL) != OK) abort();
        good[MANIFEST].is_changed = true;
    }
    checkpoint c = make_checkpoint(be);
    if (checkpoint_config(&saved, folder) == OK) config_destroy(saved);
    (void)checkpoint_read_origin(&origin, folder);
    if (checkpoint_load(&c, folder) == OK) check_again(be, &c);
    backend_destroy(be);
    return 0;
}
