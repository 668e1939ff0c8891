#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scratch_folder.h"
#include "test.h"

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
