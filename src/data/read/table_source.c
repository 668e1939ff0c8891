#include "data/read/table_source.h"

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
      " customerid customer customerno memberid member visitorid visitor reviewerid accountid "
      "clientid "
      "personid buyerid profileid username userhash ",
      " sessionid session deviceid "}},
    {ROLE_ITEM,
     "item",
     "--item-col",
     {" itemid item iid ",
      " movieid movie productid product asin videoid video articleid article articleno itemno "
      "trackid songid bookid "
      "isbn postid newsid contentid sku gameid businessid showid adid ",
      " parentasin artistid categoryid "}},
    {ROLE_TIME,
     "time",
     "--time-col",
     {" timestamp ts unixtimestamp eventtime eventtimestamp timems timestampms unixtime ",
      " time datetime when eventdatetime createdat creationtime unixreviewtime reviewtime "
      "occurredat clicktime ",
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
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        escape_list_add(out, size, names[i], strlen(names[i]));
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
    enum { N_KINDS = N_TIME_FORMS * N_TIME_UNITS };
    int count[N_KINDS] = {0}, first[N_KINDS], best = -1;
    bool has_only_clocks = true;
    for (int i = 0; i < s->n_rows; i++) {
        const csv_field *f = sample_cell(s, i, col);
        time_form form;
        time_unit unit;
        if (f->text == NULL || !time_guess(f->text, f->n_bytes, &form, &unit)) continue;
        int kind = (int)form * N_TIME_UNITS + (int)unit;
        has_only_clocks &= form == TIME_DATE || time_is_clock(f->text, f->n_bytes);
        if (count[kind]++ == 0) first[kind] = i;
        if (best < 0 || count[kind] > count[best]) best = kind;
    }
    time_plan_set(plan, TIME_NUMBER, UNIT_S, false);
    if (best < 0) return;
    time_plan_set(plan, (time_form)(best / N_TIME_UNITS), (time_unit)(best % N_TIME_UNITS), false);
    plan->takes_dates = has_only_clocks;
    const csv_field *f = sample_cell(s, first[best], col);
    char text[64];
    snprintf(plan->evidence, sizeof plan->evidence, "%.80s:%llu ('%.40s')", s->file,
             (unsigned long long)s->line[first[best]], escape_excerpt(text, f->text, f->n_bytes));
}

typedef enum { CELL_MISSING, CELL_NUMBER, CELL_TEXT } cell_kind;

static cell_kind action_cell(const csv_field *f) {
    if (f->text == NULL || action_is_missing(f->text, f->n_bytes)) return CELL_MISSING;
    for (size_t i = 0; i < f->n_bytes; i++)
        if (strchr("0123456789.,+-", f->text[i]) == NULL) return CELL_TEXT;
    return CELL_NUMBER;
}

/* Whether a column has numbers, all of them actions of this kind, and at most a tenth of texts. */
static bool fits_kind(const sample *s, int col, action_kind kind) {
    int count[] = {0, 0, 0};
    for (int i = 0; i < s->n_rows; i++) {
        csv_field f = field_trim(sample_cell(s, i, col));
        cell_kind cell = action_cell(&f);
        uint16_t action;
        if (cell == CELL_NUMBER && !action_parse(kind, f.text, f.n_bytes, &action)) return false;
        count[cell]++;
    }
    return count[CELL_NUMBER] > 0 && count[CELL_TEXT] * 9 <= count[CELL_NUMBER];
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
        bool is_new = action_cell(f) == CELL_TEXT;
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
    if (choice->of[ROLE_ACTION] < 0 || r->action_kind != NULL) return;
    options->actions =
        r->action_map != NULL ? ACTION_CODE : guess_action(s, choice->of[ROLE_ACTION], &is_sure);
    if (is_sure) return;
    char map[256];
    suggest_map(s, choice->of[ROLE_ACTION], map, sizeof map);
    if (!choice->is_action_guessed) {
        if (map[0] != '\0') log_info("note: actions that are texts need --action-map %s", map);
        return;
    }
    escape_excerpt(name, s->name[choice->of[ROLE_ACTION]],
                   strlen(s->name[choice->of[ROLE_ACTION]]));
    bool is_empty = true;
    for (int i = 0; i < s->n_rows; i++)
        is_empty &= action_cell(sample_cell(s, i, choice->of[ROLE_ACTION])) == CELL_MISSING;
    if (is_empty)
        log_info("note: the column %s is left out: it is empty in the first rows", name);
    else if (map[0] != '\0')
        log_info("note: the column %s is left out, as it holds texts; to use it: --action-map %s",
                 name, map);
    else
        log_info("note: the column %s is left out: its first rows hold neither whole numbers from "
                 "0 to 65534 nor half stars; round its values, or give --action-kind",
                 name);
    options->actions = ACTION_NONE;
    choice->of[ROLE_ACTION] = -1;
}

/* What the chosen columns hold, by the options and the sample: sets the kinds of ids, times and
 * actions of `t` and of `options`.  A guessed action column that no kind of action fits is left out
 * with a note: choice->of[ROLE_ACTION] = -1. */
static status columns_guess_kinds(const source_request *r, const sample *s, column_choice *choice,
                                  csv_layout *t, builder_options *options) {
    options->has_text_users = r->has_text_ids || has_texts(s, choice->of[ROLE_USER]);
    options->has_text_items = r->has_text_ids || has_texts(s, choice->of[ROLE_ITEM]);
    set_action_kind(r, s, choice, options);
    t->has_text_users = options->has_text_users;
    t->has_text_items = options->has_text_items;
    t->actions = options->actions;
    options->has_ns_times = true;
    if (r->time_format != NULL)
        TRY(time_plan_parse_format(&t->times, r->time_format));
    else if (r->time_unit != NULL)
        TRY(time_plan_parse(&t->times, r->time_unit));
    else if (choice->of[ROLE_TIME] >= 0)
        guess_times(s, choice->of[ROLE_TIME], &t->times);
    options->min_time_digits = choice->of[ROLE_TIME] >= 0 ? time_plan_digits(&t->times) : 0;
    return OK;
}

/* Names the columns that are not read, and how to read them; of those without a name, only what
 * could be an action. */
static void say_unread(const source_request *r, const sample *s, const column_choice *choice) {
    char unread[512] = "";
    bool has_action =
        choice->of[ROLE_ACTION] >= 0 || r->action_col != NULL || r->action_kind != NULL;
    for (int c = 0; c < s->n_columns; c++) {
        bool is_taken = c == choice->of[ROLE_USER] || c == choice->of[ROLE_ITEM] ||
                        c == choice->of[ROLE_TIME] || c == choice->of[ROLE_ACTION];
        if (is_taken) continue;
        if (s->has_names)
            escape_list_add(unread, sizeof unread, s->name[c], strlen(s->name[c]));
        else if (!has_action &&
                 (fits_kind(s, c, ACTION_HALF_STARS) || fits_kind(s, c, ACTION_CODE)))
            log_info("note: column %d is not read; if it holds ratings or actions: --action-col %d",
                     c + 1, c + 1);
    }
    if (unread[0] != '\0' && r->items == NULL && r->users == NULL)
        log_info("note: not read: %s; %s--items and --users read features, also from this file",
                 unread, has_action ? "" : "--action-col reads ratings or actions, ");
}

/* Logs what was taken for what: one line. */
static void columns_say(const sample *s, const char *form, const column_choice *choice,
                        const csv_layout *t) {
    static const char *const kinds[] = {"none", "stars", "half stars", "bits", "codes"};
    char line[512];
    int n = snprintf(line, sizeof line, "%s%s; user %s (%s), item %s (%s)", form,
                     s->has_names ? "" : ", no header", t->name[ROLE_USER],
                     t->has_text_users ? "texts" : "numbers", t->name[ROLE_ITEM],
                     t->has_text_items ? "texts" : "numbers");
    n += snprintf(line + n, sizeof line - (size_t)n, ", time %s",
                  choice->of[ROLE_TIME] >= 0 ? t->name[ROLE_TIME]
                                             : "none, so the order of the file");
    if (choice->of[ROLE_ACTION] >= 0)
        n += snprintf(line + n, sizeof line - (size_t)n, ", action %s (%s)", t->name[ROLE_ACTION],
                      t->map != NULL ? "by --action-map" : kinds[t->actions]);
    log_info("%s: %s", s->file, line);
}

/* Without names, the time is the only column from the third on with numbers or dates of a clock; 2
 * (the third) if none or several are. */
static int columns_find_clock(const sample *s) {
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

static status want(table_reader *r, csv_role role, const char *name) {
    const char *copy;
    TRY(arena_copy_text(&r->names, name, strlen(name), &copy));
    r->wanted[r->n_wanted++] = (csv_column){role, copy};
    return OK;
}

/* A column by its number from 1, where there are no names. */
static status want_number(table_reader *r, csv_role role, int col) {
    char text[16];
    snprintf(text, sizeof text, "%d", col + 1);
    return want(r, role, text);
}

/* The column of a role that must be there: the one given, or the usual one. */
static status choose(table_reader *r, const sample *s, csv_role role, const char *given) {
    int col;
    if (given != NULL && strcmp(given, "none") == 0 && role == ROLE_TIME) return OK;
    if (given != NULL) return want(r, role, given);
    if (!s->has_names)
        return want_number(r, role, role == ROLE_TIME ? columns_find_clock(s) : role == ROLE_ITEM);
    TRY(columns_find_usual(s->file, role, s->name, s->n_columns, &col));
    if (col < 0) return columns_fail_missing(s->file, role, s->name, s->n_columns);
    return want(r, role, s->name[col]);
}

/* The action is optional: two columns that could be it are a note, not an error. */
static status choose_action(table_reader *r, const sample *s) {
    const source_request *q = r->job->request;
    int col = -1;
    if (q->action_kind != NULL && r->job->options.actions == ACTION_NONE) return OK;
    if (q->action_col != NULL)
        return strcmp(q->action_col, "none") == 0 ? OK : want(r, ROLE_ACTION, q->action_col);
    if (s->has_names &&
        columns_find_usual(s->file, ROLE_ACTION, s->name, s->n_columns, &col) != OK) {
        if (q->action_kind != NULL || q->action_map != NULL) return ERR_FORMAT;
        log_info("note: %s; none is taken", status_reason());
        return OK;
    }
    if (col >= 0) {
        r->choice.is_action_guessed = true;
        return want(r, ROLE_ACTION, s->name[col]);
    }
    if (q->action_kind == NULL && q->action_map == NULL) return OK;
    return fail(ERR_USAGE, "%s needs --action-col",
                q->action_kind != NULL ? "--action-kind" : "--action-map");
}

status table_choose_columns(table_reader *r, const sample *s) {
    const source_request *q = r->job->request;
    TRY(choose(r, s, ROLE_USER, q->user_col));
    TRY(choose(r, s, ROLE_ITEM, q->item_col));
    TRY(choose(r, s, ROLE_TIME, q->time_col));
    return choose_action(r, s);
}

/* Numbers count from 1970 in UTC. */
static status check_zone(const source_request *q, const time_plan *t) {
    bool is_number = t->form == TIME_NUMBER && (t->is_given || t->evidence[0] != '\0');
    if (q->time_zone == NULL || !is_number) return OK;
    return fail(ERR_USAGE,
                "--time-zone is for dates; the times are numbers, which have no zone%s%s",
                t->evidence[0] != '\0' ? ": " : "", t->evidence);
}

status table_set_kinds(table_reader *r, const sample *s, const char *form) {
    source_job *job = r->job;
    column_choice wanted = r->choice; /* with an action column that is then left out, and said */
    TRY(columns_guess_kinds(job->request, s, &r->choice, &r->layout, &job->options));
    TRY(check_zone(job->request, &r->layout.times));
    r->layout.times.zone = job->zone;
    /* A guessed column that turned out not to be an action was the last one wanted. */
    if (r->choice.of[ROLE_ACTION] < 0 && r->wanted[r->n_wanted - 1].role == ROLE_ACTION)
        r->n_wanted--;
    if (r->choice.of[ROLE_ACTION] < 0) job->options.actions = r->layout.actions = ACTION_NONE;
    if (job->request->action_map != NULL) {
        TRY(action_map_parse(&r->map, job->request->action_map, job->options.actions));
        r->layout.map = &r->map;
        job->options.action_map = job->request->action_map;
    }
    if (s->has_names) {
        snprintf(job->item_name, sizeof job->item_name, "%s", r->layout.name[ROLE_ITEM]);
        snprintf(job->user_name, sizeof job->user_name, "%s", r->layout.name[ROLE_USER]);
    }
    columns_say(s, form, &r->choice, &r->layout);
    say_unread(job->request, s, &wanted);
    return job_create_builder(job);
}

/* Empty lines before the header or the first row. */
static status skip_empty_lines(blocks *b, bool *has_line) {
    for (;;) {
        const char *line;
        size_t n;
        TRY(blocks_peek_line(b, &line, &n, has_line));
        if (!*has_line || n > 0) return OK;
        TRY(blocks_skip_line(b));
    }
}

static status read_part(source_job *job, blocks *b, void *ctx) {
    table_reader *r = ctx;
    csv_layout later;
    bool has_line;
    TRY(skip_empty_lines(b, &has_line));
    if (!has_line) {
        log_info("note: %s is empty", blocks_name(b));
        return OK;
    }
    if (r->has_begun) {
        later = r->layout;
        TRY(r->format->resume(r, b, &later));
        return job_read_blocks(job, b, &later, r->format->parse);
    }
    TRY(arena_copy_text(&r->names, blocks_name(b), strlen(blocks_name(b)), &r->first_file));
    TRY(r->format->begin(r, b));
    r->has_begun = true;
    return job_read_blocks(job, b, &r->layout, r->format->parse);
}

void table_name_times(const table_reader *r) {
    if (r->choice.of[ROLE_TIME] >= 0) time_plan_name(&r->layout.times, r->job->times);
}

static status read_parts(table_reader *r, const part_list *parts) {
    for (size_t i = 0; i < parts->n; i++) {
        input *in;
        TRY(part_open(&parts->part[i], &in));
        status st = job_with_blocks(r->job, in, BLOCKS_DEFAULT_LINE_BYTES, read_part, r);
        input_close(in);
        TRY(st);
    }
    if (r->has_begun) return OK;
    return fail(ERR_FORMAT, "%s: %s", r->job->path,
                parts->n == 1 ? "the file is empty" : "all files are empty");
}

status table_read(source_job *job, const table_format *format) {
    table_reader r = {.job = job, .format = format};
    part_list parts;
    TRY(parts_find(&parts, job->inputs, job->n_inputs, format->endings));
    if (parts.n > job->n_inputs) log_info("%zu files, from %s", parts.n, parts.part[0].path);
    arena_init(&r.names, 4096);
    status st = read_parts(&r, &parts);
    if (st == OK) table_name_times(&r);
    arena_fini(&r.names);
    parts_fini(&parts);
    return st;
}
