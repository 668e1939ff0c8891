#include "base/temporary.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
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
