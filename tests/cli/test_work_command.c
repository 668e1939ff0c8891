#include "cli/work.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static void touch(const char *path) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fclose(f);
}

TEST(config_path_prefers_what_is_here) {
    char path[CONFIG_PATH_BYTES];
    CHECK_EQ(chdir(test_folder()), 0);
    CHECK_EQ(mkdir("usr", 0777), 0);
    CHECK_EQ(mkdir("usr/share", 0777), 0);
    CHECK_EQ(mkdir("usr/share/hstu", 0777), 0);
    CHECK_EQ(mkdir("usr/share/hstu/configs", 0777), 0);
    touch("usr/share/hstu/configs/demo.gin");
    touch("own.gin");
    config_path_find_for("usr/bin/hstu", "configs/demo.gin", path);
    CHECK_STR(path, "usr/share/hstu/configs/demo.gin");
    config_path_find_for("usr/bin/hstu", "own.gin", path);
    CHECK_STR(path, "own.gin");
    CHECK_EQ(mkdir("configs", 0777), 0);
    touch("configs/demo.gin");
    config_path_find_for("usr/bin/hstu", "configs/demo.gin", path);
    CHECK_STR(path, "configs/demo.gin");
}

/* A program of a source tree that is called from elsewhere. */
TEST(config_path_finds_the_source_tree) {
    char path[CONFIG_PATH_BYTES];
    CHECK_EQ(chdir(test_folder()), 0);
    CHECK_EQ(test_command(NULL, "mkdir -p src/configs/own && touch src/configs/own/small.gin"), 0);
    config_path_find_for("src/build/release/hstu", "configs/own/small.gin", path);
    CHECK_STR(path, "src/configs/own/small.gin");
    config_path_find_for("src/hstu", "configs/own/small.gin", path);
    CHECK_STR(path, "src/configs/own/small.gin");
    config_path_find_for("src/build/hstu", "configs/own/small.gin", path);
    CHECK_STR(path, "configs/own/small.gin");
}

TEST(config_path_keeps_what_it_cannot_find) {
    char path[CONFIG_PATH_BYTES], name[CONFIG_PATH_BYTES];
    CHECK_EQ(chdir(test_folder()), 0);
    config_path_find_for("usr/bin/hstu", "configs/other.gin", path);
    CHECK_STR(path, "configs/other.gin");
    config_path_find_for("hstu", "configs/other.gin", path);
    CHECK_STR(path, "configs/other.gin");
    config_path_find_for("", "/absolute.gin", path);
    CHECK_STR(path, "/absolute.gin");
    for (int i = 0; i < CONFIG_PATH_BYTES - 1; i++)
        name[i] = 'x';
    name[CONFIG_PATH_BYTES - 1] = '\0';
    config_path_find_for("usr/bin/hstu", name, path);
    CHECK_STR(path, name);
    config_path_find("configs/other.gin", path);
    CHECK_STR(path, "configs/other.gin");
}
