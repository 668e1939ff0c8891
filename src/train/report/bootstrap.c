#include "train/report/bootstrap.h"

#include "format/json.h"

int bootstrap_weight(uint64_t user, int replicate) {
    /* 2^32 times the probability of at most k */
    static const uint32_t up_to[] = {1580030169u, 3160060337u, 3950075422u, 4213413783u,
                                     4279248374u, 4292415292u, 4294609778u, 4294923276u};
    uint32_t x = (uint32_t)(hash64_mix(user + hash64_mix((uint64_t)replicate + 1)) >> 32);
    int k = 0;
    while (k < 8 && x >= up_to[k])
        k++;
    return k;
}

bootstrap_bounds bootstrap_interval(double *value, int n) {
    int n_numbers = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(value[i])) value[n_numbers++] = value[i];
    if (n_numbers * 2 < n || n_numbers == 0) return (bootstrap_bounds){NAN, NAN};
    sort_doubles(value, (size_t)n_numbers);
    return (bootstrap_bounds){value[(int)(.025 * n_numbers)], value[(int)(.975 * n_numbers)]};
}

void replicates_fini(replicates *r) {
    MEM_FREE(r->metric, r->value);
    *r = (replicates){0};
}

status replicates_init(replicates *r, int n_metrics, int64_t cost) {
    const int64_t most = (int64_t)1 << 31; /* in all: some seconds */
    int64_t n = cost > 0 ? most / cost : BOOTSTRAP_MAX;
    n = n < BOOTSTRAP_MIN ? BOOTSTRAP_MIN : n > BOOTSTRAP_MAX ? BOOTSTRAP_MAX : n;
    *r = (replicates){.n = (int)n, .n_metrics = n_metrics};
    TRY(MEM_NEW(&r->metric, (size_t)n_metrics));
    return MEM_NEW(&r->value, (size_t)(n * n_metrics));
}

bootstrap_bounds replicates_bounds(const replicates *r, int i) {
    double sorted[BOOTSTRAP_MAX];
    memcpy(sorted, r->value + i * r->n, (size_t)r->n * sizeof *sorted);
    return bootstrap_interval(sorted, r->n);
}

void replicates_set_users(replicates *r, const user_position *users, int64_t n, int64_t n_unknown,
                          uint64_t data) {
    uint64_t sum = hash64_mix((uint64_t)n_unknown);
    for (int64_t i = 0; i < n; i++)
        sum += hash64_mix(users[i].user + 1);
    r->users = hash64_mix(sum ^ data);
}

/* Adds a user to the sums of a replicate. */
typedef struct replicate_sums {
    position_counts counts;
    int64_t list[LIST_MAX], n_lists[LIST_MAX];
} replicate_sums;

static void add_user(replicate_sums *s, const user_position *u, int weight) {
    s->counts.count[u->position] += (uint64_t)weight;
    for (int i = 0; i < LIST_MAX; i++) {
        if (u->list[i] == LIST_NONE) continue;
        s->list[i] += (int64_t)weight * u->list[i];
        s->n_lists[i] += weight;
    }
}

status replicates_of_positions(replicates *r, const user_position *users, int64_t n,
                               int64_t n_unknown, const metric_list *metrics) {
    replicate_sums *s;
    TRY(MEM_NEW(&s, 1));
    for (int k = 0; k < r->n; k++) {
        memset(s, 0, sizeof *s);
        for (int64_t i = 0; i < n; i++)
            add_user(s, &users[i], bootstrap_weight(users[i].user, k));
        for (int64_t i = 0; i < n_unknown; i++)
            s->counts.count[POSITION_MISS] += (uint64_t)bootstrap_weight(~(uint64_t)i, k);
        for (int m = 0, own = 0; m < metrics->n; m++) {
            double *value = &r->value[m * r->n + k];
            *value = position_counts_metric(&s->counts, &metrics->item[m]);
            if (!metric_is_of_list(metrics->item[m].kind)) continue;
            *value = s->n_lists[own] > 0
                         ? (double)s->list[own] / LIST_UNIT / (double)s->n_lists[own]
                         : NAN;
            own++;
        }
    }
    mem_free(s);
    return OK;
}

const double *replicates_of(const replicates *r, const char *name, int *at) {
    for (*at = 0; *at < r->n_metrics; ++*at)
        if (strcmp(r->metric[*at].name, name) == 0) return r->value + *at * r->n;
    return NULL;
}

/* Figures are written as whole numbers of this: exact enough, and a third of the bytes. */
static const double UNIT = 1e-7;
enum { FILE_MAX_BYTES = 16 << 20, MAX_METRICS = 256, ARENA_BYTES = 64 << 10, BASE = 16 };

static status describe(const replicates *r, const char *part, buf *out) {
    json_writer w;
    char users[24];
    snprintf(users, sizeof users, "%016" PRIx64, r->users);
    json_begin_object(&w, out, 0);
    JSON_FIELDS(&w, FIELD("part", part), FIELD("users", users), FIELD("unit", UNIT));
    json_key_object(&w, "metrics");
    for (int i = 0; i < r->n_metrics; i++) {
        if (!isfinite(r->metric[i].figure)) continue;
        json_key_object(&w, r->metric[i].name);
        json_key_double(&w, "figure", r->metric[i].figure);
        json_key_array(&w, "replicates");
        for (int k = 0; k < r->n; k++) {
            double x = r->value[i * r->n + k];
            if (isfinite(x) && fabs(x) < 1e9)
                json_int(&w, llrint(x / UNIT));
            else
                json_null(&w);
        }
        json_array_close(&w);
        json_object_close(&w);
    }
    json_object_close(&w);
    return json_finish_object(&w);
}

status replicates_write(const replicates *r, const char *run, const char *part) {
    buf text = {0};
    status st = describe(r, part, &text);
    if (st == OK) st = buf_char(&text, '\n');
    return file_save(run, "intervals.json", &text, st);
}

static status parse_metric(replicates *r, const json_value *v, double unit) {
    const json_value *list = json_member(v, "replicates");
    replicated_metric *m = &r->metric[r->n_metrics];
    int n = 0;
    if (list == NULL || list->type != JSON_ARRAY || strlen(v->key) >= sizeof m->name)
        return fail(ERR_FORMAT, "no list of replicates");
    for (const json_value *x = list->first; x != NULL; x = x->next)
        n++;
    if (r->n == 0) { /* all metrics have as many */
        if (n < 1 || n > BOOTSTRAP_MAX) return fail(ERR_FORMAT, "%d replicates", n);
        r->n = n;
        TRY(MEM_NEW(&r->value, (size_t)(MAX_METRICS * n)));
    }
    if (n != r->n) return fail(ERR_FORMAT, "%d replicates where others have %d", n, r->n);
    TRY(json_member_double(v, "figure", &m->figure));
    snprintf(m->name, sizeof m->name, "%s", v->key);
    double *to = r->value + r->n_metrics++ * n;
    for (const json_value *x = list->first; x != NULL; x = x->next)
        *to++ = x->type == JSON_NUMBER ? x->number * unit : NAN;
    return OK;
}

static status parse(replicates *r, const json_value *root) {
    const char *users;
    double unit;
    const json_value *metrics = json_member(root, "metrics");
    TRY(json_member_string(root, "users", &users));
    TRY(json_member_double(root, "unit", &unit));
    r->users = strtoull(users, NULL, BASE);
    TRY(MEM_NEW(&r->metric, MAX_METRICS));
    if (metrics == NULL || metrics->type != JSON_OBJECT) return fail(ERR_FORMAT, "no metrics");
    for (const json_value *v = metrics->first; v != NULL && r->n_metrics < MAX_METRICS; v = v->next)
        TRY(parse_metric(r, v, unit));
    return OK;
}

status replicates_read(replicates *r, const char *run) {
    char path[4096];
    arena memory;
    const json_value *root;
    *r = (replicates){0};
    TRY(path_join(path, sizeof path, run, "intervals.json"));
    if (!file_exists(path)) return OK;
    arena_init(&memory, ARENA_BYTES);
    status st = json_read_file(&memory, path, FILE_MAX_BYTES, &root);
    if (st == OK) {
        st = parse(r, root);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&memory);
    return st;
}
