#include "encode/encoder_io.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

static const char VOCABULARY[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\n";
enum { UNKNOWN = 1, CLS, SEP, A, B, C };

static tokenizer *pieces(void) {
    tokenizer *t;
    word_piece_options o = {true, true, true};
    CHECK_OK(tokenizer_of_lines(&t, "v", VOCABULARY, sizeof VOCABULARY - 1, &o));
    return t;
}

static void check_ints(const int32_t *got, const int32_t *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(got[i], want[i]);
}

static void check_line(const char *text, int64_t max_len, bool is_cut, const int32_t *ids,
                       const int32_t *types, size_t n) {
    encoder_line l = {0};
    tokenizer *p = pieces();
    CHECK_OK(encoder_line_parse(&l, text, strlen(text), p, max_len, is_cut));
    CHECK_EQ(l.n, n);
    check_ints(l.ids, ids, n);
    CHECK_EQ(l.has_types, types != NULL);
    if (types != NULL) check_ints(l.types, types, n);
    encoder_line_fini(&l);
    tokenizer_destroy(p);
}
#define INTS(...)                                                                                  \
    (const int32_t[]) {                                                                            \
        __VA_ARGS__                                                                                \
    }

TEST(encoder_input_lines) {
    check_line("{\"ids\": [5, 0, 7]}", 9, false, INTS(5, 0, 7), NULL, 3);
    check_line("{\"types\": [0, 1], \"ids\": [5, 6]}", 9, false, INTS(5, 6), INTS(0, 1), 2);
    check_line("{\"ids\": []}", 9, false, INTS(0), NULL, 0);
    check_line("{\"text\": \"A b\"}", 9, false, INTS(CLS, A, B, SEP), NULL, 4);
    check_line("{\"text\": \"a\", \"pair\": \"b x\"}", 9, false, INTS(CLS, A, SEP, B, UNKNOWN, SEP),
               INTS(0, 0, 0, 1, 1, 1), 6);
    check_line("{\"text\": \"\"}", 9, false, INTS(CLS, SEP), NULL, 2);
}

/* As transformers' truncation=True: the longer text first, then both to halves. */
TEST(encoder_input_cuts_texts) {
    check_line("{\"text\": \"a b c\"}", 4, true, INTS(CLS, A, B, SEP), NULL, 4);
    check_line("{\"text\": \"a b c\"}", 5, true, INTS(CLS, A, B, C, SEP), NULL, 5);
    check_line("{\"text\": \"a b c\"}", 2, true, INTS(CLS, SEP), NULL, 2);
    check_line("{\"text\": \"a b c a\", \"pair\": \"b\"}", 6, true, INTS(CLS, A, B, SEP, B, SEP),
               INTS(0, 0, 0, 0, 1, 1), 6);
    check_line("{\"text\": \"a\", \"pair\": \"b c a\"}", 6, true, INTS(CLS, A, SEP, B, C, SEP),
               INTS(0, 0, 0, 1, 1, 1), 6);
    check_line("{\"text\": \"a b c a\", \"pair\": \"b c a b c\"}", 8, true,
               INTS(CLS, A, B, SEP, B, C, A, SEP), INTS(0, 0, 0, 0, 1, 1, 1, 1), 8);
    check_line("{\"text\": \"a b c a b\", \"pair\": \"b c a b\"}", 8, true,
               INTS(CLS, A, B, C, SEP, B, C, SEP), INTS(0, 0, 0, 0, 0, 1, 1, 1), 8);
    check_line("{\"text\": \"a b c\", \"pair\": \"b c a\"}", 8, true,
               INTS(CLS, A, B, SEP, B, C, A, SEP), INTS(0, 0, 0, 0, 1, 1, 1, 1), 8);
}

TEST(encoder_input_wrong_lines) {
    static const struct {
        const char *text, *word;
        status code;
    } all[] = {
        {"[1]", "object", ERR_FORMAT},
        {"{\"ids\": 5}", "ids is not a list", ERR_FORMAT},
        {"{\"ids\": [1, \"x\"]}", "token 1", ERR_FORMAT},
        {"{\"ids\": [1.5]}", "token 0", ERR_FORMAT},
        {"{\"ids\": [3000000000]}", "32 bits", ERR_FORMAT},
        {"{\"ids\": [1], \"types\": [0, 0]}", "types", ERR_FORMAT},
        {"{\"ids\": [1], \"types\": 3}", "types", ERR_FORMAT},
        {"{\"ids\": [1], \"text\": \"a\"}", "either", ERR_FORMAT},
        {"{\"words\": [1]}", "either", ERR_FORMAT},
        {"{\"ids\": [1], \"pair\": \"a\"}", "\"pair\" to \"text\"", ERR_FORMAT},
        {"{\"text\": \"a\", \"types\": [0]}", "\"types\" belongs", ERR_FORMAT},
        {"{\"text\": 5}", "strings", ERR_FORMAT},
        {"{\"text\": \"a\", \"pair\": []}", "strings", ERR_FORMAT},
        {"{\"text\": \"a b c\"}", "--truncate", ERR_FORMAT},
        {"{\"ids\": [1]", "JSON", ERR_FORMAT},
    };
    encoder_line l = {0};
    tokenizer *p = pieces();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_FAILS(encoder_line_parse(&l, all[i].text, strlen(all[i].text), p, 4, false),
                    all[i].code, all[i].word);
        CHECK_EQ(l.n, 0);
    }
    CHECK_FAILS(encoder_line_parse(&l, "{\"text\": \"a\"}", 13, NULL, 4, false), ERR_FORMAT, "ids");
    CHECK_FAILS(encoder_line_parse(&l, "{\"text\": \"a\"}", 13, p, 1, true), ERR_FORMAT, "tokens");
    encoder_line_fini(&l);
    tokenizer_destroy(p);
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(path_of(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(encoder_input_of_a_file) {
    encoder_input *in;
    encoder_sequence s;
    bool is_end;
    uint64_t done, total;
    log_set_level(LOG_QUIET);
    write_text("in.jsonl", "{\"ids\": [1, 2]}\n\n  \r\n{\"ids\": [3], \"n\": 1}\r\n{\"ids\": 4}");
    CHECK_OK(encoder_input_open(&in, path_of("in.jsonl"), NULL, 10, false));
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 2 && s.ids[1] == 2 && s.types == NULL);
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 1 && s.ids[0] == 3);
    CHECK_FAILS(encoder_input_next(in, &s, &is_end), ERR_FORMAT, "in.jsonl: line 5: ids");
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(is_end);
    encoder_input_progress(in, &done, &total);
    CHECK(done == total && total > 0);
    CHECK_STR(encoder_input_unit(in), "B");
    encoder_input_close(in);
    CHECK_FAILS(encoder_input_open(&in, path_of("none.jsonl"), NULL, 10, false), ERR_IO, "none");
}

/* A line longer than the blocks in which the file is read. */
TEST(encoder_input_long_line) {
    enum { N = 40000 };
    encoder_input *in;
    encoder_sequence s;
    bool is_end;
    FILE *f = fopen(path_of("long.jsonl"), "w");
    CHECK(f != NULL && fputs("{\"ids\": [0", f) >= 0);
    for (int i = 1; i < N; i++)
        fprintf(f, ", %d", i);
    CHECK(fputs("]}\n{\"ids\": [7]}\n", f) >= 0 && fclose(f) == 0);
    CHECK_OK(encoder_input_open(&in, path_of("long.jsonl"), NULL, 10, false));
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK_EQ(s.n, N);
    for (int i = 0; i < N; i++)
        CHECK_EQ(s.ids[i], i);
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(s.n == 1 && s.ids[0] == 7);
    encoder_input_close(in);
}

static const int64_t LENGTHS[] = {2, 0, 1}, WIDE_IDS[] = {4, 5, 6};
static const int32_t TYPES[] = {0, 1, 1};

static st_tensor ints(const char *name, st_dtype type, const void *data, int64_t n) {
    return (st_tensor){
        .name = name, .dtype = type, .n_dims = 1, .shape = {n}, .n = n, .data = data};
}

TEST(encoder_input_of_tensors) {
    const st_tensor t[] = {ints("lengths", ST_I64, LENGTHS, 3), ints("ids", ST_I64, WIDE_IDS, 3),
                           ints("types", ST_I32, TYPES, 3)};
    encoder_input *in;
    encoder_sequence s;
    bool is_end;
    uint64_t done, total;
    CHECK_OK(st_write(path_of("in.safetensors"), t, 3, NULL, 0));
    CHECK_OK(encoder_input_open(&in, path_of("in.safetensors"), NULL, 10, false));
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 2 && s.ids[0] == 4 && s.ids[1] == 5 && s.types[1] == 1);
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 0);
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 1 && s.ids[0] == 6 && s.types[0] == 1);
    CHECK_FAILS(encoder_input_blame(in, fail(ERR_FORMAT, "bad")), ERR_FORMAT, "sequence 2: bad");
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(is_end);
    encoder_input_progress(in, &done, &total);
    CHECK(done == 3 && total == 3);
    encoder_input_close(in);
}

/* A byte before them moves tensors off the addresses of their types. */
TEST(encoder_input_of_tensors_at_odd_addresses) {
    const st_tensor t[] = {ints("byte", ST_U8, "x", 1), ints("lengths", ST_I64, LENGTHS, 3),
                           ints("ids", ST_I64, WIDE_IDS, 3), ints("types", ST_I32, TYPES, 3)};
    encoder_input *in;
    encoder_sequence s;
    bool is_end;
    CHECK_OK(st_write(path_of("odd.safetensors"), t, 4, NULL, 0));
    CHECK_OK(encoder_input_open(&in, path_of("odd.safetensors"), NULL, 10, false));
    CHECK_OK(encoder_input_next(in, &s, &is_end));
    CHECK(!is_end && s.n == 2 && s.ids[0] == 4 && s.ids[1] == 5 && s.types[1] == 1);
    encoder_input_close(in);
}

TEST(encoder_input_wrong_tensors) {
    static const int64_t too_long[] = {2, 2}, negative[] = {4, -1}, huge[] = {1LL << 40, 1, 1};
    static const float floats[] = {1, 2, 3};
    const struct {
        st_tensor t[3];
        size_t n;
        const char *word;
    } all[] = {
        {{ints("lengths", ST_I64, LENGTHS, 3)}, 1, "no tensor ids"},
        {{ints("ids", ST_I64, WIDE_IDS, 3)}, 1, "no tensor lengths"},
        {{ints("lengths", ST_I64, too_long, 2), ints("ids", ST_I64, WIDE_IDS, 3)}, 2, "lengths[1]"},
        {{ints("lengths", ST_I64, negative, 2), ints("ids", ST_I64, WIDE_IDS, 3)}, 2, "lengths[0]"},
        {{ints("lengths", ST_I64, LENGTHS, 1), ints("ids", ST_I64, WIDE_IDS, 3)}, 2, "sum to 2"},
        {{ints("lengths", ST_I64, LENGTHS, 3), ints("ids", ST_F32, floats, 3)}, 2, "ids is not"},
        {{ints("lengths", ST_I64, LENGTHS, 3), ints("ids", ST_I64, WIDE_IDS, 3),
          ints("types", ST_I32, TYPES, 2)},
         3,
         "types"},
    };
    encoder_input *in;
    encoder_sequence s;
    bool is_end;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_OK(st_write(path_of("in.safetensors"), all[i].t, all[i].n, NULL, 0));
        CHECK_FAILS(encoder_input_open(&in, path_of("in.safetensors"), NULL, 10, false), ERR_FORMAT,
                    all[i].word);
    }
    const st_tensor big[] = {ints("lengths", ST_I64, LENGTHS, 3), ints("ids", ST_I64, huge, 3)};
    CHECK_OK(st_write(path_of("in.safetensors"), big, 2, NULL, 0));
    CHECK_OK(encoder_input_open(&in, path_of("in.safetensors"), NULL, 10, false));
    CHECK_FAILS(encoder_input_next(in, &s, &is_end), ERR_FORMAT, "sequence 0: token 0");
    encoder_input_close(in);
}

static status read_once(void *ctx) {
    encoder_input *in;
    encoder_sequence s;
    bool is_end = false;
    (void)ctx;
    TRY(encoder_input_open(&in, path_of("in.jsonl"), NULL, 10, false));
    status st = OK;
    while (st == OK && !is_end)
        st = encoder_input_next(in, &s, &is_end);
    encoder_input_close(in);
    return st;
}

TEST(encoder_input_no_memory) {
    write_text("in.jsonl", "{\"ids\": [1, 2]}\n{\"ids\": [3, 4], \"types\": [0, 0]}\n");
    CHECK(oom_at_each_allocation(read_once, NULL) > 3);
}

static const char *out_path(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/out.safetensors", test_folder());
    return path;
}

/* Two batches of sequences of 2, 1 and 3 tokens; number i of hidden is i, of pooled -i. */
static status write_batches(int32_t dim, bool has_pooled) {
    static const int32_t first[] = {0, 2, 3}, second[] = {0, 3};
    float hidden[6 * 5], pooled[3 * 5];
    encoder_output *o;
    for (int i = 0; i < 30; i++)
        hidden[i] = (float)i;
    for (int i = 0; i < 15; i++)
        pooled[i] = (float)-i;
    encoder_rows rows[2] = {{"hidden", dim, true}, {has_pooled ? "pooled" : NULL, dim, false}};
    TRY(encoder_output_create(&o, out_path(), rows, NULL));
    status st = encoder_output_add(o, 2, first, hidden, has_pooled ? pooled : NULL);
    if (st == OK)
        st = encoder_output_add(o, 1, second, hidden + 3 * dim,
                                has_pooled ? pooled + 2 * dim : NULL);
    return encoder_output_close(o, st);
}

static void check_file(int32_t dim, bool has_pooled) {
    static const int64_t want[] = {0, 2, 3, 6};
    st_file *f;
    const st_tensor *t;
    CHECK_OK(st_open(&f, out_path()));
    CHECK_OK(st_get(f, "offsets", ST_I64, &t));
    CHECK_EQ(t->n, 4);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(((const int64_t *)t->data)[i], want[i]);
    CHECK_OK(st_get(f, "hidden", ST_F32, &t));
    CHECK(t->shape[0] == 6 && t->shape[1] == dim);
    for (int i = 0; i < 6 * dim; i++)
        CHECK(((const float *)t->data)[i] == (float)i);
    CHECK_EQ(st_find(f, "pooled") != NULL, has_pooled);
    if (has_pooled) {
        CHECK_OK(st_get(f, "pooled", ST_F32, &t));
        CHECK(t->shape[0] == 3 && t->shape[1] == dim);
        for (int i = 0; i < 3 * dim; i++)
            CHECK(((const float *)t->data)[i] == (float)-i);
    }
    st_close(f);
}

TEST(encoder_output_round_trip) {
    for (int32_t dim = 1; dim <= 5; dim++)
        for (int has_pooled = 0; has_pooled < 2; has_pooled++) {
            CHECK_OK(write_batches(dim, has_pooled));
            check_file(dim, has_pooled);
        }
    char *text;
    CHECK_EQ(test_command(&text, "ls -A %s", test_folder()), 0);
    CHECK_STR(text, "out.safetensors\n"); /* nothing is left beside it */
    free(text);
}

/* A failure leaves what was there. */
TEST(encoder_output_that_fails) {
    static const int32_t offsets[] = {0, 1};
    const float x = 1;
    const encoder_rows rows[2] = {{"hidden", 1, true}, {"pooled", 1, false}};
    encoder_output *o;
    CHECK_OK(write_batches(2, true));
    CHECK_OK(encoder_output_create(&o, out_path(), rows, NULL));
    CHECK_OK(encoder_output_add(o, 1, offsets, &x, &x));
    CHECK_FAILS(encoder_output_close(o, fail(ERR_FORMAT, "a bad line")), ERR_FORMAT, "a bad line");
    check_file(2, true);
    CHECK_FAILS(encoder_output_create(&o, "/no/such/folder/x.safetensors", rows, NULL), ERR_IO,
                "/no/such/folder");
    CHECK(o == NULL);
}

/* Two tensors of tokens, and the names of their columns. */
TEST(encoder_output_of_labels) {
    static const int32_t offsets[] = {0, 1, 3};
    const float x[] = {1, 2, 3, 4, 5, 6};
    const encoder_rows rows[2] = {{"logits", 2, true}, {"probabilities", 1, false}};
    encoder_output *o;
    st_file *f;
    const st_tensor *t;
    CHECK_OK(encoder_output_create(&o, out_path(), rows, "[\"a\",\"b\"]"));
    CHECK_OK(encoder_output_add(o, 2, offsets, x, x + 4));
    CHECK_OK(encoder_output_close(o, OK));
    CHECK_OK(st_open(&f, out_path()));
    CHECK_OK(st_get(f, "logits", ST_F32, &t));
    CHECK(t->shape[0] == 3 && t->shape[1] == 2 && ((const float *)t->data)[5] == 6);
    CHECK_OK(st_get(f, "probabilities", ST_F32, &t));
    CHECK(t->shape[0] == 2 && t->shape[1] == 1 && ((const float *)t->data)[1] == 6);
    CHECK_STR(st_metadata(f, "labels"), "[\"a\",\"b\"]");
    st_close(f);
}

TEST(encoder_output_lines) {
    const float hidden[] = {0.5f, -1, 2, 0.1f}, pooled[] = {3, 4};
    buf text = {0};
    CHECK_OK(encoder_output_line(&text, 2, 2, hidden, pooled));
    CHECK_STR(buf_str(&text), "{\"hidden\":[[0.5,-1],[2,0.1]],\"pooled\":[3,4]}\n");
    buf_clear(&text);
    CHECK_OK(encoder_output_line(&text, 1, 2, hidden, NULL));
    CHECK_STR(buf_str(&text), "{\"hidden\":[[0.5,-1]]}\n");
    buf_fini(&text);
}

static status write_once(void *ctx) {
    (void)ctx;
    return write_batches(3, true);
}

TEST(encoder_output_no_memory) {
    CHECK(oom_at_each_allocation(write_once, NULL) > 3);
}
