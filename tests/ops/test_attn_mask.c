/* Every view of ops/attn_mask.h against the rule of ops.h, pair by pair: kernels on any device ask
 * the same functions. */
#include "attn_sample.h"
#include "ops/attn_mask.h"

/* func whose spans are near the row; func whose rows all see the first keys and none the last. */
enum { SAMPLE_SPARSE = N_SAMPLE_MASKS, SAMPLE_STEP, N_KINDS };

typedef struct rig {
    sample s;
    inputs in;
    attn_func_tile *tiles;
} rig;

static void make_rig(rig *r, int kind, bool has_delta, bool has_tiles) {
    const int32_t lengths[] = {200, 1, 63, 129, 0, 300};
    sample_make(&r->s, &r->in, lengths, 6, has_delta, 1, 8, 8);
    attn_args *a = &r->s.a;
    sample_mask(a, &r->in, kind >= SAMPLE_SPARSE ? SAMPLE_FUNC : (sample_mask_kind)kind);
    for (int64_t i = 0; kind == SAMPLE_SPARSE && i < a->n_func * a->func_stride; i++) {
        int32_t row = (int32_t)(i % a->func_stride);
        bool is_first = i < a->func_stride;
        r->in.func[i] = is_first ? (row % 3 == 0 ? 2 : INT32_MIN)
                                 : row / 2 % 256 + (int32_t)rng_below(sample_draw(), 90) - 20;
    }
    for (int64_t i = 0; kind == SAMPLE_STEP && i < a->n_func * a->func_stride; i++)
        r->in.func[i] = i < a->func_stride ? 100 + (int32_t)(i % 7) : 0;
    r->tiles = NULL;
    if (a->func == NULL || !has_tiles) return;
    int64_t n = attn_func_tiles_count(a);
    CHECK_OK(mem_alloc((void **)&r->tiles, (size_t)n, sizeof *r->tiles));
    a->func_tiles = r->tiles;
    for (int32_t b = 0; b < a->n_sequences; b++) {
        attn_sequence s = attn_sequence_of(a, b);
        for (int first = 0; first < s.len_q; first += ATTN_FUNC_ROWS) {
            attn_func_tile tile = attn_func_tile_of(a, &s, first);
            for (int row = first + 1; row < first + ATTN_FUNC_ROWS; row++)
                tile = attn_func_tile_join(tile, attn_func_tile_of(a, &s, row));
            CHECK(attn_func_tile_index(&s, first) < n);
            r->tiles[attn_func_tile_index(&s, first)] = tile;
        }
    }
}

static void free_rig(rig *r) {
    mem_free(r->tiles);
    sample_free(&r->s);
    sample_free_inputs(&r->in);
}

static bool sees(const attn_args *a, const attn_sequence *s, int row, int j) {
    if (row >= s->len_q || j >= s->len_k) return false;
    attn_row_mask m = attn_row_spans(a, s, row);
    return attn_row_sees(a, s, &m, row, j);
}

static bool is_in(attn_span span, int x) {
    return x >= span.begin && x < span.end;
}

/* The rule in the words of ops.h. */
static bool rule(const attn_args *a, const attn_sequence *s, int row, int j) {
    int i = row + s->shift, h = s->history;
    if (a->func != NULL) {
        const int32_t *f = a->func + s->row_q + row;
        bool is_seen = j < f[0];
        for (int m = 1; 2 * m < a->n_func; m++)
            is_seen |= f[(2 * m - 1) * a->func_stride] <= j && j < f[2 * m * a->func_stride];
        return is_seen;
    }
    if (i < s->n_contexts && j < h) return true;
    if (i >= h && j >= h && j < h + (i - h) / a->target_group * a->target_group) return false;
    return (a->window_left < 0 || j >= i - a->window_left) &&
           (a->window_right < 0 || j <= i + a->window_right);
}

TEST(attn_mask_rows_and_keys) {
    for (int kind = 0; kind < N_KINDS; kind++) {
        rig r;
        make_rig(&r, kind, kind % 2 == 0, true);
        const attn_args *a = &r.s.a;
        for (int32_t b = 0; b < a->n_sequences; b++) {
            attn_sequence s = attn_sequence_of(a, b);
            for (int row = 0; row < s.len_q; row++) {
                for (int j = 0; j < s.len_k; j++) {
                    bool want = rule(a, &s, row, j);
                    CHECK_EQ(sees(a, &s, row, j), want);
                    if (a->func != NULL) continue;
                    attn_key_mask m = attn_key_spans(a, &s, j);
                    CHECK_EQ(is_in(m.own, row + s.shift) || is_in(m.contexts, row + s.shift), want);
                }
            }
        }
        free_rig(&r);
    }
}

/* Over every tile: the reports of empty and full are right, and so are the ranges of visible keys,
 * of full keys, of the hole and of queries.  Returns how many tiles were called empty and full. */
static void check_tiles(const attn_args *a, int rows, int keys, int *n_empty, int *n_full) {
    for (int32_t b = 0; b < a->n_sequences; b++) {
        attn_sequence s = attn_sequence_of(a, b);
        for (int row0 = 0; row0 < s.len_q; row0 += rows) {
            attn_span seen = attn_keys_seen(a, &s, row0, rows);
            attn_span full = attn_keys_full(a, &s, row0, rows);
            attn_span hole = attn_keys_hole(a, &s, row0);
            for (int j0 = 0; j0 < s.len_k; j0 += keys) {
                attn_span seeing = attn_queries_seeing(a, &s, j0, keys);
                bool is_empty = attn_tile_is_empty(a, &s, row0, row0 + rows, j0, j0 + keys);
                bool is_full = attn_tile_is_full(a, &s, row0, row0 + rows, j0, j0 + keys);
                *n_empty += is_empty;
                *n_full += is_full;
                for (int row = row0; row < row0 + rows && row < s.len_q; row++) {
                    for (int j = j0; j < j0 + keys && j < s.len_k; j++) {
                        bool is_seen = sees(a, &s, row, j);
                        CHECK(!is_seen || (!is_empty && is_in(seen, j) && !is_in(hole, j)));
                        CHECK(!is_seen || is_in(seeing, row));
                        CHECK(is_seen || (!is_full && !is_in(full, j)));
                    }
                }
            }
        }
    }
}

TEST(attn_mask_tiles) {
    const int sizes[][2] = {{64, 64}, {192, 128}, {16, 32}, {240, 64}, {32, 128}};
    for (int kind = 0; kind < N_KINDS; kind++) {
        rig r;
        make_rig(&r, kind, kind % 2 == 1, true);
        int n_empty = 0, n_full = 0;
        for (int i = 0; i < 5; i++)
            check_tiles(&r.s.a, sizes[i][0], sizes[i][1], &n_empty, &n_full);
        CHECK(n_empty > 0 || kind == SAMPLE_FULL || kind == SAMPLE_FUNC);
        CHECK(n_full > 0 || kind == SAMPLE_WINDOW || kind == SAMPLE_FUNC || kind == SAMPLE_SPARSE);
        free_rig(&r);
    }
}

/* Without the summary every tile of a func mask is partial. */
TEST(attn_mask_func_without_summary) {
    rig r;
    int n_empty = 0, n_full = 0;
    make_rig(&r, SAMPLE_SPARSE, false, false);
    check_tiles(&r.s.a, 64, 64, &n_empty, &n_full);
    CHECK_EQ(n_empty, 0);
    CHECK_EQ(n_full, 0);
    free_rig(&r);
}
