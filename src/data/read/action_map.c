#include "data/read/action_map.h"

#include <string.h>

#include "data/read/csv_parse.h"
#include "data/read/row_field.h"

/* The entry with exactly this text; -1 if there is none. */
static int find(const action_map *m, const char *text, size_t n) {
    for (int i = 0; i < m->n; i++)
        if (m->n_bytes[i] == n && memcmp(m->text[i], text, n) == 0) return i;
    return -1;
}

static status add_entry(action_map *m, const char *text, size_t n, uint16_t action) {
    if (n == 1 && *text == '*') {
        m->has_other = true;
        m->other = action;
        return OK;
    }
    if (find(m, text, n) >= 0)
        return fail(ERR_USAGE, "--action-map: '%.*s' is given twice", (int)n, text);
    if (m->n == ACTION_MAP_MAX)
        return fail(ERR_USAGE, "--action-map: more than %d texts", ACTION_MAP_MAX);
    m->text[m->n] = text;
    m->n_bytes[m->n] = n;
    m->action[m->n++] = action;
    return OK;
}

/* The last '=' separates, so that a text may hold one. */
static status read_entry(action_map *m, const char *entry, size_t n, action_kind kind) {
    const char *equals = memrchr(entry, '=', n);
    uint16_t action;
    if (equals == NULL || equals == entry)
        return fail(ERR_USAGE, "--action-map: '%.*s' is not TEXT=NUMBER, such as view=1,buy=2",
                    (int)n, entry);
    size_t n_text = (size_t)(equals - entry), n_value = n - n_text - 1;
    if (!action_parse(kind, equals + 1, n_value, &action))
        return fail(ERR_USAGE, "--action-map: the number of '%.*s' is not %s", (int)n, entry,
                    action_scale(kind));
    return add_entry(m, entry, n_text, action);
}

status action_map_parse(action_map *m, const char *option, action_kind kind) {
    *m = (action_map){.n = 0};
    for (const char *at = option;;) {
        size_t n = strcspn(at, ",");
        TRY(read_entry(m, at, n, kind));
        if (at[n] == '\0') return OK;
        at += n + 1;
    }
}

bool action_map_find(const action_map *m, const char *text, size_t n, uint16_t *out) {
    int i = find(m, text, n);
    *out = i >= 0 ? m->action[i] : m->other;
    return i >= 0 || m->has_other;
}
