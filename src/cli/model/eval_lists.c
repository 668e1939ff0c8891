#include "cli/model/eval_lists.h"

#include "base/map.h"
#include "cli/model/eval_groups.h"
#include "cli/model/users.h"
#include "cli/output.h"
#include "config/metric_list.h"
#include "data/read/csv.h"
#include "data/set/batcher.h"
#include "format/json.h"
#include "train/loop/evaluate.h"
#include "train/loop/list_metrics.h"
#include "train/report/run_log.h"

enum { ID_BYTES = 512, MAX_COLUMNS = 64, ARENA_BYTES = 1 << 16, MAX_LINE = 1 << 30 };

/* A row of a table: an item of a list, and its place among the user's. */
typedef struct ranked_row {
    int64_t rank, line;
    uint64_t user;
    const char *item;
} ranked_row;

/* A user of the part: where its list has got to. */
typedef struct listed_user {
    uint32_t target;
    bool is_held_out, has_list;
    int32_t n;        /* places of the list so far */
    int32_t position; /* 0: not found */
    int32_t *list;    /* (lists.k), or NULL */
} listed_user;

typedef struct listing {
    const eval_lists_args *a;
    const seq_file *data;
    split split;
    split_users users;
    listed_user *user; /* (n_users) */
    uint64_t n_seen, n_lists, n_repeated;
    bool has_hit;
    id_count unknown_users, unknown_items;
    map listed; /* pairs of user and item */
    uint64_t line;
    enum { FORM_UNKNOWN, FORM_JSON, FORM_CSV } form;
    int place[3];    /* CSV: the columns of user, item and rank; -1: there is none (yet) */
    ranked_row *row; /* (n_rows) */
    size_t n_rows, row_capacity;
    arena memory; /* of the lists */
    metric_list metrics;
    list_metrics lists;
    eval_result result;
    replicates replicates;
} listing;

/* Whether the item is in the part of the user's history that the protocol leaves out. */
static bool is_seen(const listing *l, uint64_t user, uint32_t item) {
    event_range range;
    if (l->a->keeps_seen || item == 0 || !split_range(&l->split, l->a->part, user, &range))
        return false;
    uint64_t end = range.end - 1, n = end - range.begin, most = (uint64_t)l->a->window;
    for (uint64_t i = end - (n < most ? n : most); i < end; i++)
        if (l->data->item[i] == item) return true;
    return false;
}

/* The next place of a user's list.  An item that the data do not have takes a place, too. */
static status add_item(listing *l, uint64_t user, const char *id) {
    uint32_t item = seq_find_item(l->data, id), number, n_before = l->listed.n;
    listed_user *u = &l->user[user];
    id_count_add(&l->unknown_items, id, item != 0);
    if (!u->is_held_out) return OK;
    if (is_seen(l, user, item)) {
        l->n_seen++;
        return OK;
    }
    if (item != 0) TRY(map_put(&l->listed, user << 32 | item, &number));
    if (item != 0 && l->listed.n == n_before) {
        l->n_repeated++;
        return OK;
    }
    if (u->n < l->lists.k) {
        if (u->list == NULL) TRY(ARENA_NEW(&l->memory, &u->list, (size_t)l->lists.k));
        u->list[u->n] = (int32_t)item;
    }
    u->n++;
    if (item != 0 && item == u->target && u->position == 0) u->position = u->n;
    return OK;
}

/* The user of a list, or false: the data do not have it. */
static bool find_user(listing *l, const char *id, uint64_t *out) {
    *out = seq_find_user(l->data, id);
    bool is_known = *out < l->data->n_users;
    id_count_add(&l->unknown_users, id, is_known);
    return is_known;
}

static void begin_list(listing *l, uint64_t user) {
    l->n_lists += !l->user[user].has_list && l->user[user].is_held_out;
    l->user[user].has_list = true;
}

/* An id in JSON: a text, a whole number, or an object with one as "id" or "item". */
static status json_id(const json_value *v, char id[ID_BYTES]) {
    if (v != NULL && v->type == JSON_OBJECT) {
        const json_value *own = json_member(v, "id");
        v = own != NULL ? own : json_member(v, "item");
    }
    if (v != NULL && v->type == JSON_STRING && v->string_bytes < ID_BYTES) {
        snprintf(id, ID_BYTES, "%s", v->string);
        return OK;
    }
    if (v == NULL || v->type != JSON_NUMBER || v->number != rint(v->number))
        return fail(ERR_FORMAT, "no id: a text, a whole number, or {\"id\": ...}");
    if (v->is_integer)
        snprintf(id, ID_BYTES, "%" PRId64, v->integer);
    else
        snprintf(id, ID_BYTES, "%.0f", v->number);
    return OK;
}

/* {"user": ID, "items": [ID, ...]}, as hstu recommend --json writes it. */
static status read_json_line(listing *l, arena *memory, const char *line, size_t n) {
    const json_value *v;
    char id[ID_BYTES];
    uint64_t user;
    TRY(json_parse(memory, "the line", line, n, &v));
    const json_value *items = v->type == JSON_OBJECT ? json_member(v, "items") : NULL;
    if (items == NULL || items->type != JSON_ARRAY)
        return fail(ERR_FORMAT, "no {\"user\": ..., \"items\": [...]}");
    TRY(json_id(json_member(v, "user"), id));
    if (!find_user(l, id, &user)) return OK;
    if (l->user[user].has_list) return fail(ERR_FORMAT, "a second list of user %.60s", id);
    begin_list(l, user);
    for (const json_value *item = items->first; item != NULL; item = item->next) {
        TRY(json_id(item, id));
        TRY(add_item(l, user, id));
    }
    return OK;
}

/* The columns of the header that name user and item, and the rank, if there is one. */
static status read_header(listing *l, csv_field *fields, int n) {
    static const char *const names[3][6] = {{"user", "user_id", "userid", "uid", "query", NULL},
                                            {"item", "item_id", "itemid", "iid", "id", NULL},
                                            {"rank", NULL}};
    int *place = l->place;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            for (int j = 0; names[k][j] != NULL; j++)
                if (place[k] < 0 && fields[i].n_bytes == strlen(names[k][j]) &&
                    strncasecmp(fields[i].text, names[k][j], fields[i].n_bytes) == 0)
                    place[k] = i;
    if (place[0] >= 0 && place[1] >= 0) return OK;
    return fail(ERR_FORMAT, "the header has no columns user and item");
}

static int compare_rows(const void *a, const void *b) {
    const ranked_row *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : (x->line > y->line) - (x->line < y->line);
}

/* The rows of a table by their rank; those of equal ranks stay in the order of the file. */
static status add_rows(listing *l) {
    if (l->n_rows > 0) qsort(l->row, l->n_rows, sizeof *l->row, compare_rows);
    for (size_t i = 0; i < l->n_rows; i++)
        TRY(add_item(l, l->row[i].user, l->row[i].item));
    return OK;
}

/* One row an item: in the order of the user's list, or with its rank. */
static status read_csv_row(listing *l, char *line, size_t n) {
    const csv_format format = {.delimiter = ",", .has_quotes = true};
    csv_field fields[MAX_COLUMNS];
    const char *cell[3];
    ranked_row row = {.line = (int64_t)l->line};
    int n_fields, *place = l->place;
    TRY(csv_split(&format, line, n, fields, MAX_COLUMNS, &n_fields));
    if (place[0] < 0) return read_header(l, fields, n_fields);
    for (int k = 0; k < 3 && place[k] >= 0; k++) {
        if (place[k] >= n_fields || fields[place[k]].n_bytes >= ID_BYTES)
            return fail(ERR_FORMAT, "%d fields: user, item or rank is missing", n_fields);
        cell[k] = fields[place[k]].text;
        fields[place[k]].text[fields[place[k]].n_bytes] = '\0'; /* instead of the delimiter */
    }
    if (place[2] >= 0 && number_read(cell[2], strlen(cell[2]), &row.rank) != NUMBER_WHOLE)
        return fail(ERR_FORMAT, "the rank '%.40s' is not a whole number", cell[2]);
    if (!find_user(l, cell[0], &row.user)) return OK;
    begin_list(l, row.user);
    TRY(arena_copy_text(&l->memory, cell[1], strlen(cell[1]), &row.item));
    TRY(MEM_RESERVE(&l->row, &l->row_capacity, l->n_rows + 1));
    l->row[l->n_rows++] = row;
    return OK;
}

static status read_line(listing *l, arena *memory, char *line, size_t n) {
    size_t first = strspn(line, " \t");
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n == 0) return OK;
    if (l->form == FORM_UNKNOWN) l->form = line[first] == '{' ? FORM_JSON : FORM_CSV;
    return l->form == FORM_JSON ? read_json_line(l, memory, line, n) : read_csv_row(l, line, n);
}

/* Plain or compressed; - is stdin. */
static status read_lines(listing *l) {
    input_lines in;
    arena memory;
    bool is_end = false;
    arena_init(&memory, ARENA_BYTES);
    status st = input_lines_open(&in, l->a->file);
    while (st == OK && (st = input_lines_next(&in, MAX_LINE, &is_end)) == OK && !is_end) {
        l->line = in.n;
        if (in.line.n_bytes > 0) st = read_line(l, &memory, in.line.data, in.line.n_bytes);
        if (st != OK) st = fail_prefix(st, "%s, line %" PRIu64, l->a->file, l->line);
        arena_clear(&memory);
    }
    input_lines_close(&in);
    arena_fini(&memory);
    return st == OK ? add_rows(l) : st;
}

static status mark_users(listing *l) {
    TRY(split_users_init(&l->users, &l->split, l->a->part));
    TRY(split_users_check(&l->users, &l->split, l->a->part, 1));
    TRY(MEM_NEW(&l->user, (size_t)l->data->n_users));
    for (uint64_t i = 0; i < l->users.n; i++) {
        uint64_t user = l->users.user != NULL ? l->users.user[i] : i;
        event_range range;
        split_range(&l->split, l->a->part, user, &range);
        l->user[user] = (listed_user){.target = l->data->item[range.end - 1], .is_held_out = true};
    }
    return OK;
}

static status measure(listing *l) {
    eval_result *r = &l->result;
    int64_t n_users = (int64_t)l->users.n, n_unknown = (int64_t)l->users.n_lost;
    user_position *found = NULL;
    position_counts *counts = NULL;
    *r = (eval_result){.n = l->metrics.n,
                       .n_users = n_users + n_unknown,
                       .n_unknown = n_unknown,
                       .is_retrieval = true,
                       .keeps_seen = l->a->keeps_seen,
                       .n_items_ranked = (int32_t)l->data->n_items};
    status st = MEM_NEW(&found, (size_t)n_users);
    if (st == OK) st = MEM_NEW(&counts, 1);
    if (st == OK) st = replicates_init(&l->replicates, r->n, r->n_users);
    for (int64_t i = 0; st == OK && i < n_users; i++) {
        uint64_t user = l->users.user != NULL ? l->users.user[i] : (uint64_t)i;
        const listed_user *u = &l->user[user];
        int32_t position =
            u->position > 0 && u->position <= POSITION_LAST ? u->position : POSITION_MISS;
        found[i] = (user_position){.user = user, .position = position};
        list_metrics_add(&l->lists, u->list, u->n, found[i].list);
        l->has_hit |= position != POSITION_MISS;
        counts->count[position]++;
        r->n_repeated += u->target != 0 && is_seen(l, user, u->target);
    }
    if (st == OK) {
        counts->count[POSITION_MISS] += (uint64_t)n_unknown;
        replicates_set_users(&l->replicates, found, n_users, n_unknown,
                             batcher_fingerprint(l->data));
        st = replicates_of_positions(&l->replicates, found, n_users, n_unknown, &l->metrics);
    }
    for (int i = 0; st == OK && i < r->n; i++) {
        char name[METRIC_NAME_BYTES];
        bootstrap_bounds b = replicates_bounds(&l->replicates, i);
        const metric *m = &l->metrics.item[i];
        r->item[i] = (eval_metric){.value = metric_table[m->kind].sense == METRIC_NEITHER
                                                ? list_metrics_value(&l->lists, m, found, n_users)
                                                : position_counts_metric(counts, m),
                                   .low = b.low,
                                   .high = b.high};
        snprintf(r->item[i].name, sizeof r->item[i].name, "%s",
                 metric_name(&l->metrics.item[i], name));
        snprintf(l->replicates.metric[i].name, sizeof l->replicates.metric[i].name, "%s",
                 r->item[i].name);
        l->replicates.metric[i].figure = r->item[i].value;
    }
    MEM_FREE(found, counts);
    return st;
}

/* A line as those of a run: by `compare` lists stand beside models. */
static void write_line(const listing *l, const protocol *p, const char *event, json_writer *w) {
    JSON_FIELDS(w, FIELD("event", event), FIELD("step", (int64_t)0), FIELD("model", "lists"),
                FIELD("task", "retrieval"), FIELD("file", l->a->file),
                FIELD("data", l->data->path));
    split_record_write(&l->a->split, w);
    json_key_string(w, "part", split_part_name(l->a->part));
    json_key_int(w, "users", l->result.n_users);
    json_key_int(w, "lists", (int64_t)l->n_lists);
    eval_write_metrics(&l->result, w);
    protocol_write(p, w);
}

static status write_run(const listing *l, const protocol *p) {
    static const char *const events[] = {"start", "eval", "done"};
    static const char about[] = "{\"source\": {\"model\": \"lists\"}}\n";
    bool is_new;
    run_log log;
    buf line = {0};
    TRY(folder_create(l->a->out, &is_new));
    if (!is_new) return fail(ERR_USAGE, "%s: already exists; choose another --out", l->a->out);
    TRY(file_write(show_join(l->a->out, "config.json"), about, sizeof about - 1));
    TRY(replicates_write(&l->replicates, l->a->out, split_part_name(l->a->part)));
    TRY(run_log_open(&log, l->a->out));
    status st = OK;
    for (int i = 0; i < 3 && st == OK; i++) {
        json_writer w;
        buf_clear(&line);
        json_begin_object(&w, &line, 0);
        write_line(l, p, events[i], &w);
        st = json_finish_object(&w);
        if (st == OK) st = run_log_append(&log, buf_str(&line));
    }
    run_log_close(&log);
    buf_fini(&line);
    return st;
}

static status print(const listing *l, const protocol *p) {
    if (l->a->is_json) {
        write_line(l, p, "eval", json_line_open());
        return json_line_print();
    }
    printf("%s: lists of %s of %s users\n\n", show_bold(l->a->file), show_count(l->n_lists),
           show_count((uint64_t)l->result.n_users));
    eval_print_metrics(&l->result, "lists", NULL);
    printf("\n");
    return eval_print_protocol(p);
}

static void tell_unknown(const listing *l, const id_count *c, const char *what,
                         const char *effect) {
    if (c->n_unknown > 0)
        log_warn("%s: %" PRIu64 " of %" PRIu64 " %s are not in the data (%s); the first is '%s'",
                 l->a->file, c->n_unknown, c->n, what, effect, c->first_unknown);
}

static void tell(const listing *l) {
    tell_unknown(l, &l->unknown_users, "users", "left out");
    tell_unknown(l, &l->unknown_items, "listed items", "each takes its place");
    if (l->n_repeated > 0)
        log_warn("%s: %" PRIu64
                 " items are in a user's list more than once: the first place counts",
                 l->a->file, l->n_repeated);
    if (l->n_seen > 0)
        log_info("%s: %" PRIu64 " listed items are in the user's history and were left out, as the "
                 "protocol says (--keep-seen keeps them)",
                 l->a->file, l->n_seen);
    uint64_t n = (uint64_t)l->result.n_users;
    if (!l->has_hit && l->n_lists > 0)
        log_warn("%s: no list has its user's target; lists must be made from the events before it, "
                 "not from all events",
                 l->a->file);
    if (l->n_lists < n)
        log_info("%s: %" PRIu64 " of %" PRIu64 " users have no list: each counts as a miss",
                 l->a->file, n - l->n_lists, n);
}

static status evaluate(listing *l) {
    static const config of_retrieval = {.task = TASK_RETRIEVAL};
    const eval_lists_args *a = l->a;
    session s = {.config = (config *)&of_retrieval,
                 .data = l->data,
                 .max_history = (int32_t)a->window,
                 .limits = {.n_items = (int32_t)l->data->n_items}};
    protocol p = {.session = &s, .rule = a->split.rule, .part = a->part, .result = &l->result};
    TRY(metric_list_parse(&l->metrics, a->metrics != NULL ? a->metrics : "HR@10,HR@50,NDCG@10,MRR",
                          TASK_RETRIEVAL));
    if (a->metrics == NULL) metric_list_add_final(&l->metrics, TASK_RETRIEVAL);
    TRY(list_metrics_init(&l->lists, &l->split, &l->metrics));
    TRY(mark_users(l));
    TRY(read_lines(l));
    if (l->n_lists == 0) return fail(ERR_FORMAT, "%s: has no list of a user of the data", a->file);
    TRY(measure(l));
    tell(l);
    if (a->out != NULL) TRY(write_run(l, &p));
    return print(l, &p);
}

status eval_lists(const eval_lists_args *a) {
    work w;
    listing l = {.a = a, .place = {-1, -1, -1}};
    TRY(work_open(&w, a->data, "cpu"));
    arena_init(&l.memory, ARENA_BYTES);
    status st =
        a->split.rule.kind == SPLIT_TEST_FILE ? work_join_test(&w, a->split.test_file, true) : OK;
    if (st == OK) {
        l.data = work_data(&w);
        l.split = split_make(l.data, a->split.rule, SESSION_SPLIT_SEED);
        st = evaluate(&l);
    }
    split_users_fini(&l.users);
    replicates_fini(&l.replicates);
    map_fini(&l.listed);
    list_metrics_fini(&l.lists);
    arena_fini(&l.memory);
    MEM_FREE(l.row, l.user);
    work_close(&w);
    return st;
}
