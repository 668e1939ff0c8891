#include "tune/kernel_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static kernel_key key_of(const char *source, const char *compiler) {
    buf text = {0};
    CHECK_OK(buf_text(&text, source));
    kernel_key key = kernel_key_of(&text, compiler);
    buf_fini(&text);
    return key;
}

TEST(what_is_stored_is_found) {
    kernel_cache c;
    kernel_key key = key_of("int x;", "gcc 12"), other = key_of("int x;", "gcc 13");
    buf code = {0};
    bool is_found;
    CHECK_OK(kernel_cache_open(&c, test_folder()));
    CHECK_OK(kernel_cache_find(&c, &key, "so", &code, &is_found, NULL));
    CHECK(!is_found);
    CHECK_OK(kernel_cache_store(&c, &key, "so", "code", 4));
    CHECK_OK(kernel_cache_find(&c, &key, "so", &code, &is_found, NULL));
    CHECK(is_found);
    CHECK_STR(buf_str(&code), "code");
    CHECK_OK(kernel_cache_find(&c, &other, "so", &code, &is_found, NULL));
    CHECK(!is_found);
    kernel_key source = key_of("int y;", "gcc 12");
    CHECK(strcmp(key.name, source.name) != 0);
    buf_fini(&code);
}

/* Every changed byte, and every shorter file, counts as missing. */
TEST(damage_is_seen) {
    kernel_cache c;
    kernel_key key = key_of("a", "b"), other = key_of("b", "b");
    buf code = {0};
    bool is_found;
    char path[4096], copy[8192];
    CHECK_OK(kernel_cache_open(&c, test_folder()));
    CHECK_OK(kernel_cache_store(&c, &key, "so", "compiled code", 13));
    CHECK_OK(kernel_cache_find(&c, &key, "so", &code, &is_found, path));
    struct stat s;
    CHECK_EQ(stat(path, &s), 0);
    for (long at = 0; at < s.st_size; at++) {
        FILE *f = fopen(path, "r+b");
        fseek(f, at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ 4, f);
        fclose(f);
        CHECK_OK(kernel_cache_find(&c, &key, "so", &code, &is_found, NULL));
        CHECK(!is_found);
        f = fopen(path, "r+b");
        fseek(f, at, SEEK_SET);
        fputc(byte, f);
        fclose(f);
    }
    CHECK_OK(kernel_cache_find(&c, &key, "so", &code, &is_found, NULL));
    CHECK(is_found);
    /* Under another name it is not that kernel. */
    snprintf(copy, sizeof copy, "%s/%s.so", test_folder(), other.name);
    CHECK_EQ(rename(path, copy), 0);
    CHECK_OK(kernel_cache_find(&c, &other, "so", &code, &is_found, NULL));
    CHECK(!is_found);
    CHECK_EQ(truncate(copy, s.st_size - 1), 0);
    CHECK_OK(kernel_cache_find(&c, &other, "so", &code, &is_found, NULL));
    CHECK(!is_found);
    buf_fini(&code);
}

static bool is_entry(const kernel_cache *c, const kernel_key *key, char *path) {
    buf code = {0};
    bool is_found;
    CHECK_OK(kernel_cache_find(c, key, "so", &code, &is_found, path));
    buf_fini(&code);
    return is_found;
}

/* Entries that another user made, could have changed, or points to with a link. */
TEST(entries_of_others_count_as_missing) {
    kernel_cache c;
    kernel_key key = key_of("a", "b");
    char path[4096], moved[4200];
    struct stat s;
    mode_t before = umask(0);
    CHECK_OK(kernel_cache_open(&c, test_folder()));
    CHECK_OK(kernel_cache_store(&c, &key, "so", "compiled code", 13));
    umask(before);
    CHECK(is_entry(&c, &key, path));
    CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0600);
    CHECK(chmod(path, 0620) == 0 && !is_entry(&c, &key, path));
    CHECK(chmod(path, 0602) == 0 && !is_entry(&c, &key, path));
    CHECK(chmod(path, 0644) == 0 && is_entry(&c, &key, path));
    snprintf(moved, sizeof moved, "%s.moved", path);
    CHECK(rename(path, moved) == 0 && symlink(moved, path) == 0 && !is_entry(&c, &key, path));
    CHECK_OK(kernel_cache_store(&c, &key, "so", "compiled code", 13));
    CHECK(lstat(path, &s) == 0 && S_ISREG(s.st_mode) && is_entry(&c, &key, path));
    if (geteuid() != 0) return;
    CHECK(chown(path, 1000, 1000) == 0 && !is_entry(&c, &key, path));
    CHECK_OK(kernel_cache_store(&c, &key, "so", "compiled code", 13));
    CHECK(is_entry(&c, &key, path));
    CHECK(chown(test_folder(), 1000, 1000) == 0);
    CHECK_FAILS(kernel_cache_open(&c, test_folder()), ERR_IO, "it must be yours");
}

/* The folder that was checked stays the folder. */
TEST(a_link_to_a_folder_is_followed_once) {
    kernel_cache c;
    char real[4096], link[4096];
    snprintf(real, sizeof real, "%s/real", test_folder());
    snprintf(link, sizeof link, "%s/link", test_folder());
    CHECK(mkdir(real, 0700) == 0 && symlink(real, link) == 0);
    CHECK_OK(kernel_cache_open(&c, link));
    CHECK_STR(strrchr(c.folder, '/'), "/real");
    CHECK_EQ(chmod(real, 0770), 0);
    CHECK_FAILS(kernel_cache_open(&c, link), ERR_IO, "not writable by others");
}

/* A new folder is this user's alone, whatever files are made with. */
TEST(new_folders_are_private) {
    kernel_cache c;
    char path[4096];
    struct stat s;
    snprintf(path, sizeof path, "%s/a/b", test_folder());
    umask(0);
    CHECK_OK(kernel_cache_open(&c, path));
    CHECK(stat(path, &s) == 0 && (s.st_mode & 0777) == 0700);
}

TEST(folders_that_cannot_be_used) {
    kernel_cache c;
    char path[4096];
    snprintf(path, sizeof path, "%s/file", test_folder());
    CHECK_EQ(test_command(NULL, "touch '%s'", path), 0);
    CHECK_FAILS(kernel_cache_open(&c, path), ERR_IO, "--cache");
    snprintf(path, sizeof path, "%s/open", test_folder());
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK_EQ(chmod(path, 0777), 0);
    CHECK_FAILS(kernel_cache_open(&c, path), ERR_IO, "not writable by others");
    CHECK_FAILS(kernel_cache_open(&c, "/proc/nowhere/cache"), ERR_IO, "--cache");
}
