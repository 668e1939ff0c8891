#include "cli/bench/attn_peers.h"

#include <math.h>

enum { HEADS = 4 };

/* Microseconds of a call, and the TFLOP/s that were printed beside them, rounded. */
typedef struct figure {
    double us, tflops;
} figure;

typedef struct peer_row {
    int32_t dim, n_sequences, max_len;
    bool is_jagged;
    int32_t n_tokens;
    figure of[N_PEERS][N_PASSES];
} peer_row;

/* {Hopper {forward, backward}, Ampere {forward, backward}} */
static const peer_row plain_rows[] = {
    {64, 32, 1024, false, 32768, {{{135, 127}, {330, 130}}, {{112, 154}, {442, 97}}}},
    {64, 32, 4096, false, 131072, {{{767, 359}, {1983, 347}}, {{947, 290}, {3605, 191}}}},
    {64, 32, 4096, true, 70793, {{{324, 303}, {998, 246}}, {{436, 225}, {1583, 155}}}},
    {64, 128, 512, true, 33741, {{{119, 50}, {299, 50}}, {{79, 75}, {314, 47}}}},
    {64, 128, 200, true, 12599, {{{87, 10}, {293, 7}}, {{54, 16}, {142, 15}}}},
    {128, 32, 1024, false, 32768, {{{166, 207}, {411, 209}}, {{190, 181}, {643, 134}}}},
    {128, 32, 4096, false, 131072, {{{1015, 542}, {3390, 405}}, {{1796, 306}, {5687, 242}}}},
    {128, 32, 4096, true, 71283, {{{492, 428}, {1545, 341}}, {{849, 248}, {2672, 197}}}},
    {128, 128, 512, true, 32024, {{{127, 86}, {334, 82}}, {{142, 77}, {591, 46}}}},
    {128, 128, 200, true, 12825, {{{87, 21}, {240, 19}}, {{83, 22}, {484, 9}}}},
    {256, 32, 1024, false, 32768, {{{213, 323}, {744, 231}}, {{349, 197}, {1154, 149}}}},
    {256, 32, 4096, false, 131072, {{{1701, 646}, {7637, 360}}, {{3414, 322}, {11810, 233}}}},
    {256, 32, 4096, true, 61242, {{{694, 504}, {2822, 310}}, {{1289, 272}, {4350, 201}}}},
    {256, 128, 512, true, 34057, {{{178, 133}, {582, 102}}, {{252, 94}, {789, 75}}}},
    {256, 128, 200, true, 12024, {{{100, 33}, {250, 33}}, {{113, 30}, {318, 26}}}},
};

static const peer_row replay_rows[] = {
    {64, 32, 1024, false, 32768, {{{77, 223}, {180, 238}}, {{83, 206}, {285, 150}}}},
    {64, 32, 4096, false, 131072, {{{708, 388}, {1928, 357}}, {{900, 306}, {3228, 213}}}},
    {64, 32, 4096, true, 68308, {{{293, 355}, {810, 321}}, {{379, 274}, {1368, 190}}}},
    {64, 128, 512, true, 32206, {{{63, 90}, {139, 102}}, {{56, 101}, {181, 78}}}},
    {64, 128, 200, true, 12276, {{{27, 30}, {68, 29}}, {{20, 40}, {72, 28}}}},
    {64, 512, 50, true, 13025, {{{63, 4}, {168, 3}}, {{35, 6}, {131, 4}}}},
    {128, 32, 1024, false, 32768, {{{95, 361}, {293, 293}}, {{158, 217}, {482, 178}}}},
    {128, 32, 4096, false, 131072, {{{1113, 494}, {3289, 418}}, {{1758, 313}, {5300, 259}}}},
    {128, 32, 4096, true, 62410, {{{396, 438}, {1142, 380}}, {{623, 279}, {1930, 225}}}},
    {128, 128, 512, true, 32825, {{{79, 141}, {197, 142}}, {{104, 107}, {291, 96}}}},
    {128, 128, 200, true, 13038, {{{35, 50}, {91, 49}}, {{43, 41}, {115, 38}}}},
    {128, 512, 50, true, 12966, {{{69, 6}, {174, 6}}, {{80, 6}, {201, 6}}}},
    {256, 32, 1024, false, 32768, {{{156, 442}, {641, 268}}, {{291, 236}, {944, 182}}}},
    {256, 32, 4096, false, 131072, {{{1945, 565}, {7806, 352}}, {{3487, 315}, {11437, 240}}}},
    {256, 32, 4096, true, 60199, {{{684, 487}, {2547, 327}}, {{1171, 284}, {3930, 212}}}},
    {256, 128, 512, true, 33936, {{{117, 214}, {403, 155}}, {{185, 135}, {586, 106}}}},
    {256, 128, 200, true, 12375, {{{42, 77}, {146, 56}}, {{61, 53}, {193, 42}}}},
    {256, 512, 50, true, 13259, {{{72, 13}, {234, 10}}, {{116, 8}, {317, 7}}}},
};

static const peer_row *find(const attn_shape *s, attn_timing how) {
    const peer_row *rows = how == TIMED_PLAIN ? plain_rows : replay_rows;
    size_t n = how == TIMED_PLAIN ? sizeof plain_rows / sizeof *plain_rows
                                  : sizeof replay_rows / sizeof *replay_rows;
    if (s->mask != ATTN_CAUSAL || s->bias != BIAS_NONE || s->n_heads != HEADS) return NULL;
    for (size_t i = 0; i < n; i++)
        if (rows[i].dim == s->dim && rows[i].n_sequences == s->n_sequences &&
            rows[i].max_len == s->max_len && rows[i].is_jagged == s->is_jagged)
            return &rows[i];
    return NULL;
}

/* For short sequences the printed TFLOP/s have one digit, so the time is more precise.  This
 * computes the figure from the time (lengths uniform in 1..S have a mean square of (2 S + 1) / 3
 * times their mean), and clamps it to the values that round to the printed figure. */
double attn_peer_tflops(const attn_shape *s, attn_peer peer, attn_timing how, attn_pass pass) {
    const peer_row *r = find(s, how);
    if (r == NULL) return NAN;
    const figure *f = &r->of[peer][pass];
    double mean_len = r->is_jagged ? (2.0 * r->max_len + 1) / 3 : r->max_len;
    double flops = 4.0 * HEADS * r->dim * r->n_tokens * mean_len / 2;
    double from_time = (pass == PASS_FORWARD ? 1 : 2.5) * flops / f->us / 1e6;
    return fmin(fmax(from_time, f->tflops - 0.5), f->tflops + 0.5);
}

double attn_peer_best(const attn_shape *s, bool is_any_card, attn_timing how, attn_pass pass) {
    double ampere = attn_peer_tflops(s, PEER_AMPERE, how, pass);
    return is_any_card ? ampere : fmax(ampere, attn_peer_tflops(s, PEER_HOPPER, how, pass));
}
