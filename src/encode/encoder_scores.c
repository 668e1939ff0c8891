#include "encode/encoder_scores.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "encode/encoder_int.h"
#include "format/json.h"

const double score_thresholds[SCORE_THRESHOLDS] = {1e-5, 1e-4, 1e-3, 1e-2};
const int32_t score_windows[SCORE_WINDOWS] = {0, 4, 16, 32, 64};

struct encoder_scores {
    int32_t n_layers, n_heads, head_dim;
    const mask *rule;  /* or NULL */
    head_scores *head; /* (n_layers, n_heads) */
    int64_t n_sequences, n_tokens;
    float *qkv; /* (T, 3 E) of a layer */
    size_t qkv_capacity;
    uint64_t *seen; /* (n, words of a row) of a sequence */
    size_t seen_capacity;
    float *weights; /* (n_heads, max length) */
    size_t weights_capacity;
};

status encoder_scores_create(encoder_scores **out, const encoder *e, const mask *m) {
    const encoder_config *c = encoder_config_of(e);
    encoder_scores *s = NULL;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    *s = (encoder_scores){
        .n_layers = c->n_layers, .n_heads = c->n_heads, .head_dim = c->dim / c->n_heads, .rule = m};
    status st = MEM_NEW(&s->head, (size_t)c->n_layers * (size_t)c->n_heads);
    if (st == OK)
        *out = s;
    else
        encoder_scores_destroy(s);
    return st;
}

void encoder_scores_destroy(encoder_scores *s) {
    if (s == NULL) return;
    mem_free(s->head);
    mem_free(s->qkv);
    mem_free(s->seen);
    mem_free(s->weights);
    mem_free(s);
}

const head_scores *encoder_scores_at(const encoder_scores *s, int32_t layer, int32_t head) {
    return &s->head[(int64_t)layer * s->n_heads + head];
}

/* One sequence of one layer. */
typedef struct scored_sequence {
    encoder_scores *s;
    head_scores *head; /* (n_heads) of the layer */
    const float *qkv;  /* its first row */
    int32_t n;
    int64_t stride, n_words; /* words of a row of `seen` */
} scored_sequence;

static bool sees(const scored_sequence *q, int32_t i, int32_t j) {
    if (q->s->rule == NULL) return true;
    return (q->s->seen[i * q->n_words + j / 64] >> (j % 64) & 1) != 0;
}

/* p = the weights of query i, 0 where it does not see; false: it sees nothing. */
static bool row_weights(const scored_sequence *q, int32_t head, int32_t i, float *p) {
    int32_t dim = q->s->head_dim;
    int64_t width = (int64_t)q->s->n_heads * dim;
    const float *query = q->qkv + i * q->stride + (int64_t)head * dim;
    float alpha = 1 / sqrtf((float)dim), largest = -INFINITY;
    double sum = 0;
    for (int32_t j = 0; j < q->n; j++) {
        const float *key = q->qkv + j * q->stride + width + (int64_t)head * dim;
        float dot = 0;
        for (int32_t d = 0; d < dim; d++)
            dot += query[d] * key[d];
        p[j] = sees(q, i, j) ? alpha * dot : -INFINITY;
        largest = p[j] > largest ? p[j] : largest;
    }
    if (largest == -INFINITY) return false;
    for (int32_t j = 0; j < q->n; j++) {
        p[j] = expf(p[j] - largest);
        sum += (double)p[j];
    }
    for (int32_t j = 0; j < q->n; j++)
        p[j] = (float)(p[j] / sum);
    return true;
}

static void count_row(const scored_sequence *q, int32_t i, const float *p, head_scores *to) {
    to->n_rows++;
    to->first += (double)p[0];
    for (int32_t j = 0; j < q->n; j++) {
        int32_t distance = j < i ? i - j : j - i;
        if (!sees(q, i, j)) continue;
        to->n_pairs++;
        if (p[j] > 0) to->entropy -= (double)p[j] * log((double)p[j]);
        for (int k = 0; k < SCORE_WINDOWS; k++)
            if (distance <= score_windows[k]) to->within[k] += (double)p[j];
        for (int k = 0; k < SCORE_THRESHOLDS; k++)
            to->below[k] += (double)p[j] < score_thresholds[k];
    }
}

static status head_chunk(void *ctx, int64_t head, int worker) {
    const scored_sequence *q = ctx;
    float *p = q->s->weights + head * q->n;
    (void)worker;
    for (int32_t i = 0; i < q->n; i++)
        if (row_weights(q, (int32_t)head, i, p)) count_row(q, i, p, &q->head[head]);
    return OK;
}

static status count_sequence(encoder *e, encoder_scores *s, int32_t layer, int32_t b) {
    int32_t first = e->offsets.host[b], n = e->offsets.host[b + 1] - first;
    scored_sequence q = {.s = s,
                         .head = s->head + (int64_t)layer * s->n_heads,
                         .qkv = s->qkv + (int64_t)first * 3 * e->config.dim,
                         .n = n,
                         .stride = 3 * (int64_t)e->config.dim,
                         .n_words = (n + 63) / 64};
    TRY(MEM_RESERVE(&s->weights, &s->weights_capacity, (size_t)s->n_heads * (size_t)n));
    if (s->rule != NULL) {
        TRY(MEM_RESERVE(&s->seen, &s->seen_capacity, (size_t)(n * q.n_words)));
        mask_fill_rows(s->rule, e->n_before + b, n, 0, n, s->seen, q.n_words);
    }
    return pool_run(e->be->workers, s->n_heads, head_chunk, &q);
}

/* After a layer, while its queries and keys are there. */
static status count_layer(void *ctx, encoder *e, int32_t layer) {
    encoder_scores *s = ctx;
    size_t n = (size_t)e->n_tokens * 3 * (size_t)e->config.dim;
    TRY(MEM_RESERVE(&s->qkv, &s->qkv_capacity, n));
    TRY(backend_read_act(e->be, s->qkv, e->acts.qkv, n));
    for (int32_t b = 0; b < e->n_sequences; b++)
        TRY(count_sequence(e, s, layer, b));
    return OK;
}

status encoder_run_scored(encoder *e, encoder_scores *s) {
    s->n_sequences += e->n_sequences;
    s->n_tokens += e->n_tokens;
    return encoder_run_visited(e, count_layer, s);
}

static double mean(double sum, int64_t n) {
    return n > 0 ? sum / (double)n : 0;
}

static void put_head(json_writer *w, const head_scores *h, int32_t layer, int32_t head) {
    json_object_open(w);
    json_key_int(w, "layer", layer);
    json_key_int(w, "head", head);
    json_key_double(w, "entropy", mean(h->entropy, h->n_rows));
    json_key_double(w, "first", mean(h->first, h->n_rows));
    json_key(w, "within");
    json_array_open(w);
    for (int k = 0; k < SCORE_WINDOWS; k++)
        json_double(w, mean(h->within[k], h->n_rows));
    json_array_close(w);
    json_key(w, "below");
    json_array_open(w);
    for (int k = 0; k < SCORE_THRESHOLDS; k++)
        json_double(w, mean((double)h->below[k], h->n_pairs));
    json_array_close(w);
    json_object_close(w);
}

status encoder_scores_json(const encoder_scores *s, buf *to) {
    json_writer w;
    json_begin(&w, to, 2);
    json_object_open(&w);
    json_key_int(&w, "sequences", s->n_sequences);
    json_key_int(&w, "tokens", s->n_tokens);
    json_key(&w, "windows");
    json_array_open(&w);
    for (int k = 0; k < SCORE_WINDOWS; k++)
        json_int(&w, score_windows[k]);
    json_array_close(&w);
    json_key(&w, "thresholds");
    json_array_open(&w);
    for (int k = 0; k < SCORE_THRESHOLDS; k++)
        json_double(&w, score_thresholds[k]);
    json_array_close(&w);
    json_key(&w, "heads");
    json_array_open(&w);
    for (int32_t l = 0; l < s->n_layers; l++)
        for (int32_t h = 0; h < s->n_heads; h++)
            put_head(&w, encoder_scores_at(s, l, h), l, h);
    json_array_close(&w);
    json_object_close(&w);
    TRY(json_finish(&w));
    return buf_char(to, '\n');
}

enum { CELL = 34, MARGIN = 46, GAP = 40, WINDOW_SHOWN = 2 };

/* One map: a cell for each head, darker for more; shares are shown in percent. */
static status put_map(const encoder_scores *s, buf *to, int left, const char *title,
                      bool is_entropy) {
    TRY(buf_printf(to, "<text x=\"%d\" y=\"18\" font-weight=\"bold\">%s</text>\n", left, title));
    for (int32_t h = 0; h < s->n_heads; h++)
        TRY(buf_printf(to, "<text x=\"%d\" y=\"38\" text-anchor=\"middle\">%d</text>\n",
                       left + h * CELL + CELL / 2, h));
    for (int32_t l = 0; l < s->n_layers; l++)
        for (int32_t h = 0; h < s->n_heads; h++) {
            const head_scores *x = encoder_scores_at(s, l, h);
            double value =
                is_entropy ? mean(x->entropy, x->n_rows) : mean(x->within[WINDOW_SHOWN], x->n_rows);
            double shade = is_entropy ? value / 6 : value;
            int light = (int)(245 - 190 * (shade < 0 ? 0 : shade > 1 ? 1 : shade));
            int px = left + h * CELL, py = MARGIN + l * CELL;
            TRY(buf_printf(to,
                           "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                           "fill=\"rgb(%d,%d,245)\"/>\n",
                           px, py, CELL - 2, CELL - 2, light, light));
            TRY(buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">",
                           px + CELL / 2 - 1, py + CELL / 2 + 4, light < 130 ? "white" : "black"));
            TRY(is_entropy ? buf_printf(to, "%.1f</text>\n", value)
                           : buf_printf(to, "%.0f</text>\n", 100 * value));
        }
    return OK;
}

status encoder_scores_svg(const encoder_scores *s, buf *to) {
    int width = s->n_heads * CELL, height = MARGIN + s->n_layers * CELL + 10;
    int second = MARGIN + (width > 230 ? width : 230) + GAP;
    TRY(buf_printf(to,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                   "font-family=\"sans-serif\" font-size=\"11\">\n"
                   "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                   second + (width > 230 ? width : 230) + GAP, height));
    for (int32_t l = 0; l < s->n_layers; l++)
        TRY(buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n", MARGIN - 8,
                       MARGIN + l * CELL + CELL / 2 + 4, l));
    TRY(put_map(s, to, MARGIN, "% of the weight within 16 tokens", false));
    TRY(put_map(s, to, second, "entropy of a row, nats", true));
    return buf_text(to, "</svg>\n");
}
