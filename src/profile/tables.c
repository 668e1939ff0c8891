#include "profile/tables.h"

#include "format/json.h"
#include "profile/utilization.h"

/* The values of nsys' summaries: a share, the sum, how many, and how they are spread. */
#define SUMMARY(count, name)                                                                       \
    {"Time (%)", COLUMN_PERCENT, 0}, {"Total Time (ns)", COLUMN_NS, 1}, {count, COLUMN_COUNT, 2},  \
        {"Avg (ns)", COLUMN_NS, 3}, {"Med (ns)", COLUMN_NS, 4}, {"Min (ns)", COLUMN_NS, 5},        \
        {"Max (ns)", COLUMN_NS, 6}, {"StdDev (ns)", COLUMN_NS, 7}, {                               \
        name, COLUMN_NAME, 0                                                                       \
    }

static const profile_column kernel_columns[] = {SUMMARY("Instances", "Name")};
static const profile_column call_columns[] = {SUMMARY("Num Calls", "Name")};
static const profile_column copy_columns[] = {SUMMARY("Count", "Operation")};
static const profile_column gpu_columns[] = {SUMMARY("Instances", "Operation")};
static const profile_column byte_columns[] = {
    {"Total (MB)", COLUMN_MB, 1},  {"Count", COLUMN_COUNT, 2},   {"Avg (MB)", COLUMN_MB, 3},
    {"Med (MB)", COLUMN_MB, 4},    {"Min (MB)", COLUMN_MB, 5},   {"Max (MB)", COLUMN_MB, 6},
    {"StdDev (MB)", COLUMN_MB, 7}, {"Operation", COLUMN_NAME, 0}};

/* Of all launches of a kernel. */
static const profile_column counter_columns[] = {{"Time (%)", COLUMN_PERCENT, 0},
                                                 {"Total Time (ns)", COLUMN_NS, 1},
                                                 {"Instances", COLUMN_COUNT, 2},
                                                 {"Avg (ns)", COLUMN_NS, 3},
                                                 {"Achieved Occupancy (%)", COLUMN_PERCENT, 4},
                                                 {"Tensor Cores (%)", COLUMN_PERCENT, 5},
                                                 {"DRAM (MB)", COLUMN_MB, 6},
                                                 {"DRAM (GB/s)", COLUMN_NUMBER, 7},
                                                 {"L2 (MB)", COLUMN_MB, 8},
                                                 {"Name", COLUMN_NAME, 0}};

/* The values of key_averages; the columns of a GPU are shown where there was one. */
enum {
    OP_SELF_SHARE,
    OP_SELF,
    OP_TOTAL_SHARE,
    OP_TOTAL,
    OP_AVERAGE,
    OP_GPU_SELF,
    OP_GPU_SHARE,
    OP_GPU_TOTAL,
    OP_GPU_AVERAGE,
    OP_CALLS,
    OP_MEMORY,
    OP_MEMORY_SELF
};
enum { ALWAYS, WITH_GPU, WITH_MEMORY, WITH_BOTH };
static const struct {
    profile_column column;
    int when;
} op_columns[] = {
    {{"Name", COLUMN_NAME, 0}, ALWAYS},
    {{"Self CPU %", COLUMN_PERCENT, OP_SELF_SHARE}, ALWAYS},
    {{"Self CPU", COLUMN_TIME, OP_SELF}, ALWAYS},
    {{"CPU total %", COLUMN_PERCENT, OP_TOTAL_SHARE}, ALWAYS},
    {{"CPU total", COLUMN_TIME, OP_TOTAL}, ALWAYS},
    {{"CPU time avg", COLUMN_TIME, OP_AVERAGE}, ALWAYS},
    {{"Self CUDA", COLUMN_TIME, OP_GPU_SELF}, WITH_GPU},
    {{"Self CUDA %", COLUMN_PERCENT, OP_GPU_SHARE}, WITH_GPU},
    {{"CUDA total", COLUMN_TIME, OP_GPU_TOTAL}, WITH_GPU},
    {{"CUDA time avg", COLUMN_TIME, OP_GPU_AVERAGE}, WITH_GPU},
    {{"CPU Mem", COLUMN_MEMORY, OP_MEMORY}, WITH_MEMORY},
    {{"Self CPU Mem", COLUMN_MEMORY, OP_MEMORY_SELF}, WITH_MEMORY},
    {{"CUDA Mem", COLUMN_MEMORY, OP_MEMORY}, WITH_BOTH},
    {{"Self CUDA Mem", COLUMN_MEMORY, OP_MEMORY_SELF}, WITH_BOTH},
    {{"# of Calls", COLUMN_COUNT, OP_CALLS}, ALWAYS},
};

#define COLUMNS(list) list, (int)(sizeof(list) / sizeof(list)[0])
static const struct {
    const char *id, *title;
    table_looks looks;
    unsigned kinds; /* bits of span kinds */
    const profile_column *columns;
    int n_columns;
} reports[N_REPORTS] = {
    [REPORT_KERNELS] = {"cuda_gpu_kern_sum", "CUDA GPU Kernel Summary", LOOKS_NSYS,
                        1 << SPAN_KERNEL, COLUMNS(kernel_columns)},
    [REPORT_CALLS] = {"cuda_api_sum", "CUDA API Summary", LOOKS_NSYS, 1 << SPAN_CALL,
                      COLUMNS(call_columns)},
    [REPORT_COPIES] = {"cuda_gpu_mem_time_sum", "CUDA GPU MemOps Summary (by Time)", LOOKS_NSYS,
                       1 << SPAN_COPY | 1 << SPAN_SET, COLUMNS(copy_columns)},
    [REPORT_BYTES] = {"cuda_gpu_mem_size_sum", "CUDA GPU MemOps Summary (by Size)", LOOKS_NSYS,
                      1 << SPAN_COPY | 1 << SPAN_SET, COLUMNS(byte_columns)},
    [REPORT_GPU] = {"cuda_gpu_sum", "CUDA GPU Summary (Kernels/MemOps)", LOOKS_NSYS,
                    1 << SPAN_KERNEL | 1 << SPAN_COPY | 1 << SPAN_SET, COLUMNS(gpu_columns)},
    [REPORT_LAUNCHES] = {"cuda_kern_launch", "CUDA Kernel Launches (the longest one of each)",
                         LOOKS_NSYS, 1 << SPAN_KERNEL, NULL, 0},
    [REPORT_COUNTERS] = {"cuda_kern_counters", "CUDA Kernel Counters", LOOKS_NSYS, 0,
                         COLUMNS(counter_columns)},
    [REPORT_WORK] = {"op_work", "Work of Ops", LOOKS_NSYS, 0, NULL, 0},
    [REPORT_OPS] = {"key_averages", "Ranges and ops", LOOKS_TORCH, 1 << SPAN_RANGE | 1 << SPAN_OP,
                    NULL, 0},
};

static bool counts(const span *s, unsigned kinds) {
    return s->end_ns != 0 && (kinds >> s->kind & 1) != 0;
}

/* One value of a span, by the name it belongs to. */
typedef struct sample {
    int32_t name;
    double value;
} sample;

static int by_name_and_value(const void *a, const void *b) {
    const sample *x = a, *y = b;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Sum, count, mean, median, least, largest, sample deviation of n sorted values. */
static void spread(const sample *s, size_t n, double out[7]) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += s[i].value;
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (s[i].value - mean) * (s[i].value - mean);
    double median = (s[(n - 1) / 2].value + s[n / 2].value) / 2;
    double deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    double all[7] = {sum, (double)n, mean, median, s[0].value, s[n - 1].value, deviation};
    memcpy(out, all, sizeof all);
}

static status summarise(profile_table *t, const recorder *r, unsigned kinds, bool is_bytes) {
    sample *all;
    size_t n = 0, capacity = 0;
    double total = 0;
    TRY(mem_alloc_raw((void **)&all, r->n_spans + 1, sizeof *all));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (!counts(s, kinds)) continue;
        double value = is_bytes ? (double)s->bytes / 1e6 : (double)(s->end_ns - s->start_ns);
        all[n++] = (sample){s->name, value};
        total += value;
    }
    qsort(all, n, sizeof *all, by_name_and_value);
    status st = OK;
    for (size_t i = 0, end; st == OK && i < n; i = end) {
        for (end = i + 1; end < n && all[end].name == all[i].name; end++) {
        }
        st = MEM_RESERVE(&t->rows, &capacity, t->n_rows + 1);
        if (st != OK) break;
        profile_row *row = &t->rows[t->n_rows++];
        *row = (profile_row){0};
        row->name = recorder_text(r, (size_t)all[i].name);
        spread(all + i, end - i, row->value + 1);
        row->value[0] = total > 0 ? 100 * row->value[1] / total : 0;
    }
    mem_free(all);
    return st;
}

static status fill_counters(profile_table *t, const recorder *r) {
    double total = 1;
    TRY(mem_alloc((void **)&t->rows, r->n_counted + 1, sizeof *t->rows));
    for (size_t i = 0; i < r->n_counted; i++)
        total += r->counted[i].sum[COUNTED_NS];
    for (size_t i = 0; i < r->n_counted; i++) {
        const double *k = r->counted[i].sum, ns = fmax(k[COUNTED_NS], 1);
        t->rows[t->n_rows++] = (profile_row){
            .name = recorder_text(r, (size_t)r->counted[i].name),
            .value = {100 * ns / total, k[COUNTED_NS], k[COUNTED_N], k[COUNTED_NS] / k[COUNTED_N],
                      k[COUNTED_OCCUPANCY] / ns, k[COUNTED_TENSOR] / ns, k[COUNTED_DRAM] / 1e6,
                      k[COUNTED_DRAM] / ns, k[COUNTED_L2] / 1e6}};
    }
    return OK;
}

static bool is_of_host(const span *s) {
    return s->kind == SPAN_RANGE || s->kind == SPAN_OP;
}

/* A span of the GPU counts as self time of its op, and as total time of all around that.  In a
 * graph its op is the one that was recorded, which is called with each replay. */
static void add_gpu_time(profile_row *rows, const recorder *r, const span *s) {
    double ns = (double)(s->end_ns - s->start_ns);
    bool is_self = true;
    if (s->graph_op > 0) {
        profile_row *row = &rows[s->graph_op - 1];
        row->name = recorder_text(r, (size_t)s->graph_op - 1);
        row->value[OP_GPU_SELF] += ns;
        row->value[OP_GPU_TOTAL] += ns;
        row->value[OP_CALLS] += s->is_first;
        is_self = false;
    }
    for (int64_t at = s->op; at != RECORDER_NO_OP; at = r->spans[at].op, is_self = false) {
        profile_row *row = &rows[r->spans[at].name];
        if (is_self) row->value[OP_GPU_SELF] += ns;
        row->value[OP_GPU_TOTAL] += ns;
    }
}

/* Memory that an op asked for counts for all around it, too. */
static void add_memory(profile_row *rows, const recorder *r, const span *s) {
    rows[s->name].value[OP_MEMORY_SELF] += (double)s->memory;
    rows[s->name].value[OP_MEMORY] += (double)s->memory;
    for (int64_t at = s->op; at != RECORDER_NO_OP; at = r->spans[at].op)
        rows[r->spans[at].name].value[OP_MEMORY] += (double)s->memory;
}

/* Memory is the GPU's where there is one. */
static void set_columns(profile_table *t, bool has_memory) {
    bool has_gpu = t->gpu_ns > 0;
    const bool is_shown[] = {[ALWAYS] = true,
                             [WITH_GPU] = has_gpu,
                             [WITH_MEMORY] = has_memory && !has_gpu,
                             [WITH_BOTH] = has_memory && has_gpu};
    for (size_t i = 0; i < sizeof op_columns / sizeof *op_columns; i++)
        if (is_shown[op_columns[i].when]) t->own[t->n_columns++] = op_columns[i].column;
    t->columns = t->own;
}

static status average(profile_table *t, const recorder *r) {
    TRY(mem_alloc((void **)&t->rows, r->names.n + 1, sizeof *t->rows));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns == 0) continue;
        if (!is_of_host(s)) {
            if (s->kind != SPAN_CALL) add_gpu_time(t->rows, r, s);
            if (s->kind != SPAN_CALL) t->gpu_ns += (double)(s->end_ns - s->start_ns);
            continue;
        }
        profile_row *row = &t->rows[s->name];
        double ns = (double)(s->end_ns - s->start_ns), self = ns - (double)s->child_ns;
        row->name = recorder_name(r, s);
        row->value[OP_SELF] += self;
        row->value[OP_TOTAL] += ns;
        row->value[OP_CALLS]++;
        t->host_ns += self;
        if (s->memory != 0) add_memory(t->rows, r, s);
    }
    for (size_t i = 0; i < r->names.n; i++) {
        profile_row row = t->rows[i];
        if (row.name == NULL) continue;
        double *v = row.value, n = v[OP_CALLS];
        v[OP_SELF_SHARE] = t->host_ns > 0 ? 100 * v[OP_SELF] / t->host_ns : 0;
        v[OP_TOTAL_SHARE] = t->host_ns > 0 ? 100 * v[OP_TOTAL] / t->host_ns : 0;
        v[OP_GPU_SHARE] = t->gpu_ns > 0 ? 100 * v[OP_GPU_SELF] / t->gpu_ns : 0;
        v[OP_AVERAGE] = n > 0 ? v[OP_TOTAL] / n : 0;
        v[OP_GPU_AVERAGE] = n > 0 ? v[OP_GPU_TOTAL] / n : 0;
        t->rows[t->n_rows++] = row;
    }
    set_columns(t, r->has_memory);
    return OK;
}

status profile_table_make(profile_table *out, const recorder *r, report_kind kind) {
    *out = (profile_table){.id = reports[kind].id,
                           .title = reports[kind].title,
                           .looks = reports[kind].looks,
                           .columns = reports[kind].columns,
                           .n_columns = reports[kind].n_columns};
    status st;
    switch (kind) {
    case REPORT_OPS:
        st = average(out, r);
        break;
    case REPORT_LAUNCHES:
        st = launches_fill(out, r);
        break;
    case REPORT_COUNTERS:
        st = fill_counters(out, r);
        break;
    case REPORT_WORK:
        st = roofline_fill(out, r);
        break;
    default:
        st = summarise(out, r, reports[kind].kinds, kind == REPORT_BYTES);
    }
    if (st == OK)
        st = profile_table_sort(out, kind != REPORT_OPS ? "total_time"
                                     : out->gpu_ns > 0  ? "self_cuda_time_total"
                                                        : "self_cpu_time_total");
    if (st != OK) profile_table_fini(out);
    return st;
}

void profile_table_fini(profile_table *t) {
    mem_free(t->rows);
    t->rows = NULL;
    t->n_rows = 0;
}

static int by_column(const void *a, const void *b, void *column) {
    const profile_row *x = a, *y = b;
    double p = x->value[*(int *)column], q = y->value[*(int *)column];
    return p > q ? -1 : p < q ? 1 : strcmp(x->name, y->name);
}

status profile_table_sort(profile_table *t, const char *key) {
    static const struct {
        const char *key;
        int column;
    } keys[] = {{"self_cpu_time_total", OP_SELF},
                {"cpu_time_total", OP_TOTAL},
                {"self_cuda_time_total", OP_GPU_SELF},
                {"cuda_time_total", OP_GPU_TOTAL},
                {"count", OP_CALLS},
                {"self_cpu_memory_usage", OP_MEMORY_SELF},
                {"cpu_memory_usage", OP_MEMORY},
                {"self_cuda_memory_usage", OP_MEMORY_SELF},
                {"cuda_memory_usage", OP_MEMORY}};
    int column = -1;
    if (t->looks == LOOKS_NSYS) column = 1; /* the sum */
    for (size_t i = 0; t->looks == LOOKS_TORCH && i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i].key) == 0) column = keys[i].column;
    if (column < 0)
        return fail(ERR_USAGE,
                    "--sort-by %.40s: the keys are self_cpu_time_total, cpu_time_total, "
                    "self_cuda_time_total, cuda_time_total, count, and with --memory "
                    "self_cpu_memory_usage, cpu_memory_usage, self_cuda_memory_usage and "
                    "cuda_memory_usage",
                    key);
    if (t->n_rows > 0) qsort_r(t->rows, t->n_rows, sizeof *t->rows, by_column, &column);
    return OK;
}

double profile_table_share(const profile_table *t, const profile_row *row) {
    return row->value[t->gpu_ns > 0 ? OP_GPU_SHARE : OP_SELF_SHARE] / 100;
}

/* The tables as text, csv and JSON. */

enum { CELL_BYTES = RECORDER_NAME_BYTES + 64, TORCH_NAME_WIDTH = 55, TORCH_WIDTH = 12 };

static size_t n_shown(const profile_table *t, int64_t row_limit) {
    return row_limit >= 0 && (size_t)row_limit < t->n_rows ? (size_t)row_limit : t->n_rows;
}

static void scaled_time(char out[CELL_BYTES], double ns) {
    if (ns >= 1e9)
        snprintf(out, CELL_BYTES, "%.3fs", ns / 1e9);
    else if (ns >= 1e6)
        snprintf(out, CELL_BYTES, "%.3fms", ns / 1e6);
    else
        snprintf(out, CELL_BYTES, "%.3fus", ns / 1e3);
}

static void scaled_bytes(char out[CELL_BYTES], double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    int unit = 0;
    while (unit < 3 && fabs(bytes) >= 1024) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, CELL_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

/* With separators between thousands, as newer nsys prints them; decimals 0 or 1. */
static void grouped(char out[CELL_BYTES], double value, int decimals) {
    char digits[64];
    snprintf(digits, sizeof digits, "%.*f", decimals, fabs(value));
    int n = (int)strcspn(digits, "."), at = 0;
    if (value < 0) out[at++] = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    snprintf(out + at, CELL_BYTES - (size_t)at, "%s", digits + n);
}

/* A sum, a count, and the least and the largest of whole nanoseconds are whole. */
static bool is_whole(const profile_column *c) {
    return c->kind == COLUMN_COUNT || strncmp(c->title, "Total", 5) == 0 ||
           strncmp(c->title, "Min", 3) == 0 || strncmp(c->title, "Max", 3) == 0;
}

static void cell(char out[CELL_BYTES], const profile_table *t, const profile_row *row, int i) {
    double value = row->value[t->columns[i].value]; /* of no meaning for texts */
    switch (t->columns[i].kind) {
    case COLUMN_NAME:
        if (t->looks == LOOKS_TORCH && strlen(row->name) > TORCH_NAME_WIDTH)
            snprintf(out, CELL_BYTES, "%.*s...", TORCH_NAME_WIDTH - 3, row->name);
        else
            snprintf(out, CELL_BYTES, "%s", row->name);
        break;
    case COLUMN_PERCENT:
        snprintf(out, CELL_BYTES, t->looks == LOOKS_TORCH ? "%.2f%%" : "%.1f", value);
        break;
    case COLUMN_MB:
        snprintf(out, CELL_BYTES, "%.3f", value);
        break;
    case COLUMN_TIME:
        scaled_time(out, value);
        break;
    case COLUMN_MEMORY:
        scaled_bytes(out, value);
        break;
    case COLUMN_NUMBER:
        snprintf(out, CELL_BYTES, value > 0 && value < 0.095 ? "%.2g" : "%.2f", value);
        break;
    case COLUMN_TEXT:
        snprintf(out, CELL_BYTES, "%s", row->text[t->columns[i].value]);
        break;
    case COLUMN_COUNT:
    case COLUMN_NS:
        if (t->looks == LOOKS_TORCH)
            snprintf(out, CELL_BYTES, "%.0f", value);
        else
            grouped(out, value, is_whole(&t->columns[i]) ? 0 : 1);
        break;
    }
}

/* The width of each column: of its title and of its widest cell. */
static void measure(const profile_table *t, size_t n, int width[PROFILE_MAX_COLUMNS]) {
    char text[CELL_BYTES];
    for (int c = 0; c < t->n_columns; c++) {
        width[c] = (int)strlen(t->columns[c].title);
        if (t->looks == LOOKS_TORCH && t->columns[c].kind != COLUMN_NAME && width[c] < TORCH_WIDTH)
            width[c] = TORCH_WIDTH;
        for (size_t i = 0; i < n; i++) {
            cell(text, t, &t->rows[i], c);
            if ((int)strlen(text) > width[c]) width[c] = (int)strlen(text);
        }
    }
}

static status line(const profile_table *t, const int width[], const profile_row *row, buf *out) {
    char text[CELL_BYTES];
    for (int c = 0; c < t->n_columns; c++) {
        bool is_last = c + 1 == t->n_columns;
        if (row != NULL)
            cell(text, t, row, c);
        else
            snprintf(text, sizeof text, "%s", t->columns[c].title);
        bool is_left = t->columns[c].kind == COLUMN_NAME && t->looks == LOOKS_NSYS;
        TRY(buf_printf(out, "%s%*s", c == 0 ? t->looks == LOOKS_NSYS ? " " : "" : "  ",
                       is_left ? (is_last ? 0 : -width[c]) : width[c], text));
    }
    return buf_char(out, '\n');
}

static status dashes(const profile_table *t, const int width[], buf *out) {
    for (int c = 0; c < t->n_columns; c++) {
        TRY(buf_text(out, c == 0 ? t->looks == LOOKS_NSYS ? " " : "" : "  "));
        for (int i = 0; i < width[c]; i++)
            TRY(buf_char(out, '-'));
    }
    return buf_char(out, '\n');
}

status profile_table_text(const profile_table *t, int64_t row_limit, buf *out) {
    int width[PROFILE_MAX_COLUMNS];
    char text[CELL_BYTES];
    size_t n = n_shown(t, row_limit);
    measure(t, n, width);
    if (t->looks == LOOKS_NSYS)
        TRY(buf_printf(out, " ** %s (%s):\n\n", t->title, t->id));
    else
        TRY(dashes(t, width, out));
    TRY(line(t, width, NULL, out));
    TRY(dashes(t, width, out));
    for (size_t i = 0; i < n; i++)
        TRY(line(t, width, &t->rows[i], out));
    if (t->looks == LOOKS_TORCH) {
        TRY(dashes(t, width, out));
        scaled_time(text, t->host_ns);
        TRY(buf_printf(out, "Self CPU time total: %s\n", text));
        scaled_time(text, t->gpu_ns);
        if (t->gpu_ns > 0) TRY(buf_printf(out, "Self CUDA time total: %s\n", text));
    }
    return OK;
}

/* Numbers as they are, times in nanoseconds. */
static status csv_cell(const profile_table *t, const profile_row *row, int c, buf *out) {
    const char *text = t->columns[c].kind == COLUMN_NAME   ? row->name
                       : t->columns[c].kind == COLUMN_TEXT ? row->text[t->columns[c].value]
                                                           : NULL;
    if (text != NULL) return csv_put_field(out, text, strlen(text));
    return buf_printf(out, "%.15g", row->value[t->columns[c].value]);
}

static const char *unit_of(const profile_table *t, int c) {
    return t->columns[c].kind == COLUMN_TIME     ? " (ns)"
           : t->columns[c].kind == COLUMN_MEMORY ? " (bytes)"
                                                 : "";
}

status profile_table_csv(const profile_table *t, int64_t row_limit, buf *out) {
    size_t n = n_shown(t, row_limit);
    for (int c = 0; c < t->n_columns; c++)
        TRY(buf_printf(out, "%s%s%s", c > 0 ? "," : "", t->columns[c].title, unit_of(t, c)));
    TRY(buf_char(out, '\n'));
    for (size_t i = 0; i < n; i++) {
        for (int c = 0; c < t->n_columns; c++) {
            if (c > 0) TRY(buf_char(out, ','));
            TRY(csv_cell(t, &t->rows[i], c, out));
        }
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

status profile_table_json(const profile_table *t, int64_t row_limit, buf *out) {
    json_writer w;
    char title[64];
    json_begin_object(&w, out, 0);
    json_key_string(&w, "report", t->id);
    json_key_array(&w, "rows");
    for (size_t i = 0; i < n_shown(t, row_limit); i++) {
        json_object_open(&w);
        for (int c = 0; c < t->n_columns; c++) {
            snprintf(title, sizeof title, "%s%s", t->columns[c].title, unit_of(t, c));
            if (t->columns[c].kind == COLUMN_NAME)
                json_key_string(&w, title, t->rows[i].name);
            else if (t->columns[c].kind == COLUMN_TEXT)
                json_key_string(&w, title, t->rows[i].text[t->columns[c].value]);
            else
                json_key_double(&w, title, t->rows[i].value[t->columns[c].value]);
        }
        json_object_close(&w);
    }
    json_array_close(&w);
    TRY(json_finish_object(&w));
    return buf_char(out, '\n');
}
