#include "data/read/row_field.h"

static const field_fault faults[] = {FIELD_FINE, FIELD_NOT_WHOLE, FIELD_TOO_LARGE, FIELD_NOT_PLAIN};

/* The entry with exactly this text; -1 if there is none. */
static int find(const action_map *m, const char *text, size_t n) {
    for (int i = 0; i < m->n; i++)
        if (m->n_bytes[i] == n && memcmp(m->text[i], text, n) == 0) return i;
    return -1;
}

bool action_is_missing(const char *text, size_t n) {
    static const char *const words[] = {"", "nan", "-nan", "null", "none", "na", "n/a", "\\n"};
    if (n > 0 && *text >= '0' && *text <= '9') return false; /* nearly all */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i]) == n && strncasecmp(words[i], text, n) == 0) return true;
    return false;
}

/* Cuts "digits.zeros" to its digits; -1 in *half where the fraction is neither 0 nor 5.  A comma of
 * a rating is a point too; that of a larger number may be one of thousands. */
static size_t cut_fraction(action_kind kind, const char *text, size_t n, int *half) {
    const char *point = memchr(text, '.', n);
    if (point == NULL && (kind == ACTION_STARS || kind == ACTION_HALF_STARS))
        point = memchr(text, ',', n);
    *half = 0;
    if (point == NULL) return n;
    size_t whole = (size_t)(point - text), last = n;
    while (last > whole + 1 && text[last - 1] == '0')
        last--;
    if (last == whole + 2 && text[whole + 1] == '5')
        *half = 1;
    else if (last != whole + 1 || n == whole + 1)
        *half = -1;
    return whole;
}

bool action_parse(action_kind kind, const char *text, size_t n, uint16_t *out) {
    int half;
    int64_t value = 0;
    size_t whole = cut_fraction(kind, text, n, &half);
    /* ".5" has no digits before the point, which ratings may leave out. */
    bool is_bare_half = whole == 0 && half == 1;
    bool is_below_zero = half == 1 && text[0] == '-'; /* "-0.5": its whole part says 0 */
    if (half < 0 || is_below_zero ||
        (!is_bare_half && number_read(text, whole, &value) != NUMBER_WHOLE))
        return false;
    return action_store(kind, value, half, out);
}

const char *action_scale(action_kind kind) {
    switch (kind) {
    case ACTION_STARS:
        return "a whole number from 1 to 5 (half-stars have steps of 0.5)";
    case ACTION_HALF_STARS:
        return "from 0.5 to 5 in steps of 0.5";
    case ACTION_BITS:
        return "a bit mask from 0 to 255";
    default:
        return "a whole number from 0 to 65534";
    }
}

csv_field field_trim(const csv_field *field) {
    csv_field f = *field;
    while (f.n_bytes > 0 && f.text[0] == ' ')
        f.text++, f.n_bytes--;
    while (f.n_bytes > 0 && f.text[f.n_bytes - 1] == ' ')
        f.n_bytes--;
    return f;
}

/* A text of the map first, then a number: so a map may be given for a column with both.  "*" stands
 * for texts, not for a missing one. */
static field_fault set_action(const csv_layout *t, const csv_field *f, uint16_t *out) {
    int i = t->map != NULL ? find(t->map, f->text, f->n_bytes) : -1;
    bool is_missing = i < 0 && t->is_own && action_is_missing(f->text, f->n_bytes);
    *out = i >= 0 ? t->map->action[i] : ACTION_UNKNOWN;
    if (i >= 0 || is_missing) return FIELD_FINE;
    if (t->map != NULL && t->map->has_other) {
        *out = t->map->other;
        return FIELD_FINE;
    }
    action_kind read_as = t->has_stored_actions ? ACTION_CODE : t->actions;
    bool is_fine = action_parse(read_as, f->text, f->n_bytes, out);
    return is_fine && *out <= action_largest(t->actions) ? FIELD_FINE : FIELD_BAD_ACTION;
}

static field_fault set_bit(const csv_field *f, int bit, uint16_t *action) {
    int64_t value = 0;
    field_fault fault = faults[number_read(f->text, f->n_bytes, &value)];
    *action = (uint16_t)(*action | (value != 0) << bit);
    return fault;
}

static field_fault set_text(const csv_field *f, const char **text, size_t *n) {
    *text = f->text;
    *n = f->n_bytes;
    return f->n_bytes > 0 ? FIELD_FINE : FIELD_EMPTY;
}

field_fault row_set(const csv_layout *t, csv_role role, const csv_field *field, csv_row *row) {
    csv_field f = field_trim(field);
    if (role == ROLE_SKIP) return FIELD_FINE;
    if (role == ROLE_USER && t->has_text_users)
        return set_text(field, &row->user_text, &row->user_bytes);
    if (role == ROLE_ITEM && t->has_text_items)
        return set_text(field, &row->item_text, &row->item_bytes);
    if (f.n_bytes == 0 && (role != ROLE_ACTION || !t->is_own)) return FIELD_EMPTY;
    switch (role) {
    case ROLE_USER:
        return faults[number_read_id(field->text, field->n_bytes, &row->user)];
    case ROLE_ITEM:
        return faults[number_read_id(field->text, field->n_bytes, &row->item)];
    case ROLE_TIME:
        return time_parse(&t->times, f.text, f.n_bytes, &row->time, &row->time_digits) == TIME_FINE
                   ? FIELD_FINE
                   : FIELD_BAD_TIME;
    case ROLE_ACTION:
        return set_action(t, &f, &row->action);
    default:
        return set_bit(&f, (int)role - ROLE_BIT0, &row->action);
    }
}

static status fail_action(const csv_layout *t, const char *shown) {
    if (t->map != NULL)
        return fail(ERR_FORMAT,
                    "'%s' is not in --action-map; add '%s=NUMBER', or '*=NUMBER' for "
                    "all other texts",
                    shown, shown);
    if (t->has_stored_actions)
        return fail(ERR_FORMAT, "'%s' is not an action from 0 to %d", shown,
                    action_largest(t->actions));
    bool is_number = strspn(shown, "0123456789.,-+") == strlen(shown);
    return fail(ERR_FORMAT, "'%s' is not %s%s", shown, action_scale(t->actions),
                is_number || !t->is_own ? "" : "; give texts their numbers with --action-map");
}

static status fail_field(const csv_layout *t, csv_role role, field_fault fault,
                         const csv_field *field) {
    bool is_id = role == ROLE_USER || role == ROLE_ITEM;
    csv_field f = is_id ? *field : field_trim(field);
    char shown[64];
    int64_t time;
    int digits = 0;
    const char *advice = is_id && t->is_own ? "; for string ids use --string-ids" : "";
    escape_excerpt(shown, f.text, f.n_bytes);
    switch (fault) {
    case FIELD_BAD_TIME:
        return time_fail(&t->times, time_parse(&t->times, f.text, f.n_bytes, &time, &digits),
                         f.text, f.n_bytes);
    case FIELD_BAD_ACTION:
        return fail_action(t, shown);
    case FIELD_TOO_LARGE:
        return fail(ERR_FORMAT, "'%s' %s%s", shown, number_fault(NUMBER_TOO_LARGE), advice);
    case FIELD_NOT_PLAIN:
        return fail(ERR_FORMAT, "'%s' %s%s", shown, number_fault(NUMBER_NOT_PLAIN), advice);
    default:
        return fail(ERR_FORMAT, "'%s' %s%s", shown, number_fault(NUMBER_NOT_WHOLE), advice);
    }
}

status row_fail(const csv_layout *t, csv_role role, field_fault fault, const csv_field *field) {
    if (fault == FIELD_EMPTY)
        return fail(ERR_FORMAT, "%s is empty%s", t->name[role],
                    t->bad == NULL && t->n_lists == 0 ? "; --skip-bad 1% leaves such rows out"
                                                      : "");
    return fail_prefix(fail_field(t, role, fault, field), "%s", t->name[role]);
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
    if (n_value == 7 && memcmp(equals + 1, "unknown", 7) == 0)
        action = ACTION_UNKNOWN;
    else if (!action_parse(kind, equals + 1, n_value, &action))
        return fail(ERR_USAGE, "--action-map: the number of '%.*s' is not %s, nor 'unknown'",
                    (int)n, entry, action_scale(kind));
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
