/* Content of items: the cells of a side file as categories, lists and numbers, and vectors. */
#include "data/build/builder_int.h"

enum { MAX_VALUES = 65536, MAX_BUCKETS = 16, FREE_TEXTS = 100 };
static const char list_separator[] = {CONTENT_SEPARATOR, '\0'};

static void trim(const char **text, size_t *n) {
    for (; *n > 0 && **text == ' '; --*n)
        ++*text;
    while (*n > 0 && (*text)[*n - 1] == ' ')
        --*n;
}

/* Cuts the points out of 1.234.567,50; false where they are not before groups of three digits, and
 * the last of them before a comma. */
static bool drop_thousands(char *text) {
    char *from = text + strspn(text, "+-"), *to;
    size_t n = strspn(from, "0123456789");
    if (n < 1 || n > 3) return false;
    for (to = from += n; *from == '.'; from += n, to += 3) {
        n = strspn(++from, "0123456789");
        if (n != 3) return false;
        memmove(to, from, 3);
    }
    memmove(to, from, strlen(from) + 1);
    return *to == ',';
}

/* NaN for the usual words for a missing number.  `point` is '.' or a decimal comma. */
static bool read_number(const char *text, size_t n, char point, double *out) {
    char copy[64], *end, *comma;
    snprintf(copy, sizeof copy, "%.*s", n < sizeof copy ? (int)n : 0, text);
    *out = NAN;
    if (point == ',' && strchr(copy, '.') != NULL) {
        size_t before = strlen(copy);
        if (!drop_thousands(copy)) return false;
        n -= before - strlen(copy);
    }
    if (point == ',' && (comma = strchr(copy, ',')) != NULL) *comma = '.';
    if (strcasecmp(copy, "na") == 0 || strcasecmp(copy, "n/a") == 0 ||
        strcasecmp(copy, "nan") == 0 || strcasecmp(copy, "null") == 0)
        return true;
    return n > 0 && strspn(copy, "+-.0123456789eE") == n &&
           text_read_double(copy, &end, out) == OK && *end == '\0' && isfinite(*out);
}

status feature_input_add(feature_input *f, uint32_t of, const char *cell, size_t n) {
    TRY(MEM_RESERVE(&f->pair, &f->capacity, f->n_pairs + 1));
    TRY(dictionary_text(&f->cells, cell, n, &f->pair[f->n_pairs].value));
    f->pair[f->n_pairs++].of = of;
    return OK;
}

void feature_input_fini(feature_input *f) {
    dictionary_fini(&f->cells);
    mem_free(f->pair);
}

int builder_find_feature(const builder *b, bool is_content, const char *name) {
    int f = is_content ? b->n_content : b->n_features;
    while (--f >= 0 && strcmp((is_content ? b->content : b->features)[f].spec.name, name) != 0)
        continue;
    return f;
}

status builder_add_content(builder *b, const content_spec *spec, int *out_feature) {
    if (builder_find_feature(b, true, spec->name) >= 0)
        return fail(ERR_FORMAT,
                    "two item features are called '%s' (other characters than letters and digits "
                    "become '_'); rename one of their columns, or choose with --item-features",
                    spec->name);
    if (b->n_content == ITEM_CONTENT_MAX)
        return fail(ERR_FORMAT, "more than %d item features; choose some", ITEM_CONTENT_MAX);
    *out_feature = b->n_content++;
    b->content[*out_feature] = (feature_input){.spec = *spec, .cells.is_text = true};
    return OK;
}

status builder_put_content(builder *b, int feature, const char *cell, size_t n) {
    feature_input *f = &b->content[feature];
    double number;
    trim(&cell, &n);
    if (n == 0) return OK;
    if (f->spec.kind != CONTENT_NUMBER || read_number(cell, n, f->spec.separator[0], &number))
        return feature_input_add(f, b->last_item, cell, n);
    bool has_comma = read_number(cell, n, ',', &number);
    return fail(ERR_FORMAT, "%s: '%.*s' is not a number%s%s%s", f->spec.name, n < 40 ? (int)n : 40,
                cell, has_comma ? "; for decimal commas give " : "", has_comma ? f->spec.name : "",
                has_comma ? ":number:comma" : "");
}

status builder_begin_vectors(builder *b, uint64_t n, int32_t dim) {
    b->vector_dim = dim;
    return MEM_NEW_RAW(&b->vectors, n * (uint64_t)dim);
}

status builder_add_vector(builder *b, const char *id, size_t id_bytes, float **out) {
    uint32_t i, n_before = b->vector_items.n;
    TRY(dictionary_parse(&b->vector_items, id, id_bytes, &i));
    if (i < n_before)
        return fail(ERR_FORMAT, "item '%.*s' has two vectors", id_bytes < 40 ? (int)id_bytes : 40,
                    id);
    *out = b->vectors + (size_t)i * (size_t)b->vector_dim;
    return OK;
}

/* Without a kind: numbers, unless the name says that they are ids; lists where a tenth of the cells
 * has the same separator, or one was a list in the source; else categories. */
static void choose_kind(content_output *o, const feature_input *in) {
    static const char *const separators[] = {list_separator, "|", ";"};
    uint32_t n_with[3] = {0}, n_numbers = 0, n_commas = 0, n_cells = in->cells.n;
    size_t n = strlen(in->spec.name);
    bool is_id = n >= 2 && strcasecmp(in->spec.name + n - 2, "id") == 0;
    for (uint32_t i = 0; i < n_cells; i++) {
        double x;
        const char *cell = text_map_get(&in->cells.texts, i, &n);
        n_numbers += read_number(cell, n, '.', &x);
        n_commas += memchr(cell, ',', n) != NULL && read_number(cell, n, ',', &x);
        for (int s = 0; s < 3; s++)
            n_with[s] += memchr(cell, separators[s][0], n) != NULL;
    }
    int best = n_with[0] > 0 ? 0 : n_with[1] >= n_with[2] ? 1 : 2;
    bool is_list = n_with[best] > 0 && (best == 0 || n_with[best] * 10ull >= n_cells);
    o->separator = in->spec.separator[0] != '\0' ? in->spec.separator : separators[best];
    o->report.kind = in->spec.kind != CONTENT_AUTO    ? in->spec.kind
                     : n_numbers == n_cells && !is_id ? CONTENT_NUMBER
                     : is_list                        ? CONTENT_LIST
                                                      : CONTENT_CATEGORY;
    o->report.has_commas = in->spec.kind == CONTENT_AUTO && o->report.kind == CONTENT_CATEGORY &&
                           n_commas > 0 && n_numbers + n_commas == n_cells;
}

static status add_pair(content_output *o, uint64_t item, uint32_t value) {
    TRY(MEM_RESERVE(&o->pair, &o->capacity, o->n_pairs + 1));
    o->pair[o->n_pairs++] = (feature_pair){(uint32_t)item, value};
    o->offsets[item + 1]++;
    return OK;
}

static status add_value(content_output *o, uint32_t item, const char *text, size_t n) {
    uint32_t value;
    trim(&text, &n);
    if (n == 0) return OK;
    TRY(dictionary_text(&o->names, text, n, &value));
    o->names.count[value]++;
    return add_pair(o, item, value);
}

/* Of several rows of an item the first value counts, and of lists all do. */
static status add_cell(content_output *o, uint32_t item, const char *cell, size_t n) {
    const char *by = memchr(cell, CONTENT_SEPARATOR, n) != NULL ? list_separator : o->separator;
    const char *end = cell + n, *next;
    if (o->number != NULL) {
        if (isnan(o->number[item])) (void)read_number(cell, n, o->separator[0], &o->number[item]);
        return OK;
    }
    if (o->report.kind == CONTENT_CATEGORY)
        return o->offsets[item + 1] == 0 ? add_value(o, item, cell, n) : OK;
    for (; (next = memmem(cell, (size_t)(end - cell), by, strlen(by))); cell = next + strlen(by))
        TRY(add_value(o, item, cell, (size_t)(next - cell)));
    return add_value(o, item, cell, (size_t)(end - cell));
}

static status add_cells(content_output *o, const feature_input *in, const write_job *job) {
    const uint32_t *rank = job->items.rank[job->b->n_sinks]; /* of the catalogue */
    uint64_t n_items = job->stats->n_items;
    TRY(MEM_NEW(&o->offsets, n_items + 2));
    if (o->report.kind == CONTENT_NUMBER) TRY(MEM_NEW(&o->number, n_items + 1));
    for (uint64_t i = 0; o->number != NULL && i <= n_items; i++)
        o->number[i] = NAN;
    for (size_t i = 0; i < in->n_pairs; i++) {
        size_t n;
        uint32_t item = job->items.number[rank[in->pair[i].of]];
        const char *cell = text_map_get(&in->cells.texts, in->pair[i].value, &n);
        if (item != DROPPED) TRY(add_cell(o, item, cell, n));
    }
    return OK;
}

/* Buckets with about as many items each, named by the least number of theirs. */
static status cut_numbers(content_output *o, double *sorted, uint64_t n_items) {
    double low[MAX_BUCKETS];
    uint64_t n = 0;
    uint32_t n_low = 0;
    for (uint64_t i = 1; i <= n_items; i++)
        if (!isnan(o->number[i])) sorted[n++] = o->number[i];
    sort_doubles(sorted, n);
    for (uint64_t k = 0; k < MAX_BUCKETS && n > 0; k++) {
        char name[40];
        double x = sorted[n * k / MAX_BUCKETS];
        if (n_low > 0 && x <= low[n_low - 1]) continue;
        low[n_low++] = x;
        snprintf(name, sizeof name, "%.10g", x);
        TRY(text_output_add(&o->values, name, (size_t)text_restore_point(name)));
    }
    for (uint64_t i = 1; i <= n_items; i++) {
        uint32_t k = n_low;
        while (k > 0 && !(o->number[i] >= low[k - 1]))
            k--;
        if (k > 0) TRY(add_pair(o, i, k));
    }
    return OK;
}

/* Final numbers of values; 0 for rare ones. */
static status number_values(content_output *o, uint64_t n_items) {
    double *sorted = NULL;
    uint32_t *order = NULL;
    status st = text_output_init(&o->values, (uint64_t)o->names.n + MAX_BUCKETS + 1);
    if (st == OK && o->number != NULL) {
        st = MEM_NEW_RAW(&sorted, n_items);
        if (st == OK) st = text_output_add(&o->values, "", 0);
        if (st == OK) st = cut_numbers(o, sorted, n_items);
    } else if (st == OK) {
        st = MEM_NEW(&order, o->names.n);
        if (st == OK) st = order_values(&o->names, MAX_VALUES, &o->values, order);
        for (size_t i = 0; st == OK && i < o->n_pairs; i++)
            o->pair[i].value = order[o->pair[i].value];
    }
    MEM_FREE(sorted, order);
    return st;
}

static int compare_values(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The values by item, ascending and none twice. */
static status place_values(content_output *o, uint64_t n_items) {
    uint64_t *offsets = o->offsets, n = 0;
    TRY(MEM_NEW_RAW(&o->value, o->n_pairs));
    for (uint64_t i = 0; i <= n_items; i++)
        offsets[i + 1] += offsets[i];
    for (size_t i = o->n_pairs; i-- > 0;) /* makes the end of each item its begin */
        o->value[--offsets[o->pair[i].of + 1]] = o->pair[i].value;
    for (uint64_t i = 0; i <= n_items; i++) {
        uint64_t begin = offsets[i + 1], end = i < n_items ? offsets[i + 2] : o->n_pairs;
        uint32_t last = 0;
        offsets[i] = n;
        if (end - begin > 1) qsort(o->value + begin, end - begin, sizeof last, compare_values);
        for (uint64_t k = begin; k < end; last = o->value[k++])
            if (o->value[k] != last) o->value[n++] = o->value[k];
        o->report.n_items += n > offsets[i];
    }
    offsets[n_items + 1] = n;
    return OK;
}

/* Free text, of which hardly any value comes twice, says nothing about other items. */
static status fill_content(content_output *o, const feature_input *in, const write_job *job) {
    content_report *r = &o->report;
    memcpy(r->name, in->spec.name, sizeof r->name);
    o->names.is_text = true;
    choose_kind(o, in);
    TRY(add_cells(o, in, job));
    r->n_values = o->names.n;
    r->is_left_out =
        in->spec.is_optional && r->n_values > FREE_TEXTS && r->n_values * 2 > o->n_pairs;
    if (r->is_left_out) return OK;
    TRY(number_values(o, job->stats->n_items));
    TRY(place_values(o, job->stats->n_items));
    r->n_rare = o->number != NULL ? 0 : r->n_values - (o->values.n - 1);
    r->n_values = o->values.n - 1;
    r->is_left_out = r->n_values == 0;
    return OK;
}

status content_output_fill(content_output *out, write_job *job) {
    for (int f = 0; f < job->b->n_content; f++) {
        TRY(fill_content(&out[f], &job->b->content[f], job));
        job->stats->content[job->stats->n_content++] = out[f].report;
    }
    return OK;
}

status content_output_declare(const content_output *o, column_writer *w, uint64_t n_items) {
    item_content c = {.offsets = o->offsets,
                      .value = o->value,
                      .values = {o->values.offsets, buf_str(&o->values.bytes), o->values.n},
                      .number = o->number};
    memcpy(c.name, o->report.name, sizeof c.name);
    return o->report.is_left_out ? OK : seq_content_add(w, &c, n_items);
}

void content_output_fini(content_output *o) {
    dictionary_fini(&o->names);
    MEM_FREE(o->pair, o->offsets, o->value, o->number);
    text_output_fini(&o->values);
}

status vectors_write(write_job *job, column_writer *w, int index) {
    const builder *b = job->b;
    const uint32_t *rank = job->items.rank[b->n_sinks + 1];
    uint64_t dim = (uint64_t)b->vector_dim;
    for (uint32_t i = 0; i < b->vector_items.n; i++) {
        uint32_t item = job->items.number[rank[i]];
        if (item == DROPPED) continue;
        TRY(column_writer_put(w, index, item * dim, b->vectors + i * dim, dim));
        job->stats->n_vector_items++;
    }
    return OK;
}
