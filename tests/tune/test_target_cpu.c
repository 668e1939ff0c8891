/* The C compiler that kernels of the CPU need, as a script in its place sees it. */
#include "base/file.h"
#include "base/machine.h"
#include "base/mem.h"
#include "test.h"
#include "tune/target.h"

/* A compiler that answers --version, then does `how` with source and object, $1 and $2. */
static void set_compiler(const char *how) {
    char path[4096];
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && cat >compiler <<'END' && chmod +x compiler\n"
                          "#!/bin/sh\n"
                          "[ \"$1\" = extra ] && shift\n"
                          "[ \"$1\" = --version ] && echo compiler 1.2 && exit\n"
                          "all=\"$*\"\n"
                          "for word; do case $word in *.c) source=$word ;; *.so) object=$word ;; "
                          "esac; done\n"
                          "%s\nEND\n",
                          test_folder(), how),
             0);
    snprintf(path, sizeof path, "%s/compiler extra", test_folder());
    CHECK_EQ(setenv("CC", path, 1), 0);
}

static status compile_one(const char *folder) {
    kernel_spec s = {.c = chain_of(CHAIN_BERT),
                     .shape = {.n_sequences = 1, .max_len = 4, .n_heads = 2, .dim_head = 4}};
    tile_params tiles[EMIT_MAX_TILES];
    kernel_cache cache;
    target *t;
    target_kernel *k = NULL;
    int n;
    s.shape.n_tokens = 4;
    s.from = plan_template(s.c, &s.shape, 0, 0, NULL);
    CHECK_OK(emit_tiles(&s, tiles, &n));
    s.tile = tiles[0];
    CHECK_OK(kernel_cache_open(&cache, folder));
    CHECK_OK(target_create_cpu(&t, NULL, &cache));
    status st = t->compile(t, &s, &k);
    t->release(t, k);
    target_destroy(t);
    return st;
}

/* A compiled kernel is found again by all that its bytes depend on: the source, the machine, the
 * compiler, its version, and each word it was called with. */
TEST(compiled_kernels_are_kept_by_all_they_depend_on) {
    char folder[4096], path[4200], *text, identity[2048];
    size_t n;
    machine host;
    buf source = {0};
    bool is_found;
    kernel_cache cache;
    snprintf(folder, sizeof folder, "%s/cache", test_folder());
    set_compiler("cp $source \"$(dirname $0)/source.c\"\n"
                 "all=${all% $source*}\n"
                 "printf %s \"$all\" >\"$(dirname $0)/words\"\n"
                 "echo no library >$object");
    CHECK_FAILS(compile_one(folder), ERR_IO, "cannot be loaded");
    machine_ask(&host);
    snprintf(path, sizeof path, "%s/words", test_folder());
    CHECK_OK(file_read_all(path, 4096, &text, &n));
    snprintf(identity, sizeof identity, "%s %s %s %s compiler 1.2\n", host.cpu, host.simd,
             getenv("CC"), text);
    CHECK_CONTAINS(text, "-shared");
    mem_free(text);
    snprintf(path, sizeof path, "%s/source.c", test_folder());
    CHECK_OK(file_read_all(path, 1 << 20, &text, &n));
    CHECK_OK(buf_append(&source, text, n));
    mem_free(text);
    kernel_key key = kernel_key_of(&source, identity);
    buf_clear(&source);
    CHECK_OK(kernel_cache_open(&cache, folder));
    CHECK_OK(kernel_cache_find(&cache, &key, "so", &source, &is_found, NULL));
    CHECK(is_found);
    CHECK_STR(buf_str(&source), "no library\n");
    buf_fini(&source);
    CHECK_EQ(test_command(NULL, "test $(ls '%s' | wc -l) = 1", folder), 0); /* nothing is left */
}

TEST(compilers_that_fail_are_told) {
    static const struct {
        const char *how;
        status code;
        const char *says;
    } cases[] = {{"echo out; echo bad >&2; exit 3", ERR_UNSUPPORTED, "(exit code 3): out\nbad\n"},
                 {"kill -INT $$", ERR_INTERRUPTED, "interrupted"},
                 {"kill -TERM $$", ERR_INTERRUPTED, "interrupted"},
                 {"kill -SEGV $$", ERR_UNSUPPORTED, "(exit code 139)"},
                 {"echo No space left on device; exit 1", ERR_IO, "is full"},
                 {"cat; exit 0", ERR_IO, "kernel.so"}, /* reads nothing, writes nothing */
                 {"yes | head -c 300000; exit 4", ERR_UNSUPPORTED, "(exit code 4): y\ny\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_compiler(cases[i].how);
        CHECK_FAILS(compile_one(test_folder()), cases[i].code, cases[i].says);
    }
    kernel_cache cache;
    target *t;
    CHECK_OK(kernel_cache_open(&cache, test_folder()));
    CHECK_EQ(setenv("CC", "/no/such/compiler -x", 1), 0);
    CHECK_FAILS(target_create_cpu(&t, NULL, &cache), ERR_UNSUPPORTED, "/no/such/compiler -x");
    CHECK(t == NULL);
}
