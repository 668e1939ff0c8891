/* Arbitrary bytes as log.jsonl of a run: cut back to a step (first byte), as a resumed run does,
 * read, and drawn as a report.  Cutting twice is cutting once. */
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "fuzz_folder.h"
#include "train/report/report.h"
#include "train/report/run_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static status visit(void *ctx, const json_value *line) {
    ++*(int *)ctx;
    if (line->type != JSON_OBJECT) abort();
    return OK;
}

static void read_log(char **text, size_t *n) {
    char path[256];
    snprintf(path, sizeof path, "%s/log.jsonl", fuzz_folder);
    if (file_read_all(path, 1 << 24, text, n) != OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *once, *twice;
    size_t n_once, n_twice;
    int n_lines = 0, n_newlines = 0;
    if (n == 0) return 0;
    log_set_level(LOG_QUIET);
    if (fuzz_folder[0] == '\0') {
        fuzz_folder_make("run_log");
        fuzz_file_write("config.json", "{\"task\":\"retrieval\"}", 20);
    }
    fuzz_file_write("log.jsonl", data + 1, n - 1);
    if (run_log_rewind(fuzz_folder, data[0]) != OK) abort();
    read_log(&once, &n_once);
    if (run_log_rewind(fuzz_folder, data[0]) != OK) abort();
    read_log(&twice, &n_twice);
    if (n_once != n_twice || memcmp(once, twice, n_once) != 0) abort();
    for (size_t i = 0; i < n_once; i++)
        n_newlines += once[i] == '\n';
    if (run_log_read(fuzz_folder, visit, &n_lines) != OK || n_lines != n_newlines) abort();
    if (report_write(fuzz_folder) != OK) abort();
    mem_free(once);
    mem_free(twice);
    return 0;
}
