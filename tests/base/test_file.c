#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "disk_fault.h"
#include "test.h"

static const char *in(const char *name) {
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", test_folder(), name);
    return p;
}

/* What killed processes left goes, what somebody uses stays, and so does everything else. */
TEST(temporary_removes_what_is_abandoned) {
    CHECK_EQ(test_command(NULL,
                          "cd %s && touch .x.1-0.tmp .x.2-0.tmp .x.tmp .x..tmp .x.a.tmp .xy.1.tmp "
                          ".x.3-0.tmp.gz kept && mkdir -p .x.4.tmp/a/b && touch .x.4.tmp/a/b/c && "
                          "ln -s kept .x.5.tmp && mkfifo .x.6.tmp && echo new >x",
                          test_folder()),
             0);
    int used = open(in(".x.2-0.tmp"), O_RDWR);
    CHECK(used >= 0 && temporary_lock(used));
    temporary_clean(in(".x."), 2);
    char *text;
    CHECK_EQ(test_command(&text, "cd %s && LC_ALL=C ls -A | tr '\\n' ' '", test_folder()), 0);
    CHECK_STR(text, ".x..tmp .x.2-0.tmp .x.3-0.tmp.gz .x.5.tmp .x.6.tmp .x.a.tmp .x.tmp .xy.1.tmp "
                    "kept x ");
    free(text);
    close(used);
    /* Writing the target again cleans up, too. */
    out_file *f;
    CHECK_OK(out_file_create(&f, in("x")));
    CHECK(!file_exists(in(".x.2-0.tmp")));
    CHECK_OK(out_file_write(f, "more", 4));
    CHECK_OK(out_file_commit(f));
    CHECK_EQ(test_command(NULL, "test $(cat %s) = more", in("x")), 0);
}

/* A file that was removed between its creation and its lock is not ours. */
TEST(temporary_lock_notices_a_removed_file) {
    int fd = open(in("gone"), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && unlink(in("gone")) == 0);
    CHECK(!temporary_lock(fd));
    close(fd);
}

/* The longest name that a file system takes is a target like any other. */
TEST(temporary_of_a_long_name) {
    char name[256];
    out_file *f;
    memset(name, 'n', 255);
    name[255] = '\0';
    CHECK_OK(out_file_create(&f, in(name)));
    CHECK_OK(out_file_commit(f));
    CHECK(file_exists(in(name)));
}

static const char *place(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/a/b c", test_folder());
    return path;
}

static int n_in(const char *folder) {
    int n = -2; /* . and .. */
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static void write_in(const scratch_folder *s) {
    char path[1024];
    snprintf(path, sizeof path, "%s/rows", scratch_folder_path(s));
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs("x", f) >= 0 && fclose(f) == 0);
}

TEST(scratch_folder_goes_with_its_owner) {
    scratch_folder *a, *b;
    CHECK_OK(scratch_folder_create(&a, place(), "t-"));
    CHECK_OK(scratch_folder_create(&b, place(), "t-"));
    write_in(a);
    CHECK(folder_exists(scratch_folder_path(a)) && folder_exists(scratch_folder_path(b)));
    CHECK_EQ(n_in(place()), 2);
    scratch_folder_destroy(a);
    scratch_folder_destroy(b);
    scratch_folder_destroy(NULL);
    CHECK_EQ(n_in(place()), 0);
}

/* A process that is killed leaves its folder; the next one removes it, and nothing else. */
TEST(scratch_folder_of_a_killed_process_is_removed_by_the_next) {
    scratch_folder *s;
    int status_of;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (scratch_folder_create(&s, place(), "t-") == OK) write_in(s);
        raise(SIGKILL);
    }
    CHECK(waitpid(child, &status_of, 0) == child && WIFSIGNALED(status_of));
    CHECK_EQ(n_in(place()), 1);
    CHECK_EQ(
        test_command(NULL,
                     "cd '%s' && mkdir t-123456 t-1234567 u-123456 && touch t-1234567/.hstu-lock "
                     "u-123456/.hstu-lock t-654321",
                     place()),
        0);
    CHECK_OK(scratch_folder_create(&s, place(), "t-"));
    CHECK_EQ(n_in(place()), 5); /* its own, and four that are none */
    scratch_folder_destroy(s);
    CHECK_EQ(n_in(place()), 4);
}

TEST(scratch_folder_where_none_can_be) {
    scratch_folder *s;
    char file[1024];
    CHECK_OK(folder_create(place(), NULL));
    snprintf(file, sizeof file, "%s/file", place());
    CHECK_EQ(test_command(NULL, "touch '%s'", file), 0);
    CHECK_FAILS(scratch_folder_create(&s, file, "t-"), ERR_IO, "file: exists but is not a folder");
    CHECK(s == NULL);
    CHECK_FAILS(scratch_folder_create(&s, "/proc", "t-"), ERR_IO,
                "/proc: a folder in it cannot be created");
    CHECK(s == NULL);
}

/* What is left of a tree, as find lists it. */
static void check_left(const char *want) {
    char *text;
    CHECK_EQ(test_command(&text, "cd %s && find . -mindepth 1 | LC_ALL=C sort | tr '\\n' ' '",
                          test_folder()),
             0);
    CHECK_STR(text, want);
    free(text);
}

/* Folders go down to a depth; links are not followed, and a file is no folder. */
TEST(folder_remove_stays_in_its_bounds) {
    CHECK_EQ(test_command(NULL,
                          "cd %s && mkdir -p a/b/c kept && touch a/1 a/b/2 a/b/c/3 kept/4 && "
                          "ln -s ../kept a/out && ln -s kept link",
                          test_folder()),
             0);
    folder_remove(in("a"), 0);
    check_left("./a ./a/b ./a/b/2 ./a/b/c ./a/b/c/3 ./kept ./kept/4 ./link ");
    folder_remove(in("a"), 1);
    check_left("./a ./a/b ./a/b/c ./a/b/c/3 ./kept ./kept/4 ./link ");
    folder_remove(in("a"), 2);
    folder_remove(in("link"), 1);
    folder_remove(in("kept/4"), 1);
    folder_remove(in("nothing"), 1);
    check_left("./kept ./kept/4 ");
}

/* Each new folder is durable in the one above it; those that are there are left alone. */
TEST(folder_create_syncs_what_it_makes) {
    bool is_made;
    sync_folders = 0;
    CHECK_OK(folder_create(in("x/y/z"), &is_made));
    CHECK(is_made && sync_folders == 3);
    CHECK_OK(folder_create(in("x/y/z"), &is_made));
    CHECK(!is_made && sync_folders == 3);
    CHECK_OK(file_write(in("x/file"), "1", 1));
    CHECK_FAILS(folder_create(in("x/file"), NULL), ERR_IO, "exists but is not a folder");
    CHECK_FAILS(folder_create("", NULL), ERR_USAGE, "'' is not a name for a folder");
    CHECK(symlink("file", in("x/link")) == 0);
    CHECK(file_is_same(in("x/file"), in("x/link")) && !file_is_same(in("x"), in("x")));
}
