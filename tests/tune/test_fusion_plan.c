#include "tune/fusion_plan.h"

#include "base/rng.h"
#include "oom.h"
#include "test.h"

static const chain_shape base = {
    .n_sequences = 1, .max_len = 128, .n_heads = 12, .dim_head = 64, .n_tokens = 128};

static void line_of(const char *plan, char *text, size_t n) {
    fusion_plan p;
    buf line = {0};
    CHECK_OK(plan_parse(plan, &p));
    CHECK_OK(plan_line(&p, &line));
    snprintf(text, n, "%s", buf_str(&line));
    buf_fini(&line);
}

TEST(published_plans) {
    static const char *const cases[][2] = {{"0001101010101010", "6826 0 2 1 2 3 4"},
                                           {"6826", "6826 0 2 1 2 3 4"},
                                           {"0000010101010101", "1365 0 1 1 4"},
                                           {"0011111010010110", "16022 0 3 2 6 9 10 13 14"},
                                           {"0101010101010101", "21845 0 0"},
                                           {"41115", "41115 1 4 3 7 9 10 11 12 14 15"},
                                           {"0", "0 0 1 1 15"},
                                           {"65535", "65535 1 1 1 15"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        line_of(cases[i][0], text, sizeof text);
        CHECK_STR(text, cases[i][1]);
    }
}

/* The line of a plan by way of its text: runs of equal characters. */
static void line_by_text(unsigned value, char *out) {
    char bits[17], list[128] = "";
    for (int i = 0; i < 16; i++, value *= 2)
        bits[i] = value & 0x8000 ? '1' : '0';
    bits[16] = '\0';
    int n = 0;
    for (const char *at = bits + 1; *at != '\0';) {
        char only[2] = {*at, '\0'};
        int run = (int)strspn(at, only), start = (int)(at - bits);
        if (run > 1) {
            sprintf(list + strlen(list), " %d %d", start, start + run - 1);
            n++;
        }
        at += run;
    }
    sprintf(out, "%lu %c %d%s", strtoul(bits, NULL, 2), bits[0], n, list);
}

TEST(random_plans_by_an_independent_way) {
    rng_key key = rng_make_key(19, RNG_TEST);
    for (uint32_t i = 0; i < 1000; i++) {
        unsigned value = rng_draw(key, i, 0, 0, 0).word[0] >> 16;
        char number[8], bits[PLAN_BITS + 1], want[160], got[160];
        line_by_text(value, want);
        snprintf(number, sizeof number, "%u", value);
        plan_bits((uint16_t)value, bits);
        line_of(number, got, sizeof got);
        CHECK_STR(got, want);
        line_of(bits, got, sizeof got);
        CHECK_STR(got, want);
    }
}

TEST(bad_plans) {
    fusion_plan p;
    CHECK_FAILS(plan_parse("65536", &p), ERR_USAGE, "beyond 65535");
    CHECK_FAILS(plan_parse("100000000000000000000", &p), ERR_USAGE, "21 bits");
    CHECK_FAILS(plan_parse("99999999999999999999", &p), ERR_USAGE, "beyond 65535");
    CHECK_FAILS(plan_parse("000110101010101", &p), ERR_USAGE, "has 15 bits");
    CHECK_FAILS(plan_parse("0110", &p), ERR_USAGE, "has 4 bits");
    CHECK_OK(plan_parse("110", &p));
    CHECK_EQ(p.value, 110);
    CHECK_OK(plan_parse("0", &p));
    CHECK_FAILS(plan_parse("00011010101010101", &p), ERR_USAGE, "has 17 bits");
    CHECK_FAILS(plan_parse("0001101010101012", &p), ERR_USAGE, "beyond");
    CHECK_FAILS(plan_parse("000110101010101x", &p), ERR_USAGE, "neither");
    CHECK_FAILS(plan_parse("", &p), ERR_USAGE, "neither");
    CHECK_FAILS(plan_parse("-1", &p), ERR_USAGE, "neither");
    CHECK_FAILS(plan_parse(" 1", &p), ERR_USAGE, "neither");
    CHECK_OK(plan_parse("10101", &p));
    CHECK_EQ(p.value, 10101);
}

TEST(segments_as_text) {
    uint16_t value;
    CHECK_OK(plan_from_segments("1-2,3-4", false, &value));
    CHECK_EQ(value, 6826);
    CHECK_OK(plan_from_segments("3-7,9-10,11-12,14-15", true, &value));
    CHECK_EQ(plan_canonical(chain_of(CHAIN_BERT), value),
             plan_canonical(chain_of(CHAIN_BERT), 41115));
    static const char *const bad[] = {
        "",        "1",    "1-",    "1-1",     "2-1",
        "0-2",     "1-16", "1-2,",  "1-2 3-4", "1-3,3-4",
        "5-6,1-2", "a-b",  "1-2,,", "-1-2",    "1-99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(plan_from_segments(bad[i], false, &value), ERR_USAGE, "--segments");
}

/* Every code as the set of its cuts and whether bit 0 acts, computed here by other means. */
static unsigned program_of(const chain *c, unsigned value) {
    unsigned cuts = (value ^ value >> 1) & 0x3fff, joined = 0;
    for (int op = c->attention_first + 1; op <= c->attention_last; op++)
        joined |= 1u << (14 - op);
    unsigned around = 1u << (15 - 1 - c->attention_first) | 1u << (14 - (c->attention_last + 1));
    bool is_alone = (cuts & joined) == 0 && (cuts & around) == around;
    return cuts | (is_alone && value >> 15 ? 1u << 14 : 0);
}

TEST(distinct_programs) {
    for (int layer = 0; layer < N_CHAINS; layer++) {
        const chain *c = chain_of((chain_layer)layer);
        static int32_t first[1 << 15];
        int n = 0;
        memset(first, -1, sizeof first);
        for (unsigned v = 0; v < PLAN_CODES; v++) {
            uint16_t canonical = plan_canonical(c, (uint16_t)v);
            unsigned program = program_of(c, v);
            CHECK_EQ(program_of(c, canonical), program);
            CHECK_EQ(plan_canonical(c, canonical), canonical);
            CHECK_EQ(plan_canonical(c, (uint16_t)(v ^ 0x7fff)), canonical);
            if (first[program] < 0) {
                first[program] = canonical;
                n++;
            }
            CHECK_EQ(first[program], canonical);
        }
        CHECK_EQ(n, PLAN_PROGRAMS);
        CHECK_EQ(n, 16640);
    }
}

/* The kernels of a program are all operators in order, each one legal, and no longer one would be:
 * neither with the next operator of its segment, nor with any more of them. */
static void check_program(const chain *c, const chain_shape *shape, uint16_t value) {
    plan_program p;
    int next = 0;
    plan_lower(c, shape, value, &p);
    for (int i = 0; i < p.n_kernels; i++) {
        const plan_kernel *k = &p.kernel[i];
        CHECK_EQ(k->first, next);
        CHECK(k->last >= k->first && k->from != TEMPLATE_NONE);
        CHECK(plan_template(c, shape, k->first, k->last, NULL) != TEMPLATE_NONE);
        int end = k->segment < 0 ? k->last : p.plan.segment[k->segment].last;
        CHECK((k->why[0] != '\0') == (k->last < end));
        for (int last = k->last + 1; last <= end; last++)
            CHECK_EQ(plan_template(c, shape, k->first, last, NULL), TEMPLATE_NONE);
        next = k->last + 1;
    }
    CHECK_EQ(next, CHAIN_OPS);
}

TEST(kernels_cover_the_chain) {
    chain_shape wide = base;
    wide.max_len = 4096;
    wide.dim_head = 320;
    for (int layer = 0; layer < N_CHAINS; layer++)
        for (unsigned v = 0; v < PLAN_CODES; v += 7) {
            check_program(chain_of((chain_layer)layer), &base, (uint16_t)v);
            check_program(chain_of((chain_layer)layer), &wide, (uint16_t)v);
        }
}

static kernel_template of(chain_layer layer, int first, int last) {
    return plan_template(chain_of(layer), &base, first - 1, last - 1, NULL);
}

TEST(templates_of_segments) {
    CHECK_EQ(of(CHAIN_BERT, 1, 2), TEMPLATE_PRODUCT);
    CHECK_EQ(of(CHAIN_BERT, 3, 5), TEMPLATE_PRODUCT_NORM);
    CHECK_EQ(of(CHAIN_BERT, 4, 5), TEMPLATE_REDUCTION);
    CHECK_EQ(of(CHAIN_BERT, 3, 6), TEMPLATE_ATTENTION);
    CHECK_EQ(of(CHAIN_BERT, 3, 7), TEMPLATE_ATTENTION);
    CHECK_EQ(of(CHAIN_BERT, 6, 7), TEMPLATE_PRODUCT);
    CHECK_EQ(of(CHAIN_BERT, 8, 10), TEMPLATE_PRODUCT_NORM);
    CHECK_EQ(of(CHAIN_BERT, 9, 10), TEMPLATE_REDUCTION);
    CHECK_EQ(of(CHAIN_BERT, 11, 13), TEMPLATE_TWO_PRODUCTS);
    CHECK_EQ(of(CHAIN_BERT, 11, 14), TEMPLATE_TWO_PRODUCTS);
    CHECK_EQ(of(CHAIN_BERT, 11, 15), TEMPLATE_NONE);
    CHECK_EQ(of(CHAIN_BERT, 7, 8), TEMPLATE_NONE);
    CHECK_EQ(of(CHAIN_BERT, 5, 6), TEMPLATE_NONE);
    CHECK_EQ(of(CHAIN_HSTU, 1, 2), TEMPLATE_NONE);
    CHECK_EQ(of(CHAIN_HSTU, 2, 5), TEMPLATE_PRODUCT);
    CHECK_EQ(of(CHAIN_HSTU, 6, 10), TEMPLATE_ATTENTION);
    CHECK_EQ(of(CHAIN_HSTU, 10, 11), TEMPLATE_NONE);
    CHECK_EQ(of(CHAIN_HSTU, 11, 12), TEMPLATE_REDUCTION);
    CHECK_EQ(of(CHAIN_HSTU, 7, 9), TEMPLATE_ELEMENTWISE);
    CHECK_EQ(of(CHAIN_SASREC, 4, 10), TEMPLATE_ATTENTION);
    CHECK_EQ(of(CHAIN_SASREC, 8, 10), TEMPLATE_PRODUCT);
    CHECK_EQ(of(CHAIN_SASREC, 12, 15), TEMPLATE_TWO_PRODUCTS);
}

TEST(limits_of_rows_are_told) {
    chain_shape s = base;
    char why[PLAN_WHY_BYTES];
    const chain *c = chain_of(CHAIN_BERT);
    s.max_len = PLAN_MAX_ROW + 1;
    CHECK_EQ(plan_template(c, &s, 2, 4, why), TEMPLATE_NONE);
    CHECK_CONTAINS(why, "softmax needs whole rows of 1025 columns");
    s.max_len = PLAN_MAX_ROW;
    CHECK_EQ(plan_template(c, &s, 2, 4, why), TEMPLATE_PRODUCT_NORM);
    s.n_heads = 17; /* E = 1088 */
    CHECK_EQ(plan_template(c, &s, 7, 9, why), TEMPLATE_NONE);
    CHECK_CONTAINS(why, "1088");
    CHECK_EQ(plan_template(c, &s, 10, 12, why), TEMPLATE_NONE);
    s.n_heads = 1;
    s.dim_head = PLAN_MAX_HEAD_DIM + 1;
    CHECK_EQ(plan_template(c, &s, 2, 6, why), TEMPLATE_NONE);
    CHECK_CONTAINS(why, "head dimension 257");
    CHECK_EQ(plan_template(chain_of(CHAIN_HSTU), &base, 9, 10, why), TEMPLATE_NONE);
    CHECK_CONTAINS(why, "norm2 needs rows of 768 columns");
}

/* A value that an operator outside a kernel reads is the kernel's last: kernels store only that. */
TEST(inner_values_stay_inside) {
    for (int layer = 0; layer < N_CHAINS; layer++) {
        const chain *c = chain_of((chain_layer)layer);
        for (int first = 0; first < CHAIN_OPS; first++)
            for (int last = first; last < CHAIN_OPS; last++) {
                if (plan_template(c, &base, first, last, NULL) == TEMPLATE_NONE) continue;
                for (int op = first; op < last; op++)
                    for (int reader = 0; reader < CHAIN_OPS; reader++)
                        for (int i = 0; i < c->op[reader].n_in; i++)
                            if (c->op[reader].in[i] == c->op[op].out[0])
                                CHECK(reader > op && reader <= last);
            }
    }
}

/* Each operator reads what came before it, and writes what nobody wrote before. */
TEST(chains_are_in_order) {
    for (int layer = 0; layer < N_CHAINS; layer++) {
        const chain *c = chain_of((chain_layer)layer);
        bool is_written[CHAIN_MAX_TENSORS] = {true};
        for (int t = 1; t < c->n_tensors; t++)
            is_written[t] = c->tensor[t].layout >= LAYOUT_MATRIX;
        for (int op = 0; op < CHAIN_OPS; op++) {
            for (int i = 0; i < c->op[op].n_in; i++)
                CHECK(is_written[c->op[op].in[i]]);
            for (int i = 0; i < c->op[op].n_out; i++) {
                CHECK(!is_written[c->op[op].out[i]]);
                is_written[c->op[op].out[i]] = true;
            }
        }
        for (int t = 0; t < c->n_tensors; t++)
            CHECK(is_written[t] && c->tensor[t].name != NULL);
        CHECK_EQ(c->op[CHAIN_OPS - 1].out[0], c->output);
        CHECK_EQ(c->op[c->attention_first].kind, OP_SCORES);
    }
}

static status draw(void *ctx) {
    plan_program p;
    buf out = {0};
    (void)ctx;
    plan_lower(chain_of(CHAIN_BERT), &base, 41115, &p);
    status st = plan_line(&p.plan, &out);
    if (st == OK) st = plan_draw(chain_of(CHAIN_BERT), &p, &out);
    if (st == OK) CHECK_CONTAINS(buf_str(&out), "</svg>");
    if (st == OK) CHECK_CONTAINS(buf_str(&out), "hand-written attention");
    buf_fini(&out);
    return st;
}

/* The frames of a drawing, by their numbers: each around its kernel's operators. */
TEST(drawings_frame_each_kernel) {
    plan_program p;
    buf out = {0};
    for (unsigned value = 41115; value < 41115 + 40; value += 13) {
        const char *at;
        plan_lower(chain_of(CHAIN_BERT), &base, (uint16_t)value, &p);
        buf_clear(&out);
        CHECK_OK(plan_draw(chain_of(CHAIN_BERT), &p, &out));
        at = buf_str(&out);
        for (int i = 0; i < CHAIN_OPS; i++) {
            char box[64];
            snprintf(box, sizeof box, " x=\"%d\" y=\"58\" width=\"74\"", 16 + 80 * i);
            CHECK((at = strstr(at, box)) != NULL);
            snprintf(box, sizeof box, ">%d ", i + 1);
            CHECK((at = strstr(at, box)) != NULL);
        }
        for (int i = 0; i < p.n_kernels; i++) {
            const plan_kernel *k = &p.kernel[i];
            int x = 0, width = 0, number = 0;
            bool is_cut = k->why[0] != '\0';
            CHECK((at = strstr(at, "<rect class=\"kernel")) != NULL);
            CHECK_EQ(strncmp(at + 19, " hand", 5) == 0, k->from == TEMPLATE_HAND_WRITTEN);
            CHECK_EQ(sscanf(strstr(at, " x="), " x=\"%d\" y=\"52\" width=\"%d", &x, &width), 2);
            CHECK(x == 16 + 80 * k->first - 4 && x + width == 16 + 80 * k->last + 74 + 4);
            CHECK((at = strstr(at, ">kernel ")) != NULL);
            CHECK(sscanf(at, ">kernel %d<", &number) == 1 && number == i + 1);
            const char *next = strstr(at, "<rect"), *line = strstr(at, "<line");
            CHECK_EQ(line != NULL && (next == NULL || line < next), is_cut);
        }
        CHECK(strstr(at, "<rect") == NULL);
    }
    buf_fini(&out);
}

TEST(drawing_without_memory) {
    CHECK_OK(draw(NULL));
    CHECK(oom_at_each_allocation(draw, NULL) > 0);
}
