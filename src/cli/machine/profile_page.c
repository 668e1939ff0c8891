#include "cli/machine/profile_page.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cli/show.h"
#include "format/json.h"
#include "profile/gpu_time.h"
#include "profile/tables.h"
#include "profile/utilization.h"
#include "train/report/report.h"

/* What a browser draws with ease; of more spans the longest are drawn. */
enum { MAX_DRAWN = 40000, TOP_ROWS = 20 };

/* The timeline: rows of spans on a canvas; the wheel or + and - zoom, dragging or arrows move. */
static const char script[] =
    "const c=document.getElementById('t'),x=c.getContext('2d'),tip=document.getElementById('tip');"
    "const css=k=>getComputedStyle(document.documentElement).getPropertyValue(k);\n"
    "let rows=[],at={},end=1;for(const s of D.spans){const k=s[0]+':'+s[1];if(!(k in at)){at[k]="
    "{lane:s[0],depth:s[1]}}end=Math.max(end,s[2]+s[3])}\n"
    "for(const k of Object.keys(at).sort((a,b)=>at[a].lane-at[b].lane||at[a].depth-at[b].depth))"
    "{at[k].y=rows.length;rows.push(at[k])}\n"
    "const H=20,L=110;let from=0,to=end;c.style.height=(rows.length*H+24)+'px';\n"
    "function draw(){const w=c.clientWidth,h=rows.length*H+24,r=devicePixelRatio||1;c.width=w*r;"
    "c.height=h*r;x.setTransform(r,0,0,r,0,0);x.clearRect(0,0,w,h);x.font='11px system-ui';"
    "x.textBaseline='middle';const px=t=>L+(t-from)/(to-from)*(w-L);\n"
    "for(const s of D.spans){const a=px(s[2]),b=px(s[2]+s[3]);if(b<L||a>w)continue;const y="
    "at[s[0]+':'+s[1]].y*H+20,q=Math.max(a,L),z=Math.max(b-q,.6);x.fillStyle=css('--c'+"
    "s[4]%8);x.globalAlpha=.85;x.fillRect(q,y,z,H-3);x.globalAlpha=1;if(z>30){x.fillStyle="
    "css('--bg');x.save();x.beginPath();x.rect(q,y,z-3,H);x.clip();x.fillText(D.names[s[4]],q+3,"
    "y+H/2-1);x.restore()}}\n"
    "x.fillStyle=css('--bg');x.fillRect(0,0,L-2,h);x.fillStyle=css('--dim');let last=-1;for(const "
    "o of rows){if(o.lane!=last)x.fillText(D.lanes[o.lane],2,o.y*H+20+H/2);last=o.lane}\n"
    "for(let i=0;i<=4;i++){const t=from+(to-from)*i/4;x.textAlign=i==4?'right':'left';x.fillText("
    "(t/1e3).toFixed((to-from)<1e4?3:1)+' ms',Math.min(px(t)+2,w),9)}x.textAlign='left'}\n"
    "function zoom(f,m){const a=m-(m-from)*f,b=m+(to-m)*f;from=Math.max(0,a);to=Math.min(end,"
    "Math.max(b,from+1));draw()}\n"
    "function move(d){d=Math.max(-from,Math.min(end-to,d));from+=d;to+=d;draw()}\n"
    "const time=e=>from+(e.offsetX-L)/(c.clientWidth-L)*(to-from);\n"
    "c.onwheel=e=>{e.preventDefault();zoom(e.deltaY<0?.7:1.4,time(e))};let held=null;\n"
    "c.onpointerdown=e=>{held=time(e);c.setPointerCapture(e.pointerId)};c.onpointerup=()=>held="
    "null;"
    "c.onpointermove=e=>{const t=time(e);if(held!==null)return move(held-t);const "
    "r=Math.floor((e.offsetY-20)/H);const s=D.spans.find(s=>at[s[0]+':'+s[1]].y==r&&s[2]<=t&&"
    "t<=s[2]+s[3]);tip.textContent=s?D.names[s[4]]+'   '+s[3].toFixed(3)+' us, at '+(s[2]/1e3)"
    ".toFixed(3)+' ms':' '};\n"
    "c.onkeydown=e=>{const m=(from+to)/2,d=(to-from)/5;({'+':()=>zoom(.7,m),'=':()=>zoom(.7,m),'-':"
    "()=>zoom(1.4,m),ArrowLeft:()=>move(-d),ArrowRight:()=>move(d)}[e.key]||(()=>{}))()};\n"
    "onresize=draw;matchMedia('(prefers-color-scheme:dark)').onchange=draw;draw();\n";

static bool is_on_gpu(const span *s) {
    return s->kind == SPAN_KERNEL || s->kind == SPAN_COPY || s->kind == SPAN_SET;
}

/* Lanes: first the host's threads, then CUDA's calls, then streams as they come. */
typedef struct lanes {
    struct {
        int device, stream;
    } gpu[64];
    int n_gpu, n_threads;
} lanes;

static int lane_of(lanes *l, const span *s) {
    if (!is_on_gpu(s)) return s->kind == SPAN_CALL ? l->n_threads : s->lane;
    for (int i = 0; i < l->n_gpu; i++)
        if (l->gpu[i].device == s->device && l->gpu[i].stream == s->lane)
            return l->n_threads + 1 + i;
    if (l->n_gpu == 64) return l->n_threads + 64; /* the last one takes the rest */
    l->gpu[l->n_gpu].device = s->device;
    l->gpu[l->n_gpu].stream = s->lane;
    return l->n_threads + 1 + l->n_gpu++;
}

static int depth_of(const recorder *r, const span *s) {
    int depth = 0;
    if (is_on_gpu(s) || s->kind == SPAN_CALL) return 0;
    for (int64_t at = s->op; at != RECORDER_NO_OP; at = r->spans[at].op)
        depth++;
    return depth;
}

static int by_length(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* The length from which on spans are drawn. */
static status shortest_drawn(const recorder *r, uint64_t *ns) {
    uint64_t *all;
    *ns = 0;
    if (r->n_spans <= MAX_DRAWN) return OK;
    TRY(mem_alloc_raw((void **)&all, r->n_spans, sizeof *all));
    for (size_t i = 0; i < r->n_spans; i++)
        all[i] = r->spans[i].end_ns == 0 ? 0 : r->spans[i].end_ns - r->spans[i].start_ns;
    qsort(all, r->n_spans, sizeof *all, by_length);
    *ns = all[MAX_DRAWN] + 1;
    mem_free(all);
    return OK;
}

static uint64_t first_start(const recorder *r) {
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].end_ns != 0 && r->spans[i].start_ns < first) first = r->spans[i].start_ns;
    return first;
}

static void put_spans(json_writer *j, const recorder *r, lanes *l, uint64_t shortest) {
    uint64_t first = first_start(r);
    json_key(j, "spans");
    json_array_open(j);
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns == 0 || s->end_ns - s->start_ns < shortest) continue;
        json_array_open(j);
        json_int(j, lane_of(l, s));
        json_int(j, depth_of(r, s));
        json_double(j, (double)(s->start_ns - first) / 1e3);
        json_double(j, (double)(s->end_ns - s->start_ns) / 1e3);
        json_int(j, s->name);
        json_array_close(j);
    }
    json_array_close(j);
}

static void put_names(json_writer *j, const recorder *r, const lanes *l) {
    char text[64];
    json_key(j, "names");
    json_array_open(j);
    for (size_t i = 0; i < r->names.n; i++)
        json_string(j, recorder_text(r, i));
    json_array_close(j);
    json_key(j, "lanes");
    json_array_open(j);
    for (int i = 0; i < l->n_threads; i++) {
        snprintf(text, sizeof text, "thread %d", i);
        json_string(j, text);
    }
    json_string(j, "CUDA calls");
    for (int i = 0; i < l->n_gpu; i++) {
        snprintf(text, sizeof text, "GPU %d stream %d", l->gpu[i].device, l->gpu[i].stream);
        json_string(j, text);
    }
    json_array_close(j);
}

/* "</script>" inside a name would end the script. */
static status put_safely(buf *out, const char *json) {
    for (; *json != '\0'; json++)
        TRY(*json == '<' ? buf_text(out, "\\u003c") : buf_char(out, *json));
    return OK;
}

static status put_timeline(const recorder *r, buf *out) {
    lanes l = {.n_threads = r->n_threads > 0 ? r->n_threads : 1};
    uint64_t shortest;
    json_writer j;
    buf data;
    TRY(shortest_drawn(r, &shortest));
    TRY(buf_text(out, "<h2>Timeline</h2>\n"));
    if (shortest > 0)
        TRY(buf_printf(out, "<p class=dim>%zu spans; the %d longest are drawn.</p>\n", r->n_spans,
                       MAX_DRAWN));
    TRY(buf_text(out, "<p class=dim>The wheel, or + and -, zooms; dragging, or the arrows, "
                      "moves.</p>\n<canvas id=t tabindex=0 style=\"width:100%;touch-action:none\" "
                      "aria-label=\"Timeline\"></canvas><pre id=tip> </pre>\n<script>\nconst D="));
    buf_init(&data);
    json_begin(&j, &data, 0);
    json_object_open(&j);
    put_spans(&j, r, &l, shortest);
    put_names(&j, r, &l);
    json_object_close(&j);
    status st = json_finish(&j);
    if (st == OK) st = put_safely(out, buf_str(&data));
    buf_fini(&data);
    TRY(st);
    TRY(buf_text(out, ";\n"));
    TRY(buf_text(out, script));
    return buf_text(out, "</script>\n");
}

static status put_table(const recorder *r, report_kind kind, buf *out) {
    profile_table t;
    buf text;
    TRY(profile_table_make(&t, r, kind));
    buf_init(&text);
    status st = t.n_rows > 0 ? profile_table_text(&t, TOP_ROWS, &text) : OK;
    if (st == OK && t.n_rows > 0) st = page_text(out, t.title, "h2");
    if (st == OK && t.n_rows > 0) st = page_text(out, buf_str(&text), "pre");
    buf_fini(&text);
    profile_table_fini(&t);
    return st;
}

static status put_gaps(const gpu_idle *g, const recorder *r, buf *out) {
    TRY(buf_text(out,
                 "<h2>Where the GPU was idle</h2>\n<table class=text><tr><th>cause<th>gaps<th>ms"
                 "<th>share\n"));
    for (int i = 0; i < N_GAP_CAUSES; i++) {
        if (g->cause[i].n == 0) continue;
        TRY(buf_text(out, "<tr>"));
        TRY(page_text(out, gap_cause_name((gap_cause)i), "td"));
        TRY(buf_printf(out, "<td>%" PRIu64 "<td>%.3f<td>%.1f %%\n", g->cause[i].n,
                       (double)g->cause[i].ns / 1e6,
                       100 * (double)g->cause[i].ns / (double)g->span_ns));
    }
    TRY(buf_text(
        out, "</table>\n<p>The longest:</p>\n<table class=text><tr><th>us<th>before<th>cause\n"));
    for (int i = 0; i < g->n_longest; i++) {
        TRY(buf_printf(out, "<tr><td>%.1f", (double)g->longest[i].ns / 1e3));
        TRY(page_text(out, recorder_name(r, &r->spans[g->longest[i].n]), "td"));
        TRY(page_text(out, gap_cause_name(g->longest_cause[i]), "td"));
    }
    return buf_text(out, "</table>\n");
}

static status put_tiles(const profile *p, const gpu_idle *g, buf *out) {
    const recorder *r = &p->recorder;
    char text[64];
    TRY(buf_text(out, "<div class=tiles>\n"));
    TRY(page_tile(out, "device", p->device[0] != '\0' ? p->device : "none"));
    snprintf(text, sizeof text, "%.3f s", (double)profile_recorded_ns(p) / 1e9);
    TRY(page_tile(out, "recorded", text));
    if (r->n_active > 0) {
        snprintf(text, sizeof text, "%" PRId64, r->n_active);
        TRY(page_tile(out, "steps", text));
    }
    if (g->span_ns > 0) {
        snprintf(text, sizeof text, "%.1f %%", 100 * (double)g->busy_ns / (double)g->span_ns);
        TRY(page_tile(out, "GPU busy", text));
    }
    return buf_text(out, "</div>\n");
}

static status put_roofline(const recorder *r, buf *out) {
    buf picture;
    buf_init(&picture);
    status st = roofline_svg(r, &picture);
    if (st == OK && picture.n_bytes > 0)
        st =
            buf_printf(out,
                       "<h2>Roofline</h2>\n<p class=dim>The line is what this device reaches: %.3g "
                       "TFLOP/s in large products, %.0f GB/s in copies, both measured before the "
                       "run. A circle is an op; its size is its share of the time.</p>\n%s",
                       r->peak_flop / 1e12, r->peak_bytes / 1e9, buf_str(&picture));
    buf_fini(&picture);
    TRY(st);
    return put_table(r, REPORT_WORK, out);
}

static status put_memory(const memory_log *m, buf *out) {
    buf text;
    buf_init(&text);
    status st = memory_log_text(m, &text);
    if (st == OK && text.n_bytes > 0) st = page_text(out, "Memory", "h2");
    if (st == OK && text.n_bytes > 0) st = page_text(out, buf_str(&text), "pre");
    buf_fini(&text);
    return st;
}

static status put_page(const profile *p, buf *out) {
    const recorder *r = &p->recorder;
    gpu_idle g;
    buf advice;
    TRY(gpu_idle_find(&g, r));
    TRY(page_open(out, "Profile"));
    TRY(buf_text(out, "<h1>Profile</h1>\n"));
    TRY(put_tiles(p, &g, out));
    buf_init(&advice);
    status st = gpu_idle_advice(&g, &advice);
    if (st == OK) st = launches_advice(r, &advice);
    if (st == OK) st = roofline_advice(r, &advice);
    if (st == OK && advice.n_bytes > 0) st = page_text(out, buf_str(&advice), "p");
    buf_fini(&advice);
    TRY(st);
    TRY(put_timeline(r, out));
    if (g.span_ns > 0) TRY(put_gaps(&g, r, out));
    TRY(put_roofline(r, out));
    TRY(put_table(r, REPORT_OPS, out));
    TRY(put_table(r, REPORT_KERNELS, out));
    TRY(put_table(r, REPORT_LAUNCHES, out));
    TRY(put_table(r, REPORT_COPIES, out));
    TRY(put_memory(&p->memory, out));
    return page_close(out);
}

status profile_page_write(const profile *p, const char *path) {
    buf page;
    buf_init(&page);
    status st = put_page(p, &page);
    if (st == OK) st = page_save(&page, path);
    buf_fini(&page);
    return st;
}
