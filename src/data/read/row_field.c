#include "data/read/row_field.h"
#include "base/text.h"

#include <string.h>

#include "data/read/action_map.h"
#include "data/read/number.h"

static const field_fault faults[] = {FIELD_FINE, FIELD_NOT_WHOLE, FIELD_TOO_LARGE, FIELD_NOT_PLAIN};

/* Cuts "digits.zeros" to its digits; -1 in *half where the fraction is neither 0 nor 5. */
static size_t cut_fraction(const char *text, size_t n, int *half) {
    const char *point = memchr(text, '.', n);
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
    size_t whole = cut_fraction(text, n, &half);
    /* ".5" has no digits before the point, which ratings may leave out. */
    bool is_bare_half = whole == 0 && half == 1;
    if (half < 0 || (!is_bare_half && number_read(text, whole, &value) != NUMBER_WHOLE))
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
        return "a whole number from 0 to 65535";
    }
}

static csv_field trim(const csv_field *field) {
    csv_field f = *field;
    while (f.n_bytes > 0 && f.text[0] == ' ')
        f.text++, f.n_bytes--;
    while (f.n_bytes > 0 && f.text[f.n_bytes - 1] == ' ')
        f.n_bytes--;
    return f;
}

/* A text of the map first, then a number: so a map may be given for a column with both. */
static field_fault set_action(const csv_layout *t, const csv_field *f, uint16_t *out) {
    if (t->map != NULL && action_map_find(t->map, f->text, f->n_bytes, out)) return FIELD_FINE;
    return action_parse(t->actions, f->text, f->n_bytes, out) ? FIELD_FINE : FIELD_BAD_ACTION;
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
    csv_field f = trim(field);
    if (role == ROLE_SKIP) return FIELD_FINE;
    if (role == ROLE_USER && t->has_text_users)
        return set_text(field, &row->user_text, &row->user_bytes);
    if (role == ROLE_ITEM && t->has_text_items)
        return set_text(field, &row->item_text, &row->item_bytes);
    if (f.n_bytes == 0) return FIELD_EMPTY;
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
    bool is_number = strspn(shown, "0123456789.-+") == strlen(shown);
    return fail(
        ERR_FORMAT, "'%s' is not %s%s", shown, action_scale(t->actions),
        is_number || !t->can_have_text_ids ? "" : "; give texts their numbers with --action-map");
}

static status fail_field(const csv_layout *t, csv_role role, field_fault fault,
                         const csv_field *field) {
    bool is_id = role == ROLE_USER || role == ROLE_ITEM;
    csv_field f = is_id ? *field : trim(field);
    char shown[64];
    int64_t time;
    int digits = 0;
    const char *advice = is_id && t->can_have_text_ids ? "; for string ids use --string-ids" : "";
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
    if (fault == FIELD_EMPTY) return fail(ERR_FORMAT, "%s is empty", t->name[role]);
    return fail_prefix(fail_field(t, role, fault, field), "%s", t->name[role]);
}
