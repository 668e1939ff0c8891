/* Arbitrary bytes as a snapshot of a dynamic table: as its manifest (first byte even), or as a file
 * of rows under a manifest that vouches for it (odd).  Reading must refuse, or give a whole table.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "embed/table_int.h"
#include "format/json.h"
#include "fuzz_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void make_folder(void) {
    char part[160];
    fuzz_folder_make("snapshot");
    snprintf(part, sizeof part, "%s/rank-0-of-1", fuzz_folder);
    if (mkdir(part, 0700) != 0) abort();
}

static void write_file(const char *name, const void *bytes, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "rank-0-of-1/%s", name);
    fuzz_file_write(path, bytes, n);
}

static void vouch(const uint8_t *data, size_t n) {
    char text[1024], crc[9];
    int bytes =
        snprintf(text, sizeof text,
                 "{\"format\":\"hstu table 1\",\"files\":[{\"name\":\"rows-00000.safetensors\","
                 "\"bytes\":%zu,\"xxh64\":\"%016" PRIx64 "\"}],\"step\":3,\"since\":0,"
                 "\"clock\":1,\"seen\":0,\"dim\":2,\"floats\":4,\"optimizer\":\"adagrad\","
                 "\"policy\":\"lru\",\"rank\":0,\"ranks\":1,\"row_files\":1,\"rows\":1,"
                 "\"gone\":0,\"level0_slots\":64,\"level1_slots\":0,\"level0_rows\":1,"
                 "\"level1_rows\":0,\"store_rows\":0,\"crc32\":\"00000000\"}",
                 n, hash64(data, n, 0));
    memcpy(json_seal(text, (size_t)bytes, crc), crc, 8);
    write_file("rows-00000.safetensors", data, n);
    write_file("manifest.json", text, (size_t)bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    embed_config c = {
        .dim = 2, .opt = OPT_ADAGRAD, .policy = POLICY_LRU, .capacity = {64, 0}, .max_batch = 64};
    backend *be;
    embed_table *t;
    int64_t size;
    if (n == 0) return 0;
    if (fuzz_folder[0] == '\0') make_folder();
    if (data[0] % 2 == 0)
        write_file("manifest.json", data + 1, n - 1);
    else
        vouch(data + 1, n - 1);
    if (backend_create_cpu(&be, NULL) != OK || embed_create(&t, be, &c) != OK) abort();
    if (embed_snapshot_read(t, fuzz_folder, NULL) == OK &&
        (embed_size(t, &size) != OK || size > 64))
        abort();
    embed_destroy(t);
    backend_destroy(be);
    return 0;
}
