#include "cli/model/eval_groups.h"

#include "cli/output.h"

/* Groups of users, by their place among all that are possible, before the large ones are chosen. A
 * user is in several if the target has several values of a feature. */
typedef struct grouping {
    const split *split;
    split_part part;
    const user_position *users;
    int64_t n_users;
    struct group_place {
        int64_t user;
        uint32_t value;
    } * place; /* (n_places) */
    size_t n_places, capacity;
    uint32_t n_values;         /* groups there may be */
    const text_column *values; /* of a feature: their names; else NULL */
    uint32_t *n_trained;       /* (n_items + 1): training events of items; popularity */
    uint32_t cut[3]; /* of these: what the most popular 1, 10 and 50 % of the items have */
} grouping;

static const int lengths[] = {10, 20, 50, 100, 200, 500};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static uint64_t history_of(const grouping *g, uint64_t user, uint32_t *target) {
    event_range r;
    if (!split_range(g->split, g->part, user, &r)) return 0;
    *target = g->split->data->item[r.end - 1];
    return r.end - 1 - r.begin;
}

static uint32_t by_length(const grouping *g, uint64_t user) {
    uint32_t target, k = 0;
    uint64_t n = history_of(g, user, &target);
    while (k < N_LENGTHS && n >= (uint64_t)lengths[k])
        k++;
    return k;
}

static uint32_t by_popularity(const grouping *g, uint64_t user) {
    uint32_t target = 0, k = 0;
    (void)history_of(g, user, &target);
    while (k < 3 && g->n_trained[target] < g->cut[k])
        k++;
    return k;
}

/* What the most popular 1, 10 and 50 % of the items have at least. */
static status count_items(grouping *g) {
    const seq_file *data = g->split->data;
    static const double shares[] = {.01, .1, .5};
    uint64_t *sorted;
    TRY(MEM_NEW(&g->n_trained, (size_t)data->n_items + 1));
    for (uint64_t u = 0; u < data->n_users; u++) {
        event_range r;
        if (!split_range(g->split, PART_TRAIN, u, &r)) continue;
        for (uint64_t i = r.begin; i < r.end; i++)
            g->n_trained[data->item[i]]++;
    }
    TRY(MEM_NEW(&sorted, (size_t)data->n_items));
    for (uint64_t i = 0; i < data->n_items; i++)
        sorted[i] = g->n_trained[i + 1];
    sort_uint64(sorted, (size_t)data->n_items);
    for (int k = 0; k < 3; k++) {
        uint64_t n = (uint64_t)(shares[k] * (double)data->n_items);
        g->cut[k] = data->n_items > 0 ? (uint32_t)sorted[data->n_items - (n > 0 ? n : 1)] : 0;
    }
    mem_free(sorted);
    return OK;
}

static const context_feature *find_feature(const seq_file *data, const char *name) {
    for (int i = 0; i < data->n_context; i++)
        if (strcmp(data->context[i].name, name) == 0) return &data->context[i];
    return NULL;
}

static status fail_by(const seq_file *data, const char *by, bool is_retrieval) {
    char names[512] = "", hint[80];
    escape_list_add(names, sizeof names, "length", 6);
    if (is_retrieval) escape_list_add(names, sizeof names, "popularity", 10);
    for (int i = 0; i < data->n_context; i++)
        escape_list_add(names, sizeof names, data->context[i].name, strlen(data->context[i].name));
    for (int i = 0; i < data->n_content && is_retrieval; i++)
        escape_list_add(names, sizeof names, data->content[i].name, strlen(data->content[i].name));
    return fail(ERR_USAGE, "--by %.60s: must be %s%s", by, names, nearest_hint(hint, by, names));
}

static status add_place(grouping *g, int64_t i, uint32_t value) {
    TRY(MEM_RESERVE(&g->place, &g->capacity, g->n_places + 1));
    g->place[g->n_places++] = (struct group_place){i, value};
    return OK;
}

/* An item without a value is unknown, 0. */
static status place_users(grouping *g, const char *by, bool is_retrieval) {
    const seq_file *data = g->split->data;
    const context_feature *f = find_feature(data, by);
    const item_content *c = NULL;
    uint32_t (*place)(const grouping *, uint64_t) = NULL;
    for (int i = 0; i < data->n_content && f == NULL && is_retrieval; i++)
        if (strcmp(data->content[i].name, by) == 0) c = &data->content[i];
    if (f != NULL || c != NULL)
        g->values = f != NULL ? &f->values : &c->values, g->n_values = (uint32_t)g->values->n;
    else if (strcmp(by, "length") == 0)
        place = by_length, g->n_values = N_LENGTHS + 1;
    else if (strcmp(by, "popularity") == 0 && is_retrieval)
        place = by_popularity, g->n_values = 4;
    else
        return fail_by(data, by, is_retrieval);
    if (place == by_popularity) TRY(count_items(g));
    for (int64_t i = 0; i < g->n_users; i++) {
        uint64_t user = g->users[i].user;
        uint32_t target = 0;
        if (c != NULL) (void)history_of(g, user, &target);
        if (c == NULL || c->offsets[target] == c->offsets[target + 1])
            TRY(add_place(g, i, f != NULL ? f->value[user] : c != NULL ? 0 : place(g, user)));
        for (uint64_t k = c != NULL ? c->offsets[target] : 1;
             c != NULL && k < c->offsets[target + 1]; k++)
            TRY(add_place(g, i, c->value[k]));
    }
    return OK;
}

static void name_group(const grouping *g, const char *by, uint32_t value, char *name) {
    static const char *const popular[] = {"1 % most popular", "next 9 %", "next 40 %",
                                          "other half"};
    if (g->values != NULL && value == 0) {
        snprintf(name, 64, "unknown");
    } else if (g->values != NULL) {
        uint64_t from = g->values->offsets[value];
        snprintf(name, 64, "%.*s", (int)(g->values->offsets[value + 1] - from),
                 g->values->bytes + from);
    } else if (strcmp(by, "popularity") == 0) {
        snprintf(name, 64, "%s", popular[value]);
    } else if (value == N_LENGTHS) {
        snprintf(name, 64, "%d and more events", lengths[value - 1]);
    } else {
        snprintf(name, 64, "%d to %d events", value > 0 ? lengths[value - 1] : 1,
                 lengths[value] - 1);
    }
}

/* The values with the most users, at most all but one of the groups; in the order of values. */
static status choose_values(const grouping *g, uint32_t *chosen, int *n) {
    uint64_t *count;
    TRY(MEM_NEW(&count, g->n_values));
    for (size_t i = 0; i < g->n_places; i++)
        count[g->place[i].value]++;
    for (*n = 0; *n < EVAL_GROUPS - 1; ++*n) {
        uint32_t best = 0;
        for (uint32_t v = 1; v < g->n_values; v++)
            if (count[v] > count[best]) best = v;
        if (count[best] == 0) break;
        count[best] = 0;
        int at = *n;
        for (; at > 0 && chosen[at - 1] > best; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = best;
    }
    mem_free(count);
    return OK;
}

/* The group of one value, or with `others` of all that are not chosen. */
static status add_group(eval_groups *out, const grouping *g, evaluator *e, const uint32_t *chosen,
                        int n, int k) {
    uint8_t *is_in;
    int64_t n_in = 0;
    TRY(MEM_NEW(&is_in, (size_t)g->n_users));
    for (size_t i = 0; i < g->n_places; i++)
        for (int c = k < n ? k : 0; c < n && c <= k; c++)
            is_in[g->place[i].user] |= g->place[i].value == chosen[c];
    for (int64_t i = 0; i < g->n_users; i++) {
        is_in[i] ^= k == n;
        n_in += is_in[i];
    }
    status st = OK;
    if (n_in > 0) {
        if (k < n)
            name_group(g, out->by, chosen[k], out->name[out->n]);
        else
            snprintf(out->name[out->n], sizeof out->name[out->n], "all others");
        st = evaluator_group(e, is_in, &out->result[out->n++]);
    }
    mem_free(is_in);
    return st;
}

status eval_groups_make(eval_groups *out, const char *by, evaluator *e, const split *s,
                        split_part part, bool is_retrieval) {
    grouping g = {.split = s, .part = part};
    uint32_t chosen[EVAL_GROUPS];
    int n = 0;
    *out = (eval_groups){.by = by};
    g.users = evaluator_users(e, &g.n_users);
    status st = place_users(&g, by, is_retrieval);
    if (st == OK) st = choose_values(&g, chosen, &n);
    for (int k = 0; k <= n && st == OK; k++)
        st = add_group(out, &g, e, chosen, n, k);
    MEM_FREE(g.place, g.n_trained);
    return st;
}

void eval_groups_write(const eval_groups *g, json_writer *w) {
    json_key_string(w, "by", g->by);
    json_key_array(w, "groups");
    for (int i = 0; i < g->n; i++) {
        const eval_result *r = &g->result[i];
        json_object_open(w);
        JSON_FIELDS(w, FIELD("name", (const char *)g->name[i]), FIELD("users", r->n_users));
        eval_write_metrics(r, w);
        json_object_close(w);
    }
    json_array_close(w);
}

static void print_baselines(const position_counts *baselines, const char *name) {
    metric m;
    if (metric_parse(&m, name, TASK_RETRIEVAL) != OK) return;
    for (int i = 0; i < N_BASELINES; i++) {
        double value = position_counts_metric(&baselines[i], &m);
        printf(" %14s", isnan(value) ? "-" : show_printf("%.4f", value));
    }
}

void eval_print_metrics(const eval_result *r, const char *what, const position_counts *baselines) {
    show_style style = show_stdout_style();
    int width = baselines != NULL ? 18 : 0;
    bool has_hidden = false;
    printf("%s  %-14s %8s  %-*s", style.bold, "", what, width, "95 % over users");
    for (int i = 0; baselines != NULL && i < N_BASELINES; i++)
        printf(" %14s", baseline_names[i]);
    printf("%s\n", style.plain);
    for (int k = 0; k < r->n; k++) {
        const eval_metric *m = &r->item[k];
        has_hidden |= eval_is_beyond(r, m->name);
        /* A class that no event has has no AUC: nothing to show. */
        if (isnan(m->value) || eval_is_beyond(r, m->name)) continue;
        printf("  %-14s %8.4f%-*s", m->name, m->value, width + 2 * (width > 0),
               isfinite(m->low) ? show_printf("  [%.4f, %.4f]", m->low, m->high) : "");
        if (baselines != NULL) print_baselines(baselines, m->name);
        printf("\n");
    }
    if (has_hidden)
        printf("  Not shown: metrics at %d, the items ranked, and above\n", r->n_items_ranked);
}

status eval_print_protocol(const protocol *p) {
    show_style style = show_stdout_style();
    buf lines = {0};
    status st = protocol_describe(p, &lines);
    if (st == OK) printf("%s%s%s", style.dim, buf_str(&lines), style.plain);
    buf_fini(&lines);
    return st;
}

/* The first metrics that have an interval, as many as fit. */
void eval_groups_print(const eval_groups *g, const eval_result *all) {
    enum { SHOWN = 3, WIDTH = 26 };
    show_style style = show_stdout_style();
    int shown[SHOWN], n = 0;
    for (int m = 0; g->n > 0 && m < g->result[0].n && n < SHOWN; m++)
        if (isfinite(g->result[0].item[m].low) && !eval_is_beyond(all, g->result[0].item[m].name))
            shown[n++] = m;
    printf("\n%s  %-22.22s %9s", style.bold, g->by, "users");
    for (int k = 0; k < n; k++)
        printf("  %-*s", WIDTH, g->result[0].item[shown[k]].name);
    printf("%s\n", style.plain);
    for (int i = 0; i < g->n; i++) {
        const char *name = show_text(g->name[i], strlen(g->name[i]), 22);
        printf("  %s%*s %9s", name, 22 - show_columns(name), "",
               show_count((uint64_t)g->result[i].n_users));
        for (int k = 0; k < n; k++) {
            const eval_metric *x = &g->result[i].item[shown[k]];
            printf("  %-*s", WIDTH, show_printf("%.4f [%.4f, %.4f]", x->value, x->low, x->high));
        }
        printf("\n");
    }
}

status eval_write_users(const char *path, const evaluator *e, const split *s, split_part part,
                        bool is_retrieval) {
    grouping g = {.split = s, .part = part};
    buf text = {0}, name = {0};
    out_file *f;
    g.users = evaluator_users(e, &g.n_users);
    TRY(out_file_create(&f, path));
    status st = buf_printf(&text, "user,events,%s\n", is_retrieval ? "position" : "scored");
    for (int64_t i = 0; i < g.n_users && st == OK; i++) {
        uint32_t target;
        uint64_t user = g.users[i].user, n = history_of(&g, user, &target);
        buf_clear(&name);
        st = seq_user_name(s->data, user, &name);
        if (st == OK) st = csv_put_field(&text, buf_str(&name), name.n_bytes);
        if (st == OK && is_retrieval && g.users[i].position == POSITION_MISS)
            st = buf_printf(&text, ",%" PRIu64 ",\n", n);
        else if (st == OK)
            st = buf_printf(&text, ",%" PRIu64 ",%" PRId64 "\n", n, g.users[i].position);
        if (st == OK && (text.n_bytes > 1 << 16 || i + 1 == g.n_users)) {
            st = out_file_write(f, buf_str(&text), text.n_bytes);
            buf_clear(&text);
        }
    }
    buf_fini(&text);
    buf_fini(&name);
    return out_file_end(f, st);
}
