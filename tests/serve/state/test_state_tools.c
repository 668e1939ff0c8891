#include "serve/state/state_tools.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "disk_fault.h"
#include "format/json.h"
#include "serve/state/user_writer.h"
#include "test.h"

/* State folders that b278c5c wrote, with what was posted to it (tests/compat/state). */
static const char *const folders[] = {"plain", "empty", "cut", "flipped-last", "flipped-middle"};

/* The program is build/VARIANT/hstu in the repository. */
static void copy_of(const char *name, char folder[4300], char **expected, size_t *n) {
    char from[4600], root[4400];
    snprintf(root, sizeof root, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(root, '/') = '\0';
    snprintf(folder, 4300, "%s/%s", test_folder(), name);
    CHECK_EQ(mkdir(folder, 0700), 0);
    snprintf(from, sizeof from, "%.4300s/tests/compat/state/%s/expected.json", root, name);
    CHECK_OK(file_read_all(from, 1 << 20, expected, n));
    snprintf(from, sizeof from, "cp %.4200s/tests/compat/state/%s/events.log '%.250s'", root, name,
             folder);
    CHECK_EQ(system(from), 0);
}

static void check_event(users *u, const stored_event *e, const json_value *want) {
    engine_id item = users_item_id(u, e->item);
    int64_t s;
    uint32_t ns;
    users_time(u, e->time, &s, &ns);
    const char *name = json_member(want, "item")->string;
    CHECK(item.n == strlen(name) && memcmp(item.text, name, item.n) == 0);
    CHECK((double)s + ns / 1e9 == json_member(want, "time")->number);
    CHECK_EQ(e->action, json_member(want, "action")->integer);
}

/* All that was posted is there, once, and nobody else. */
static void check_users(const char *folder, const json_value *expected) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    user_writer *w;
    users u;
    CHECK_OK(users_init(&u, NULL, 1 << 20));
    CHECK_OK(user_writer_create(&w, &u, &lock, folder, 1000000000));
    const json_value *all = json_member(expected, "users");
    for (const json_value *user = all->first; user != NULL; user = user->next) {
        id_text id;
        size_t i = 0;
        engine_id given = {.text = user->key, .n = strlen(user->key)};
        CHECK_OK(id_text_make(&id, &given, "the user"));
        user_history h = users_history(&u, &id);
        CHECK_EQ(h.n, user->n_children);
        for (const json_value *e = user->first; e != NULL; e = e->next, i++) {
            stored_event stored = user_history_at(&h, i);
            const json_value *event_id = json_member(e, "id");
            check_event(&u, &stored, e);
            CHECK_EQ(stored.id != 0, event_id != NULL);
        }
    }
    CHECK_EQ(u.n_known, all->n_children);
    user_writer_destroy(w);
    users_fini(&u);
}

TEST(event_logs_of_earlier_versions_are_imported) {
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char folder[4300], kept[4400], *text;
        log_counts counts;
        state_counts found;
        const json_value *expected;
        arena a;
        size_t n;
        copy_of(folders[i], folder, &text, &n);
        arena_init(&a, 1 << 14);
        CHECK_OK(json_parse(&a, folders[i], text, n, &expected));
        const json_value *damage = json_member(expected, "damage");
        bool is_damaged = damage->type != JSON_NULL;
        if (is_damaged) {
            CHECK_FAILS(event_log_import(folder, false, &counts), ERR_FORMAT,
                        "may hold acknowledged");
            CHECK_EQ(counts.damaged, (uint64_t)json_member(damage, "offset")->integer);
            snprintf(kept, sizeof kept, "%s/state.db", folder);
            CHECK(!file_exists(kept)); /* refused: nothing has changed */
        }
        CHECK_OK(event_log_import(folder, true, &counts));
        CHECK_EQ(counts.n_damaged > 0, is_damaged);
        snprintf(kept, sizeof kept, "%s/events.log.imported", folder);
        CHECK(file_exists(kept));
        CHECK_OK(state_check(folder, &found));
        CHECK_EQ(found.n_erased, json_member(expected, "erased")->n_children);
        CHECK_EQ(found.n_unswept, 0);
        check_users(folder, expected);
        CHECK_FAILS(event_log_import(folder, false, &counts), ERR_USAGE, "already exists");
        mem_free(text);
        arena_fini(&a);
    }
}

/* The disk fills up at any moment: the import fails and the log stays, or everything is there. */
TEST(event_logs_are_imported_whole_or_not_at_all) {
    char folder[4300], log[4400], kept[4400], *text;
    const json_value *expected;
    log_counts counts;
    arena a;
    size_t n;
    int n_failed = 0;
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    copy_of("plain", folder, &text, &n);
    arena_init(&a, 1 << 14);
    CHECK_OK(json_parse(&a, "plain", text, n, &expected));
    snprintf(log, sizeof log, "%s/events.log", folder);
    snprintf(kept, sizeof kept, "%s/events.log.imported", folder);
    for (int i = 0; i < 80; i++) {
        disk_fault_after(i, DISK_FULL, "importing");
        status st = event_log_import(folder, false, &counts);
        disk_fault_set(DISK_GOOD, "");
        n_failed += st != OK;
        CHECK_EQ(file_exists(log), st != OK);
        if (st != OK) continue;
        check_users(folder, expected);
        CHECK_EQ(rename(kept, log), 0);
        snprintf(kept, sizeof kept, "%s/state.db", folder);
        CHECK_EQ(unlink(kept), 0);
        snprintf(kept, sizeof kept, "%s/events.log.imported", folder);
    }
    CHECK(n_failed > 10 && n_failed < 80);
    mem_free(text);
    arena_fini(&a);
}
