/* A build without SQLite: nothing can be opened, and why is said. */
#include "serve/state/state.h"

#if !defined(HSTU_HAS_SQLITE)
static status lacking(void) {
    return fail(ERR_UNSUPPORTED,
                "this build cannot keep users' events: it has no SQLite; install it "
                "(apt-get install libsqlite3-dev), then make");
}

const char *state_library_version(void) {
    return NULL;
}

status state_open(state **out, const char *folder, uint64_t erase_within_ns,
                  const state_reader *reader) {
    (void)folder;
    (void)erase_within_ns;
    (void)reader;
    *out = NULL;
    return lacking();
}

void state_close(state *s) {
    (void)s;
}

status state_close_whole(state *s) {
    (void)s;
    return OK;
}

status state_begin(state *s) {
    (void)s;
    return lacking();
}

status state_add_user(state *s, const char *name, size_t n, int64_t *id) {
    (void)s;
    (void)name;
    (void)n;
    (void)id;
    return lacking();
}

status state_add_event(state *s, const state_event *e) {
    (void)s;
    (void)e;
    return lacking();
}

status state_erase_user(state *s, int64_t id, const char *name, size_t n) {
    return state_add_user(s, name, n, &id);
}

status state_commit(state *s) {
    (void)s;
    return lacking();
}

void state_rollback(state *s) {
    (void)s;
}

uint64_t state_user_key(const state *s, const char *name, size_t n) {
    (void)s;
    (void)name;
    (void)n;
    return 0;
}

uint64_t state_maintain(state *s) {
    (void)s;
    return UINT64_MAX;
}

void state_hurry(state *s) {
    (void)s;
}

void state_get_stats(state *s, state_stats *out) {
    (void)s;
    *out = (state_stats){0};
}

status state_check(const char *folder, state_counts *out) {
    (void)folder;
    *out = (state_counts){0};
    return lacking();
}

status state_backup(const char *folder, const char *file, state_counts *out) {
    (void)file;
    return state_check(folder, out);
}

status state_restore(const char *folder, const char *file, state_counts *out) {
    (void)file;
    return state_check(folder, out);
}

status state_recover(const char *folder, state_counts *out) {
    return state_check(folder, out);
}
#else
typedef int state_none_is_empty;
#endif
