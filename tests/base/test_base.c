#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "disk_fault.h"
#include "oom.h"
#include "test.h"

static status inner(void) {
    return fail(ERR_FORMAT, "%s:%d: bad", "file", 7);
}

static status outer(void) {
    TRY(inner());
    return OK;
}

TEST(status_reason_and_frames) {
    CHECK_EQ(outer(), ERR_FORMAT);
    CHECK_STR(status_reason(), "file:7: bad");
    CHECK_CONTAINS(status_trace(), "test_base.c:");
    fail_prefix(ERR_FORMAT, "in %s", "here");
    CHECK_STR(status_reason(), "in here: file:7: bad");
    CHECK_EQ(status_exit_code(OK), 0);
    CHECK_EQ(status_exit_code(ERR_IO), 1);
    CHECK_EQ(status_exit_code(ERR_CONFIG), 2);
    CHECK_EQ(status_exit_code(ERR_USAGE), 2);
    CHECK_STR(status_name(ERR_INTERRUPTED), "interrupted");
    failure saved;
    failure_save(&saved, ERR_IO);
    fail(ERR_IO, "other");
    CHECK_EQ(failure_restore(&saved), ERR_IO);
    CHECK_STR(status_reason(), "in here: file:7: bad");
}

TEST(status_long_reasons_are_cut) {
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    fail(ERR_IO, "%s", text);
    CHECK_EQ(strlen(status_reason()), FAILURE_REASON_BYTES - 1);
    for (int i = 0; i < 100; i++)
        fail_prefix(ERR_IO, "%s", text);
    CHECK_EQ(strlen(status_reason()), FAILURE_REASON_BYTES - 1);
    for (int i = 0; i < 1000; i++)
        status_frame(ERR_IO, __FILE__, i);
    CHECK(strlen(status_trace()) < FAILURE_TRACE_BYTES);
}

static void keep_line(void *ctx, log_level level, const char *line) {
    (void)level;
    snprintf(ctx, 256, "%s", line);
}

TEST(log_levels) {
    char line[256] = "";
    log_level level;
    log_set_sink(keep_line, line);
    log_info("seen");
    CHECK_STR(line, "seen");
    log_set_level(LOG_WARN);
    log_info("hidden");
    CHECK_STR(line, "seen");
    log_warn("seen %d", 1);
    CHECK_STR(line, "warning: seen 1");
    log_set_level(LOG_QUIET);
    log_warn("hidden");
    CHECK_STR(line, "warning: seen 1");
    CHECK_OK(log_level_parse("debug", &level));
    CHECK_FAILS(log_level_parse("loud", &level), ERR_USAGE, "debug, info, warn or quiet");
}

TEST(mem_refuses_overflow) {
    void *block = NULL;
    CHECK_FAILS(mem_alloc(&block, SIZE_MAX / 2, 3), ERR_NOMEM, "larger than the address space");
    CHECK(block == NULL);
    CHECK_OK(mem_alloc(&block, 0, 8));
    CHECK(block != NULL);
    mem_free(block);
    mem_free(NULL);
}

/* Large blocks are zeroed page by page: no page may keep its bytes from before the block was freed.
 */
TEST(mem_alloc_zeroes_used_memory) {
    for (size_t n = 1; n < (8u << 20); n = n * 3 + 4095) {
        for (int round = 0; round < 3; round++) {
            unsigned char *block;
            CHECK_OK(MEM_NEW(&block, n));
            for (size_t i = 0; i < n; i++)
                if (block[i] != 0) FAIL_TEST("byte %zu of %zu is %d", i, n, block[i]);
            memset(block, 0xA5, n);
            mem_free(block);
            CHECK_OK(mem_alloc_dense((void **)&block, n, 1));
            memset(block, 0x5A, n);
            mem_free(block);
        }
    }
}

/* Leaks where TEST_LEAK says so: mem_leaks_fail_a_test runs it in a program of its own. */
TEST(mem_leaks_when_told) {
    const char *what = getenv("TEST_LEAK");
    void *of_library, *of_test = malloc(16);
    CHECK_OK(mem_alloc(&of_library, 1, 16));
    if (what == NULL || strcmp(what, "mem") != 0) mem_free(of_library);
    if (what == NULL || strcmp(what, "malloc") != 0) free(of_test);
}

TEST(mem_leaks_fail_a_test) {
    static const char *const leak[][3] = {
        {"none", "ok ", "1 passed, 0 failed"},
        {"mem", "leaks: 1 blocks of the library", "0 passed, 1 failed"},
        {"malloc", "and 1 of the test (malloc)", "0 passed, 1 failed"}};
    for (int i = 0; i < 3; i++) {
        char *text;
        int code = test_command(&text,
                                "hstu='%s'; TEST_LEAK=%s ASAN_OPTIONS=detect_leaks=0 "
                                "\"${hstu%%/hstu}/tests/unit\" mem_leaks_when_told",
                                test_program(), leak[i][0]);
        CHECK_EQ(code, i == 0 ? 0 : 1);
        CHECK_CONTAINS(text, leak[i][1]);
        CHECK_CONTAINS(text, leak[i][2]);
        free(text);
    }
}

/* test_command refuses to compute on whatever device there is. */
TEST(base_commands_name_their_device) {
    static const struct {
        const char *command;
        bool is_fine;
    } cases[] = {
        {"cd /tmp && '%1$s' prep csv --input a; %1$s info d", true},
        {"%1$s train --gin-config-file a.gin", false},
        {"%1$s train", false},
        {"%1$s train --gin-config-file a.gin --device cpu", true},
        {"%1$s bench train --device auto", false},
        {"%1$s bench dataset --out a", true},
        {"'%1$s' bench embedding --seconds 1", false},
        {"%1$s eval r --device cuda:0 && %1$s recommend r", false},
        {"(%1$s eval r --device cuda:0 >/dev/null); %1$s recommend r --device cpu 2>&1", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[9000];
        snprintf(command, sizeof command, cases[i].command, test_program());
        if (test_names_device(command) != cases[i].is_fine) FAIL_TEST("%s", command);
    }
}

TEST(mem_reserve_keeps_content) {
    int *numbers = NULL;
    size_t capacity = 0;
    for (int i = 0; i < 10000; i++) {
        CHECK_OK(MEM_RESERVE(&numbers, &capacity, (size_t)i + 1));
        numbers[i] = i;
    }
    for (int i = 0; i < 10000; i++)
        CHECK_EQ(numbers[i], i);
    CHECK_EQ((uintptr_t)numbers % 64, 0);
    mem_free(numbers);
}

TEST(arena_grows) {
    arena a;
    char *p, *q;
    arena_init(&a, 100);
    CHECK_OK(ARENA_NEW(&a, &p, 60));
    CHECK_OK(ARENA_NEW(&a, &q, 1000));
    memset(p, 1, 60);
    memset(q, 2, 1000);
    CHECK_EQ(p[59], 1);
    const char *text;
    CHECK_OK(arena_copy_text(&a, "abcdef", 3, &text));
    CHECK_STR(text, "abc");
    double *d;
    CHECK_OK(ARENA_NEW(&a, &d, 1));
    CHECK_EQ((uintptr_t)d % 16, 0);
    arena_fini(&a);
    CHECK_EQ(a.used_bytes, 0);
    CHECK_OK(ARENA_NEW(&a, &p, 60)); /* used again */
    CHECK_EQ(p[59], 0);
    arena_fini(&a);
}

/* What was handed out is free again, and soon nothing more is allocated. */
TEST(arena_is_cleared) {
    arena a;
    char *p, *first = NULL;
    arena_init(&a, 100);
    arena_clear(&a);
    for (int round = 0; round < 4; round++) {
        int64_t n_before = mem_n_live();
        for (int i = 0; i < 10; i++) {
            CHECK_OK(ARENA_NEW_RAW(&a, &p, 90));
            if (round == 2 && i == 0) first = p;
            if (round == 3 && i == 0) CHECK(p == first);
            memset(p, 7, 90);
        }
        CHECK_OK(ARENA_NEW(&a, &p, 90));
        for (int i = 0; i < 90; i++)
            CHECK_EQ(p[i], 0);
        if (round > 1) CHECK_EQ(mem_n_live(), n_before);
        if (round > 1) CHECK(a.head != NULL && a.used_bytes >= 11 * 90);
        arena_clear(&a);
        CHECK_EQ(a.used_bytes, 0);
    }
    arena_fini(&a);
    CHECK(a.head == NULL);
}

static status use_arena_and_buf(void *ctx) {
    (void)ctx;
    arena a;
    buf b = {0};
    int *p;
    arena_init(&a, 64);
    status st = OK;
    for (int i = 0; st == OK && i < 20; i++)
        st = ARENA_NEW(&a, &p, 40);
    for (int i = 0; st == OK && i < 20; i++)
        st = buf_printf(&b, "%d %s", i, "some text that needs room");
    buf_fini(&b);
    arena_fini(&a);
    return st;
}

/* Counts the runs in which the allocation after the failed one fails as well. */
static status fail_twice(void *n_twice) {
    void *first = NULL, *second = NULL;
    status st = mem_alloc(&first, 1, 8);
    if (st != OK && mem_alloc(&second, 1, 8) != OK) ++*(int *)n_twice;
    mem_free(first);
    mem_free(second);
    return st;
}

TEST(oom_fails_one_allocation_and_then_all_later_ones) {
    int n_twice = 0;
    CHECK_EQ(oom_at_each_allocation(fail_twice, &n_twice), 1);
    CHECK_EQ(n_twice, 1);
}

TEST(arena_and_buf_survive_no_memory) {
    CHECK(oom_at_each_allocation(use_arena_and_buf, NULL) > 10);
}

TEST(buf_appends) {
    buf b = {0};
    CHECK_STR(buf_str(&b), "");
    CHECK_OK(buf_printf(&b, "%d-%s", 12, "x"));
    CHECK_OK(buf_char(&b, '!'));
    CHECK_OK(buf_text(&b, ""));
    CHECK_STR(buf_str(&b), "12-x!");
    CHECK_EQ(b.n_bytes, 5);
    buf_clear(&b);
    CHECK_STR(buf_str(&b), "");
    buf_fini(&b);
}

/* Vectors of the XXH64 specification and of RFC 1321. */
TEST(hash_vectors) {
    CHECK(hash64("", 0, 0) == 0xef46db3751d8e999u);
    CHECK(hash64("a", 1, 0) == 0xd24ec4f1a98c6e5bu);
    CHECK(hash64("abc", 3, 0) == 0x44bc2cf5ad770999u);
    CHECK(hash64("Nobody inspects the spammish repetition", 39, 0) == 0xfbcea83c8a378bf1u);
    static const char *const md5[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"}};
    for (int i = 0; i < 4; i++) {
        for (size_t step = 1; step <= 80; step += 13) {
            md5_state m;
            char hex[33];
            size_t n = strlen(md5[i][0]);
            md5_begin(&m);
            for (size_t at = 0; at < n; at += step)
                md5_add(&m, md5[i][0] + at, n - at < step ? n - at : step);
            md5_end(&m, hex);
            CHECK_STR(hex, md5[i][1]);
        }
    }
}

/* Known answers of Philox4x32-10 (the authors' kat_vectors). */
TEST(rng_philox_vectors) {
    rng_block b = rng_draw((rng_key){{0, 0}}, 0, 0, 0, 0);
    CHECK(b.word[0] == 0x6627e8d5 && b.word[1] == 0xe169c58d && b.word[2] == 0xbc57ac4c &&
          b.word[3] == 0x9b00dbd8);
    b = rng_draw((rng_key){{0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff, 0xffffffff,
                 0xffffffff);
    CHECK(b.word[0] == 0x408f276d && b.word[1] == 0x41c83b0e && b.word[2] == 0xa20bc7c6 &&
          b.word[3] == 0x6d5451fd);
    b = rng_draw((rng_key){{0xa4093822, 0x299f31d0}}, 0x243f6a88, 0x85a308d3, 0x13198a2e,
                 0x03707344);
    CHECK(b.word[0] == 0xd16cfe09 && b.word[1] == 0x94fdcceb && b.word[2] == 0x5001e420 &&
          b.word[3] == 0x24126ea1);
}

TEST(rng_ranges) {
    rng_key key = rng_make_key(42, RNG_TEST);
    CHECK(rng_uniform(0) == 0.0f && rng_uniform(UINT32_MAX) < 1.0f);
    CHECK(rng_uniform64(UINT32_MAX, UINT32_MAX) < 1.0);
    CHECK_EQ(rng_below(UINT32_MAX, 7), 6);
    CHECK_EQ(rng_below(0, 7), 0);
    double sum = 0;
    int count[7] = {0};
    for (uint32_t i = 0; i < 70000; i++) {
        rng_block b = rng_draw64(key, i, 5);
        sum += rng_uniform(b.word[0]);
        count[rng_below(b.word[1], 7)]++;
    }
    CHECK(fabs(sum / 70000 - .5) < .005);
    for (int i = 0; i < 7; i++)
        CHECK(abs(count[i] - 10000) < 400);
    rng_key other = rng_make_key(42, RNG_SHUFFLE);
    CHECK(memcmp(&key, &other, sizeof key) != 0);
}

TEST(nearest_finds_what_was_meant) {
    static const char *const names[] = {"NetworkArgs.num_layers", "NetworkArgs.hidden_size", "prep",
                                        "synth"};
    CHECK_STR(nearest_name("NetworkArgs.num_layer", names, 4), "NetworkArgs.num_layers");
    CHECK_STR(nearest_name("networkargs.hidden_size", names, 4), "NetworkArgs.hidden_size");
    CHECK_STR(nearest_name("perp", names, 4), "prep");
    CHECK(nearest_name("quite-another-thing", names, 4) == NULL);
    const char *const options[] = {"--out", "--users", "--json"};
    CHECK_STR(nearest_name("--user", options, 3), "--users");
    CHECK(nearest_name("--bogus", options, 3) == NULL);
    CHECK(nearest_name("x", names, 0) == NULL);
}

TEST(env_cuda_sm_is_a_compute_capability) {
    int sm;
    unsetenv("HSTU_CUDA_SM");
    CHECK_OK(env_cuda_sm(&sm));
    CHECK_EQ(sm, INT_MAX);
    setenv("HSTU_CUDA_SM", "80", 1);
    CHECK_OK(env_cuda_sm(&sm));
    CHECK_EQ(sm, 80);
    static const char *const wrong[] = {"8.0", "79", " 80", "1000", "sm_80", "-80"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("HSTU_CUDA_SM", wrong[i], 1);
        CHECK_FAILS(env_cuda_sm(&sm), ERR_USAGE, "from 80 to 999");
    }
    unsetenv("HSTU_CUDA_SM");
}

/* A copy of a library of ours in a Python environment; one that is no library comes last in the
 * list. */
TEST(libraries_are_found_in_python_packages) {
    static const char name[] = "libhstu_found.so.1", pattern[] = "nvidia/*/lib/libhstu_found.so.1";
    struct link_map *map;
    char *text;
    setenv("VIRTUAL_ENV", test_folder(), 1);
    CHECK(library_find(name, pattern) == NULL);
    int code =
        test_command(&text,
                     "set -e; cd %s; good=lib/python3.8/site-packages/nvidia/cu13/lib "
                     "bad=lib/python3.9/dist-packages/nvidia/cublas/lib; mkdir -p $good $bad; "
                     "cp $(dirname $(realpath %s))/hstu-inject.so $good/%s; "
                     "echo no library > $bad/%s",
                     test_folder(), test_program(), name, name);
    CHECK_EQ(code, 0);
    free(text);
    void *library = library_find(name, pattern);
    CHECK(library != NULL && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0);
    CHECK(strstr(map->l_name, "/lib/python3.8/site-packages/nvidia/cu13/lib/libhstu_found") !=
          NULL);
    CHECK_EQ(dlclose(library), 0);
    CHECK_EQ(chdir(test_folder()), 0);
    setenv("VIRTUAL_ENV", ".", 1); /* wherever somebody happens to be */
    CHECK(library_find("libhstu_other.so", "nvidia/*/lib/libhstu_found.so.1") == NULL);
    library = library_find("libm.so.6", pattern);
    CHECK(library != NULL && dlsym(library, "cos") != NULL);
    dlclose(library);
}

TEST(env_threads_checks_its_range) {
    int n;
    setenv("HSTU_THREADS", "3", 1);
    CHECK_OK(env_threads(&n));
    CHECK_EQ(n, 3);
    setenv("HSTU_THREADS", "0", 1);
    CHECK_FAILS(env_threads(&n), ERR_USAGE, "1 to 256");
    setenv("HSTU_THREADS", " 4", 1);
    CHECK_FAILS(env_threads(&n), ERR_USAGE, "HSTU_THREADS is ' 4'");
    setenv("HSTU_THREADS", "4x", 1);
    CHECK_FAILS(env_threads(&n), ERR_USAGE, "'4x'");
    unsetenv("HSTU_THREADS");
    CHECK_OK(env_threads(&n));
    CHECK(n >= 1);
    setenv("HSTU_LOG", "shout", 1);
    CHECK_FAILS(env_apply_log_level(), ERR_USAGE, "HSTU_LOG");
}

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

TEST(file_replace_is_atomic) {
    out_file *f;
    const char *path = in_folder("out");
    char *text;
    size_t n;
    CHECK_OK(out_file_create(&f, path));
    CHECK_OK(out_file_write(f, "old", 3));
    CHECK_OK(out_file_commit(f));
    CHECK_OK(out_file_create(&f, path));
    CHECK_OK(out_file_write(f, "newer", 5));
    CHECK_OK(file_read_all(path, 100, &text, &n));
    CHECK_STR(text, "old"); /* not visible before commit */
    mem_free(text);
    out_file_abandon(f);
    CHECK_EQ(test_command(NULL, "test \"$(ls -A %s)\" = out", test_folder()), 0);
    CHECK_OK(out_file_create(&f, path));
    CHECK_OK(out_file_set_size(f, 8));
    CHECK_OK(out_file_write_at(f, 4, "late", 4));
    CHECK_OK(out_file_write(f, "soon", 4));
    CHECK_OK(out_file_commit(f));
    CHECK_OK(file_read_all(path, 100, &text, &n));
    CHECK_STR(text, "soonlate");
    mem_free(text);
    CHECK_FAILS(file_read_all(path, 7, &text, &n), ERR_FORMAT, "larger than");
    CHECK(text == NULL);
}

/* A signal, as that of a timer, may arrive while a disk writes. */
TEST(file_sync_is_repeated_after_a_signal) {
    out_file *f;
    part_file *p;
    buf header = {0};
    for (int i = 0; i < 3; i++) {
        sync_files = sync_folders = 0;
        CHECK_OK(out_file_create(&f, in_folder("out")));
        sync_interrupts = i;
        CHECK_OK(out_file_commit(f));
        CHECK(sync_interrupts == 0 && sync_files == 1 && sync_folders == 1);
        sync_interrupts = i;
        folder_sync_of(in_folder("out"));
        CHECK(sync_interrupts == 0 && sync_folders == 2);
        unlink(in_folder("part"));
        sync_interrupts = i;
        CHECK_OK(part_file_make(in_folder("part"), &header, 10));
        CHECK(sync_interrupts == 0 && sync_files == 2);
        CHECK_OK(part_file_open(&p, in_folder("part")));
        sync_interrupts = i;
        CHECK_OK(part_file_close(p, OK));
        CHECK(sync_interrupts == 0 && sync_files == 3);
        buf_fini(&header);
    }
}

TEST(file_says_what_is_wrong) {
    out_file *f;
    file_map m;
    CHECK_FAILS(out_file_create(&f, in_folder("no/such/x")), ERR_IO, "No such file");
    CHECK_FAILS(out_file_create(&f, test_folder()), ERR_IO, "is a folder");
    CHECK_FAILS(file_map_open(&m, in_folder("none")), ERR_IO, "cannot be opened");
    CHECK_FAILS(file_map_open(&m, test_folder()), ERR_IO, "not a plain file");
    char *text;
    size_t n;
    CHECK_EQ(test_command(NULL, "mkfifo %s", in_folder("pipe")), 0);
    CHECK_FAILS(file_read_all(in_folder("pipe"), 10, &text, &n), ERR_IO, "not a plain file");
    CHECK_FAILS(file_read_all("/dev/zero", 10, &text, &n), ERR_IO, "not a plain file");
    CHECK_FAILS(file_map_open(&m, in_folder("pipe")), ERR_IO, "not a plain file");
    /* Nothing is put in the place of a pipe or a device, also through a link. */
    CHECK_FAILS(out_file_create(&f, in_folder("pipe")), ERR_IO, "is a device or a pipe");
    CHECK_EQ(test_command(NULL, "ln -s /dev/null %s", in_folder("null")), 0);
    CHECK_FAILS(out_file_create(&f, in_folder("null")), ERR_IO, "is a device or a pipe");
    bool is_made;
    CHECK_OK(folder_create(in_folder("a/b/c/"), &is_made));
    CHECK_OK(folder_create(in_folder("a/b/c"), &is_made));
    CHECK(!is_made);
    CHECK_OK(folder_create(in_folder("a/b/d"), &is_made));
    CHECK(is_made);
    CHECK_EQ(test_command(NULL, "touch %s", in_folder("plain")), 0);
    CHECK_FAILS(folder_create(in_folder("plain"), &is_made), ERR_IO, "not a folder");
    CHECK_FAILS(folder_create(in_folder("plain/x"), &is_made), ERR_IO, "cannot be created");
    CHECK_OK(file_map_open(&m, in_folder("plain")));
    CHECK_EQ(m.n_bytes, 0);
    file_map_close(&m);
}

/* Down to a depth, and never through a link. */
TEST(file_folder_remove_follows_no_link) {
    CHECK_EQ(test_command(NULL,
                          "cd %s && mkdir -p a/b/c out && touch a/1 a/b/2 a/b/c/3 out/kept && ln "
                          "-s ../out a/link && ln -s out in",
                          test_folder()),
             0);
    folder_remove(in_folder("in"), 3);
    CHECK(file_exists(in_folder("out/kept")) && !folder_exists(in_folder("in")));
    folder_remove(in_folder("a"), 1);
    CHECK(file_exists(in_folder("a/b/c/3")) && !file_exists(in_folder("a/b/2")));
    folder_remove(in_folder("a"), 2);
    CHECK(!folder_exists(in_folder("a")) && file_exists(in_folder("out/kept")));
    folder_remove(in_folder("out/kept"), 1);
    CHECK(file_exists(in_folder("out/kept")));
}

/* A full disk: /dev/full is not a place to rename to, so a file size limit stands in for it. */
TEST(file_full_disk_leaves_nothing) {
    char *text;
    int code = test_command(
        &text, "cd %s && (ulimit -f 1; trap '' XFSZ; exec %s synth --out d --users 500)",
        test_folder(), test_program());
    CHECK_EQ(code, 1);
    CHECK_CONTAINS(text, "data.seq");
    free(text);
    CHECK_EQ(test_command(NULL, "test -e %s/d", test_folder()), 1);
}

TEST(mem_free_takes_several_blocks) {
    int64_t before = mem_n_live();
    char *a;
    double *b;
    CHECK_OK(MEM_NEW(&a, 3));
    CHECK_OK(MEM_NEW(&b, 5));
    MEM_FREE(a, NULL, b);
    CHECK_EQ(mem_n_live(), before);
}
