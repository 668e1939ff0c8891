#include "profile/launches.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "profile/occupancy.h"

const profile_column launch_columns[] = {{"Time (%)", COLUMN_PERCENT, LAUNCH_SHARE},
                                         {"Instances", COLUMN_COUNT, LAUNCH_COUNT},
                                         {"Avg (ns)", COLUMN_NS, LAUNCH_AVERAGE},
                                         {"Grid", COLUMN_TEXT, LAUNCH_GRID},
                                         {"Block", COLUMN_TEXT, LAUNCH_BLOCK},
                                         {"Reg/Trd", COLUMN_COUNT, LAUNCH_REGISTERS},
                                         {"StcSMem (B)", COLUMN_COUNT, LAUNCH_STATIC},
                                         {"DymSMem (B)", COLUMN_COUNT, LAUNCH_DYNAMIC},
                                         {"Local (B)", COLUMN_COUNT, LAUNCH_LOCAL},
                                         {"Warps/SM", COLUMN_COUNT, LAUNCH_WARPS},
                                         {"Occup (%)", COLUMN_PERCENT, LAUNCH_OCCUPANCY},
                                         {"Waves", COLUMN_NUMBER, LAUNCH_WAVES},
                                         {"Limited by", COLUMN_TEXT, LAUNCH_LIMIT},
                                         {"Name", COLUMN_NAME, 0}};
_Static_assert(sizeof launch_columns / sizeof *launch_columns == N_LAUNCH_COLUMNS, "columns");

static void put_triple(char out[36], const int32_t v[3]) {
    snprintf(out, 36, "%d,%d,%d", v[0], v[1], v[2]);
}

static void describe(profile_row *row, const span_launch *l, const gpu_facts *g) {
    put_triple(row->text[LAUNCH_GRID], l->grid);
    put_triple(row->text[LAUNCH_BLOCK], l->block);
    row->value[LAUNCH_REGISTERS] = l->registers;
    row->value[LAUNCH_STATIC] = l->static_shared;
    row->value[LAUNCH_DYNAMIC] = l->dynamic_shared;
    row->value[LAUNCH_LOCAL] = l->local;
    occupancy o = {.limit = LIMIT_TOO_LARGE};
    if (g != NULL) o = occupancy_find(g, l);
    row->value[LAUNCH_WARPS] = o.warps;
    row->value[LAUNCH_OCCUPANCY] = 100 * o.share;
    row->value[LAUNCH_WAVES] = o.waves;
    snprintf(row->text[LAUNCH_LIMIT], sizeof row->text[0], "%s", occupancy_limit_name(o.limit));
}

status launches_fill(profile_table *t, const recorder *r) {
    const span **longest;
    double total = 0;
    TRY(mem_alloc((void **)&longest, r->n_names + 1, sizeof *longest));
    status st = mem_alloc((void **)&t->rows, r->n_names + 1, sizeof *t->rows);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->kind != SPAN_KERNEL || s->end_ns == 0 || s->launch < 0) continue;
        const span **best = &longest[s->name];
        if (*best == NULL || s->end_ns - s->start_ns > (*best)->end_ns - (*best)->start_ns)
            *best = s;
        t->rows[s->name].value[LAUNCH_TOTAL] += (double)(s->end_ns - s->start_ns);
        t->rows[s->name].value[LAUNCH_COUNT]++;
        total += (double)(s->end_ns - s->start_ns);
    }
    for (size_t i = 0; st == OK && i < r->n_names; i++) {
        if (longest[i] == NULL) continue;
        profile_row row = t->rows[i];
        row.name = r->names[i];
        row.value[LAUNCH_SHARE] = 100 * row.value[LAUNCH_TOTAL] / total;
        row.value[LAUNCH_AVERAGE] = row.value[LAUNCH_TOTAL] / row.value[LAUNCH_COUNT];
        describe(&row, &r->launches[longest[i]->launch], recorder_gpu(r, longest[i]->device));
        t->rows[t->n_rows++] = row;
    }
    mem_free(longest);
    return st;
}

/* One sentence a kernel, the worst first; local memory is where spilled registers go. */
static status advise(const profile_row *row, buf *out) {
    const double *v = row->value;
    if (v[LAUNCH_WAVES] > 0 && v[LAUNCH_WAVES] < .5)
        return buf_printf(out,
                          "%s (%.0f %% of the time) fills %.0f %% of the GPU once: its grid is "
                          "%s blocks. More rows at a time, or more blocks a row, would fill it.\n",
                          row->name, v[LAUNCH_SHARE], 100 * v[LAUNCH_WAVES],
                          row->text[LAUNCH_GRID]);
    if (v[LAUNCH_LOCAL] > 0)
        return buf_printf(out,
                          "%s (%.0f %% of the time) uses %.0f bytes of local memory a thread: "
                          "registers may be spilled to memory.\n",
                          row->name, v[LAUNCH_SHARE], v[LAUNCH_LOCAL]);
    if (v[LAUNCH_OCCUPANCY] > 0 && v[LAUNCH_OCCUPANCY] < 10)
        return buf_printf(out,
                          "%s (%.0f %% of the time) has an occupancy of %.0f %%, limited by %s.\n",
                          row->name, v[LAUNCH_SHARE], v[LAUNCH_OCCUPANCY], row->text[LAUNCH_LIMIT]);
    return OK;
}

status launches_advice(const recorder *r, buf *out) {
    profile_table t;
    TRY(profile_table_make(&t, r, REPORT_LAUNCHES));
    status st = OK;
    for (size_t i = 0; st == OK && i < t.n_rows; i++)
        if (t.rows[i].value[LAUNCH_SHARE] >= 5) st = advise(&t.rows[i], out);
    profile_table_fini(&t);
    return st;
}
