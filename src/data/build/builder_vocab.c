#include "data/build/builder_int.h"

status text_output_init(text_output *t, uint64_t capacity) {
    *t = (text_output){0};
    return MEM_NEW(&t->offsets, capacity + 1);
}

status text_output_add(text_output *t, const char *text, size_t n) {
    TRY(buf_append(&t->bytes, text, n));
    t->offsets[++t->n] = t->bytes.n_bytes;
    return OK;
}

void text_output_fini(text_output *t) {
    buf_fini(&t->bytes);
    mem_free(t->offsets);
}

status text_output_declare(const text_output *t, column_writer *w, const char *name) {
    return column_writer_add_texts(w, name, t->offsets, t->n, buf_str(&t->bytes));
}

/* Ids of one kind as a column: integers or strings.  Items have an empty entry 0 first. */
typedef struct id_output {
    bool is_text;
    int64_t *number;
    uint64_t n;
    text_output text;
} id_output;

static status id_output_fill(id_output *o, const id_space *s, bool is_text, bool has_zero) {
    *o = (id_output){.is_text = is_text};
    uint64_t capacity = (uint64_t)s->n_kept + 1;
    TRY(is_text ? text_output_init(&o->text, capacity) : MEM_NEW(&o->number, capacity));
    if (has_zero) {
        if (is_text) TRY(text_output_add(&o->text, "", 0));
        o->n = 1;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const dictionary *d = s->parts[s->ids[i].part];
        if (s->number[i] == DROPPED) continue;
        if (is_text) {
            size_t n;
            const char *text = text_map_get(&d->texts, s->ids[i].index, &n);
            TRY(text_output_add(&o->text, text, n));
        } else {
            o->number[o->n] = dictionary_get_number(d, s->ids[i].index);
        }
        o->n++;
    }
    return OK;
}

static status id_output_declare(const id_output *o, column_writer *w, const char *text_name,
                                const char *number_name) {
    if (o->is_text) return text_output_declare(&o->text, w, text_name);
    return column_writer_add(w, number_name, COLUMN_I64, o->n, o->number);
}

static void id_output_fini(id_output *o) {
    mem_free(o->number);
    text_output_fini(&o->text);
}

/* Titles in the order of the final numbers. */
static status fill_titles(write_job *job, text_output *t) {
    builder *b = job->b;
    const id_space *items = &job->items;
    uint32_t *listed; /* by merged place: number in the catalogue + 1 */
    TRY(text_output_init(t, (uint64_t)items->n_kept + 1));
    TRY(MEM_NEW(&listed, items->n));
    for (uint32_t i = 0; i < b->catalogue.n; i++)
        listed[items->rank[b->n_sinks][i]] = i + 1;
    status st = text_output_add(t, "", 0);
    for (uint32_t i = 0; st == OK && i < items->n; i++) {
        if (items->number[i] == DROPPED) continue;
        uint64_t begin = 0, end = 0;
        if (listed[i] != 0)
            begin = b->title_begin[listed[i] - 1], end = b->title_end[listed[i] - 1];
        st = text_output_add(t, buf_str(&b->titles) + begin, (size_t)(end - begin));
    }
    mem_free(listed);
    return st;
}

/* One contextual feature: values renumbered in order, and the value of every user with events. */
typedef struct feature_output {
    text_output values;
    uint32_t *value; /* (n_users) */
} feature_output;

/* Values that are all integers are ordered as integers: 1, 18, 25 rather than 1, 18, 2. */
typedef struct value_entry {
    const char *text;
    size_t n;
    int64_t number;
    uint32_t index;
    bool is_number;
} value_entry;

static int compare_values(const void *a, const void *b) {
    const value_entry *x = a, *y = b;
    if (x->is_number && x->number != y->number) return x->number < y->number ? -1 : 1;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

status order_values(const dictionary *values, uint32_t most, text_output *out, uint32_t *order) {
    value_entry *entries;
    bool are_numbers = true;
    uint32_t least = 0; /* uses of a value that is kept */
    for (uint64_t n = values->n; n > most;) {
        least++;
        n = 0;
        for (uint32_t i = 0; i < values->n; i++)
            n += values->count[i] >= least;
    }
    TRY(MEM_NEW(&entries, values->n));
    for (uint32_t i = 0; i < values->n; i++) {
        value_entry *e = &entries[i];
        e->text = text_map_get(&values->texts, i, &e->n);
        e->index = i;
        are_numbers &= number_read(e->text, e->n, &e->number) == NUMBER_WHOLE;
    }
    for (uint32_t i = 0; i < values->n; i++)
        entries[i].is_number = are_numbers;
    if (values->n > 0) qsort(entries, values->n, sizeof *entries, compare_values);
    status st = text_output_add(out, "", 0);
    for (uint32_t i = 0; st == OK && i < values->n; i++) {
        if (values->count[entries[i].index] < least) continue;
        order[entries[i].index] = (uint32_t)out->n;
        st = text_output_add(out, entries[i].text, entries[i].n);
    }
    mem_free(entries);
    return st;
}

static status fill_feature(const write_job *job, const feature_input *f, feature_output *out) {
    const id_space *users = &job->users;
    const uint32_t *rank = users->rank[job->b->n_sinks]; /* of the users of the context */
    uint32_t *order;
    *out = (feature_output){0};
    TRY(text_output_init(&out->values, (uint64_t)f->cells.n + 1));
    TRY(MEM_NEW(&out->value, job->stats->n_users));
    TRY(MEM_NEW(&order, f->cells.n));
    status st = order_values(&f->cells, UINT32_MAX, &out->values, order);
    for (size_t i = 0; st == OK && i < f->n_pairs; i++) {
        uint32_t user = users->number[rank[f->pair[i].of]];
        if (user != DROPPED && out->value[user] == 0) out->value[user] = order[f->pair[i].value];
    }
    mem_free(order);
    return st;
}

/* The feature user_id: user u has value u + 1, which is named by the user's id. */
static status fill_user_feature(const id_output *users, uint64_t n_users, feature_output *out) {
    *out = (feature_output){0};
    TRY(text_output_init(&out->values, n_users + 1));
    TRY(MEM_NEW(&out->value, n_users));
    TRY(text_output_add(&out->values, "", 0));
    for (uint64_t u = 0; u < n_users; u++) {
        char digits[24];
        const text_output *ids = &users->text;
        const char *text = digits;
        size_t n;
        if (users->is_text) {
            text = buf_str(&ids->bytes) + ids->offsets[u];
            n = (size_t)(ids->offsets[u + 1] - ids->offsets[u]);
        } else {
            n = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)users->number[u]);
        }
        TRY(text_output_add(&out->values, text, n));
        out->value[u] = (uint32_t)u + 1;
    }
    return OK;
}

struct vocab_output {
    id_output users, items;
    text_output titles;
    bool has_titles;
    feature_output features[CONTEXT_MAX];
    const feature_input *inputs;
    int n_features;
    content_output content[ITEM_CONTENT_MAX];
    int n_content;
    uint64_t n_users, n_items;
};

static status fill_vocab(vocab_output *v, write_job *job) {
    const builder *b = job->b;
    v->n_users = job->stats->n_users;
    v->n_items = job->stats->n_items;
    v->n_content = b->n_content;
    v->inputs = b->features;
    v->has_titles = b->titles.n_bytes > 0;
    TRY(id_output_fill(&v->users, &job->users, b->options.has_text_users, false));
    TRY(id_output_fill(&v->items, &job->items, b->options.has_text_items, true));
    if (v->has_titles) TRY(fill_titles(job, &v->titles));
    if (b->options.has_user_feature) {
        TRY(fill_user_feature(&v->users, v->n_users, &v->features[0]));
        v->n_features = 1;
    }
    for (; v->n_features < b->n_features; v->n_features++)
        TRY(fill_feature(job, &b->features[v->n_features], &v->features[v->n_features]));
    return content_output_fill(v->content, job);
}

status vocab_output_create(vocab_output **out, write_job *job) {
    vocab_output *v;
    *out = NULL;
    TRY(MEM_NEW(&v, 1));
    status st = fill_vocab(v, job);
    return CREATED(st, out, v, vocab_output_destroy);
}

status vocab_output_declare(const vocab_output *v, column_writer *w) {
    TRY(id_output_declare(&v->users, w, "user", "user_id"));
    TRY(id_output_declare(&v->items, w, "item", "item_id"));
    if (v->has_titles) TRY(text_output_declare(&v->titles, w, "title"));
    for (int f = 0; f < v->n_features; f++) {
        char name[COLUMN_NAME_BYTES + 8];
        snprintf(name, sizeof name, "ctx.%s", v->inputs[f].spec.name);
        TRY(column_writer_add(w, name, COLUMN_U32, v->n_users, v->features[f].value));
        TRY(text_output_declare(&v->features[f].values, w, name));
    }
    for (int f = 0; f < v->n_content; f++)
        TRY(content_output_declare(&v->content[f], w, v->n_items));
    return OK;
}

void vocab_output_destroy(vocab_output *v) {
    if (v == NULL) return;
    id_output_fini(&v->users);
    id_output_fini(&v->items);
    text_output_fini(&v->titles);
    /* A feature that failed half-way is not counted, but may hold memory. */
    for (int f = 0; f <= v->n_features && f < CONTEXT_MAX; f++) {
        text_output_fini(&v->features[f].values);
        mem_free(v->features[f].value);
    }
    for (int f = 0; f < ITEM_CONTENT_MAX; f++)
        content_output_fini(&v->content[f]);
    mem_free(v);
}
