#include "config/metric_list.h"

#define RETRIEVAL(kind, name, shown, max_k, sense, meaning)                                        \
    [kind] = {name, shown, TASK_RETRIEVAL, max_k, sense, meaning},
#define RANKING(kind, name, shown, max_k, sense, meaning)                                          \
    [kind] = {name, shown, TASK_RANKING, max_k, sense, meaning},

const metric_entry metric_table[METRIC_KINDS] = {METRICS_OF_RETRIEVAL(RETRIEVAL)
                                                     METRICS_OF_RANKING(RANKING)};

static status unknown_metric(const char *text, config_task task) {
    return task == TASK_RETRIEVAL
               ? fail(ERR_USAGE,
                      "'%.60s' is none of " METRIC_RETRIEVAL_WORDS
                      "(k up to %d, of COVERAGE, NOVELTY and DIVERSITY up to %d)",
                      text, METRIC_MAX_K, METRIC_MAX_COVERAGE_K)
               : fail(ERR_USAGE,
                      "'%.60s' is none of " METRIC_RANKING_WORDS "(the metrics of ranking)", text);
}

/* "@10" with k from 1 to max_k; -1: not such a text. */
static int32_t parse_k(const char *text, int32_t max_k) {
    int32_t k = 0;
    if (text[0] != '@') return -1;
    size_t n = strspn(text + 1, "0123456789");
    if (n == 0 || n > 4 || text[1] == '0' || text[1 + n] != '\0') return -1;
    for (size_t i = 1; i <= n; i++)
        k = 10 * k + (text[i] - '0');
    return k <= max_k ? k : -1;
}

status metric_parse(metric *out, const char *text, config_task task) {
    size_t n = strcspn(text, "@");
    for (int i = 0; i < METRIC_KINDS; i++) {
        const metric_entry *e = &metric_table[i];
        if (e->task != task || strlen(e->name) != n || strncasecmp(text, e->name, n) != 0) continue;
        int32_t k = e->max_k > 0 ? parse_k(text + n, e->max_k) : 0;
        if (k < 0 || (e->max_k == 0 && text[n] != '\0')) break;
        *out = (metric){(metric_kind)i, k};
        return OK;
    }
    return unknown_metric(text, task);
}

metric_sense metric_sense_of(const char *name) {
    size_t n = strcspn(name, "@:");
    for (int i = 0; i < METRIC_KINDS; i++)
        if (strlen(metric_table[i].name) == n && strncmp(metric_table[i].name, name, n) == 0)
            return metric_table[i].sense;
    return strcmp(name, "loss") == 0 ? METRIC_LESS : METRIC_MORE;
}

const char *metric_name(const metric *m, char text[METRIC_NAME_BYTES]) {
    if (m->k > 0)
        snprintf(text, METRIC_NAME_BYTES, "%s@%d", metric_table[m->kind].name, m->k);
    else
        snprintf(text, METRIC_NAME_BYTES, "%s", metric_table[m->kind].name);
    return text;
}

static status add_metric(metric_list *list, metric m) {
    for (int i = 0; i < list->n; i++)
        if (list->item[i].kind == m.kind && list->item[i].k == m.k) return OK;
    if (list->n == METRIC_MAX)
        return fail(ERR_USAGE, "more than %d metrics are asked for", METRIC_MAX);
    list->item[list->n++] = m;
    return OK;
}

status metric_list_parse(metric_list *out, const char *text, config_task task) {
    char word[METRIC_NAME_BYTES];
    *out = (metric_list){0};
    while (true) {
        metric m;
        size_t n = strcspn(text, ",");
        if (n >= sizeof word) return unknown_metric(text, task);
        memcpy(word, text, n);
        word[n] = '\0';
        TRY(metric_parse(&m, word, task));
        TRY(add_metric(out, m));
        if (text[n] == '\0') return OK;
        text += n + 1;
    }
}

static status research_list(metric_list *out) {
    static const int32_t at[] = {1, 10, 50, 100, 200, 500};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        TRY(add_metric(out, (metric){METRIC_HR, at[i]}));
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        TRY(add_metric(out, (metric){METRIC_NDCG, at[i]}));
    return add_metric(out, (metric){METRIC_MRR, 0});
}

status metric_list_of(metric_list *out, const config *c) {
    const config_texts *texts =
        c->task == TASK_RETRIEVAL ? &c->retrieval.metrics : &c->ranking.metrics;
    *out = (metric_list){0};
    if (c->family == FAMILY_META) return research_list(out);
    for (size_t i = 0; i < texts->n; i++) {
        metric m;
        TRY(metric_parse(&m, texts->item[i], c->task));
        TRY(add_metric(out, m));
    }
    return OK;
}

void metric_list_add_final(metric_list *list, config_task task) {
    static const metric of_lists[] = {
        {METRIC_COVERAGE, 10}, {METRIC_NOVELTY, 10}, {METRIC_DIVERSITY, 10}};
    static const metric of_rows[] = {{METRIC_GAUC, 0}, {METRIC_ECE, 0}};
    bool is_retrieval = task == TASK_RETRIEVAL;
    for (int i = 0; i < (is_retrieval ? 3 : 2); i++)
        (void)add_metric(list, is_retrieval ? of_lists[i] : of_rows[i]);
}

metric metric_list_main(const metric_list *list, config_task task) {
    const metric best =
        task == TASK_RETRIEVAL ? (metric){METRIC_NDCG, 10} : (metric){METRIC_AUC, 0};
    const metric *first = NULL;
    for (int i = 0; i < list->n; i++) {
        const metric *m = &list->item[i];
        if (m->kind == best.kind && m->k == best.k) return best;
        if (first == NULL && metric_table[m->kind].sense == METRIC_MORE) first = m;
    }
    return first != NULL ? *first : best;
}
