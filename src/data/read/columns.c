#include "data/read/columns.h"
#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/read/number.h"
#include "data/read/row_field.h"

enum { MAX_TIERS = 3 };

/* The usual names of a role in lower case without punctuation; a later tier counts only if no
 * column has a name of an earlier one. */
typedef struct usual_names {
    csv_role role;
    const char *what, *option;
    const char *tier[MAX_TIERS]; /* words between spaces */
} usual_names;

static const usual_names usual[] = {
    {ROLE_USER,
     "user",
     "--user-col",
     {" userid user uid ",
      " customerid customer memberid member visitorid visitor reviewerid accountid clientid "
      "personid buyerid profileid username userhash ",
      " sessionid session deviceid "}},
    {ROLE_ITEM,
     "item",
     "--item-col",
     {" itemid item iid ",
      " movieid movie productid product asin videoid video articleid article trackid songid bookid "
      "isbn postid newsid contentid sku gameid businessid showid adid ",
      " parentasin artistid categoryid "}},
    {ROLE_TIME,
     "time",
     "--time-col",
     {" timestamp ts unixtimestamp eventtime eventtimestamp timems timestampms unixtime ",
      " time datetime createdat creationtime unixreviewtime reviewtime occurredat clicktime ",
      " date day eventdate "}},
    {ROLE_ACTION,
     "action",
     "--action-col",
     {" action rating eventtype ",
      " event actiontype behavior behaviour behaviortype interaction interactiontype overall "
      "stars ",
      NULL}},
};

static const usual_names *usual_of(csv_role role) {
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (usual[i].role == role) return &usual[i];
    return &usual[0];
}

const char *columns_option(csv_role role) {
    return usual_of(role)->option;
}

/* " userid " for "User ID": letters and digits between two spaces. */
static void normalise(const char *name, char out[CSV_NAME_BYTES]) {
    size_t n = 0;
    out[n++] = ' ';
    for (; *name != '\0' && n + 2 < CSV_NAME_BYTES; name++)
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
    out[n++] = ' ';
    out[n] = '\0';
}

static bool is_in_tier(const char *tier, const char *name) {
    char word[CSV_NAME_BYTES];
    normalise(name, word);
    return word[1] != ' ' && strstr(tier, word) != NULL;
}

/* The names of a table, for a message. */
static void list_names(char *out, size_t size, const char *const *names, int n) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n && used + 70 < size; i++) {
        char text[64];
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "",
                                 escape_excerpt(text, names[i], strlen(names[i])));
    }
}

status columns_find_usual(const char *file, csv_role role, const char *const *names, int n,
                          int *out) {
    const usual_names *u = usual_of(role);
    *out = -1;
    for (int tier = 0; tier < MAX_TIERS && u->tier[tier] != NULL && *out < 0; tier++) {
        for (int i = 0; i < n; i++) {
            if (!is_in_tier(u->tier[tier], names[i])) continue;
            if (*out >= 0) {
                char list[512], one[64], two[64];
                list_names(list, sizeof list, names, n);
                return fail(ERR_FORMAT,
                            "%s:1: '%s' and '%s' could both be the %s; the header has %s; choose "
                            "one with %s",
                            file, escape_excerpt(one, names[*out], strlen(names[*out])),
                            escape_excerpt(two, names[i], strlen(names[i])), u->what, list,
                            u->option);
            }
            *out = i;
        }
    }
    return OK;
}

status columns_fail_missing(const char *file, csv_role role, const char *const *names, int n) {
    const usual_names *u = usual_of(role);
    char list[512];
    list_names(list, sizeof list, names, n);
    return fail(ERR_FORMAT,
                "%s:1: no column looks like the %s; the header has %s%s; name it with %s%s", file,
                u->what, list, n == 1 ? " alone (is the delimiter another one?)" : "", u->option,
                role == ROLE_TIME ? ", or keep the order of the file with --time-col none" : "");
}

/* Whether more than a tenth of a column are no numbers as ids are. */
static bool has_texts(const sample *s, int col) {
    int n_texts = 0, n = 0;
    for (int i = 0; i < s->n_rows; i++) {
        const csv_field *f = sample_cell(s, i, col);
        int64_t value;
        if (f->text == NULL || f->n_bytes == 0) continue;
        n++;
        n_texts += number_read_id(f->text, f->n_bytes, &value) != NUMBER_WHOLE;
    }
    return n_texts * 10 > n;
}

/* The form and unit that most rows have, and the first row that shows it. */
static void guess_times(const sample *s, int col, time_plan *plan) {
    enum { N_KINDS = TIME_ZONED * N_TIME_UNITS + N_TIME_UNITS };
    int count[N_KINDS] = {0}, first[N_KINDS], best = -1;
    for (int i = 0; i < s->n_rows; i++) {
        const csv_field *f = sample_cell(s, i, col);
        time_form form;
        time_unit unit;
        if (f->text == NULL || !time_guess(f->text, f->n_bytes, &form, &unit)) continue;
        int kind = (int)form * N_TIME_UNITS + (int)unit;
        if (count[kind]++ == 0) first[kind] = i;
        if (best < 0 || count[kind] > count[best]) best = kind;
    }
    time_plan_set(plan, TIME_NUMBER, UNIT_S, false);
    if (best < 0) return;
    time_plan_set(plan, (time_form)(best / N_TIME_UNITS), (time_unit)(best % N_TIME_UNITS), false);
    const csv_field *f = sample_cell(s, first[best], col);
    char text[64];
    snprintf(plan->evidence, sizeof plan->evidence, "%.80s:%llu ('%.40s')", s->file,
             (unsigned long long)s->line[first[best]], escape_excerpt(text, f->text, f->n_bytes));
}

/* Whether every row of a column is an action of this kind. */
static bool fits_kind(const sample *s, int col, action_kind kind) {
    for (int i = 0; i < s->n_rows; i++) {
        const csv_field *f = sample_cell(s, i, col);
        uint16_t action;
        if (f->text == NULL || !action_parse(kind, f->text, f->n_bytes, &action)) return false;
    }
    return s->n_rows > 0;
}

static bool is_rating_name(const sample *s, int col) {
    return s->has_names && is_in_tier(" rating overall stars ", s->name[col]);
}

/* Ratings are stars where they fit; other numbers are codes, kept as they are. */
static action_kind guess_action(const sample *s, int col, bool *is_sure) {
    bool is_rating = is_rating_name(s, col);
    *is_sure = true;
    if (is_rating && fits_kind(s, col, ACTION_STARS)) return ACTION_STARS;
    if (!fits_kind(s, col, ACTION_CODE) && fits_kind(s, col, ACTION_HALF_STARS))
        return ACTION_HALF_STARS;
    *is_sure = fits_kind(s, col, ACTION_CODE);
    return ACTION_CODE;
}

/* A map of the texts in the first rows, to be edited: "view=0,cart=1". */
static void suggest_map(const sample *s, int col, char *out, size_t size) {
    const csv_field *seen[8];
    int n = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < s->n_rows && n < 8 && used + 60 < size; i++) {
        const csv_field *f = sample_cell(s, i, col);
        char text[64];
        bool is_new = f->text != NULL && f->n_bytes > 0;
        for (int k = 0; k < n && is_new; k++)
            is_new =
                f->n_bytes != seen[k]->n_bytes || memcmp(f->text, seen[k]->text, f->n_bytes) != 0;
        if (!is_new) continue;
        seen[n] = f;
        used += (size_t)snprintf(out + used, size - used, "%s%s=%d", n > 0 ? "," : "",
                                 escape_excerpt(text, f->text, f->n_bytes), n);
        n++;
    }
}

static void set_action_kind(const source_request *r, const sample *s, column_choice *choice,
                            builder_options *options) {
    bool is_sure = true;
    char name[64];
    if (choice->action < 0 || r->action_kind != NULL) return;
    options->actions =
        r->action_map != NULL ? ACTION_CODE : guess_action(s, choice->action, &is_sure);
    if (is_sure || !choice->is_action_guessed) return;
    char map[256];
    suggest_map(s, choice->action, map, sizeof map);
    log_info("note: the column %s is left out, as its values are not whole numbers; to use it: "
             "--action-map %s",
             escape_excerpt(name, s->name[choice->action], strlen(s->name[choice->action])), map);
    options->actions = ACTION_NONE;
    choice->action = -1;
}

status columns_guess_kinds(const source_request *r, const sample *s, column_choice *choice,
                           csv_layout *t, builder_options *options) {
    options->has_text_users = r->has_text_ids || has_texts(s, choice->user);
    options->has_text_items = r->has_text_ids || has_texts(s, choice->item);
    set_action_kind(r, s, choice, options);
    t->has_text_users = options->has_text_users;
    t->has_text_items = options->has_text_items;
    t->actions = options->actions;
    options->has_ns_times = true;
    if (r->time_unit != NULL)
        TRY(time_plan_parse(&t->times, r->time_unit));
    else if (choice->time >= 0)
        guess_times(s, choice->time, &t->times);
    options->min_time_digits = choice->time >= 0 ? time_plan_digits(&t->times) : 0;
    return OK;
}

void columns_say(const sample *s, const char *form, const column_choice *choice,
                 const csv_layout *t) {
    static const char *const kinds[] = {"none", "stars", "half stars", "bits", "codes"};
    char line[512];
    int n = snprintf(line, sizeof line, "%s%s; user %s (%s), item %s (%s)", form,
                     s->has_names ? "" : ", no header", t->name[ROLE_USER],
                     t->has_text_users ? "texts" : "numbers", t->name[ROLE_ITEM],
                     t->has_text_items ? "texts" : "numbers");
    n += snprintf(line + n, sizeof line - (size_t)n, ", time %s",
                  choice->time >= 0 ? t->name[ROLE_TIME] : "none, so the order of the file");
    if (choice->action >= 0)
        n += snprintf(line + n, sizeof line - (size_t)n, ", action %s (%s)", t->name[ROLE_ACTION],
                      t->map != NULL ? "by --action-map" : kinds[t->actions]);
    (void)n;
    log_info("%s: %s", s->file, line);
}

int columns_find_clock(const sample *s) {
    int found = -1;
    for (int c = 2; c < s->n_columns; c++) {
        bool is_clock = s->n_rows > 0;
        for (int i = 0; i < s->n_rows && is_clock; i++) {
            const csv_field *f = sample_cell(s, i, c);
            time_form form = TIME_NUMBER;
            time_unit unit;
            is_clock = f->text != NULL && time_guess(f->text, f->n_bytes, &form, &unit);
            /* A number of seconds has nine digits or more since 1973. */
            if (is_clock && form == TIME_NUMBER) is_clock = f->n_bytes >= 9;
        }
        if (!is_clock) continue;
        if (found >= 0) return 2;
        found = c;
    }
    return found >= 0 ? found : 2;
}
