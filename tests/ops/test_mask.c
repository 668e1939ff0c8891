/* Masks: every kind against its rule pair by pair, the texts, and the files. */
#include "ops/mask.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

static bool is_between(int64_t x, int64_t begin, int64_t n) {
    return begin <= x && x < begin + n;
}

/* The rules as golden-encoder states them, without what is random. */
static bool sees(const mask_rule *r, int64_t n, int64_t i, int64_t j) {
    int64_t s = 1, h = n / 2, d = i > j ? i - j : j - i, step = (int64_t)r->dilation + 1;
    while ((s + 1) * (s + 1) <= n)
        s++;
    if (r->is_causal && j > i) return false;
    switch (r->kind) {
    case MASK_NONE:
        return true;
    case MASK_CAUSAL:
        return j <= i;
    case MASK_SLIDING:
        return d <= r->window;
    case MASK_LONGFORMER:
        return d <= r->window || i < r->n_global || j < r->n_global ||
               is_between(i, h, r->n_global) || is_between(j, h, r->n_global);
    case MASK_BIGBIRD:
        return d <= r->window || i < r->n_global || j < r->n_global;
    case MASK_DILATED:
        return j <= i && d <= r->window * step && d % step == 0;
    case MASK_STRIDED:
        return j <= i && (d % s == 0 || j > i - s);
    case MASK_FIXED:
        return j <= i && (j % s == s - 1 || j / s == i / s);
    default:
        return false;
    }
}

static bool has_bit(const uint64_t *words, int64_t stride, int32_t i, int32_t j) {
    return words[i * stride + j / 64] >> (j % 64) & 1;
}

/* All rows at once; the bits after the end, up to the stride, start as ones to see them cleared. */
static uint64_t *rows_of(const mask *m, int64_t sequence, int32_t n, int64_t *stride) {
    uint64_t *words;
    *stride = (n + 63) / 64 + 1;
    CHECK_OK(MEM_NEW(&words, (size_t)(*stride * n)));
    memset(words, 0xff, sizeof *words * (size_t)(*stride * n));
    CHECK_OK(mask_check(m, sequence, n));
    mask_fill_rows(m, sequence, n, 0, n, words, *stride);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = n; j < (n + 63) / 64 * 64; j++)
            CHECK(!has_bit(words, *stride, i, j));
    return words;
}

static void check_rule(const char *text, int32_t n) {
    mask *m;
    int64_t stride;
    CHECK_OK(mask_create(&m, text));
    uint64_t *words = rows_of(m, 0, n, &stride);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++)
            if (has_bit(words, stride, i, j) != sees(mask_rule_of(m), n, i, j))
                FAIL_TEST("%s of %d: pair (%d, %d) is %d", text, n, i, j,
                          has_bit(words, stride, i, j));
    mem_free(words);
    mask_destroy(m);
}

TEST(mask_every_rule) {
    static const char *const texts[] = {
        "none",
        "causal",
        "sliding,window=0",
        "sliding,window=3",
        "sliding,window=64,causal",
        "sliding,window=2147483647",
        "longformer,window=5,global=3",
        "longformer,window=1,global=40,causal",
        "longformer,window=0,global=0",
        "longformer,window=2147483647,global=2147483647",
        "bigbird,window=4,global=2,blocks=0",
        "bigbird,window=4,global=2,blocks=0,causal",
        "dilated,window=4,dilation=2",
        "dilated,window=0,dilation=0",
        "dilated,window=2147483647,dilation=2147483646",
        "dilated,window=100,dilation=0",
        "strided",
        "fixed",
        "strided,causal",
        "fixed,causal",
    };
    static const int32_t lengths[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 130};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            check_rule(texts[t], lengths[l]);
}

/* Rows asked for in pieces equal all rows at once. */
TEST(mask_rows_in_pieces) {
    static const char *const texts[] = {"bigbird,window=3,global=1,blocks=2,seed=5", "fixed"};
    for (size_t t = 0; t < 2; t++) {
        mask *m;
        int64_t stride;
        uint64_t piece[7 * 4];
        CHECK_OK(mask_create(&m, texts[t]));
        uint64_t *words = rows_of(m, 0, 200, &stride);
        for (int32_t row = 0; row < 200; row += 7) {
            int32_t n_rows = 200 - row < 7 ? 200 - row : 7;
            mask_fill_rows(m, 0, 200, row, n_rows, piece, 4);
            for (int32_t r = 0; r < n_rows; r++)
                CHECK(memcmp(piece + r * 4, words + (row + r) * stride, 4 * sizeof *words) == 0);
        }
        mem_free(words);
        mask_destroy(m);
    }
}

/* Each block of 32 rows has one random block at one of three block columns, of 102 pairs; another
 * seed draws others, the same seed the same. */
TEST(mask_bigbird_draws_blocks) {
    mask *m, *same, *other;
    int64_t stride;
    CHECK_OK(mask_create(&m, "bigbird,window=0,global=0,seed=3"));
    CHECK_OK(mask_create(&same, "bigbird,window=0,global=0,blocks=1,seed=3"));
    CHECK_OK(mask_create(&other, "bigbird,window=0,global=0,seed=4"));
    int32_t n = 32 * 8;
    uint64_t *a = rows_of(m, 0, n, &stride), *b = rows_of(same, 0, n, &stride),
             *c = rows_of(other, 0, n, &stride);
    CHECK(memcmp(a, b, sizeof *a * (size_t)(stride * n)) == 0);
    CHECK(memcmp(a, c, sizeof *a * (size_t)(stride * n)) != 0);
    bool has_column[3] = {false};
    for (int32_t block = 0; block < 8; block++) {
        int counts[8] = {0}, n_diagonal = 0, n_columns = 0;
        for (int32_t i = block * 32; i < block * 32 + 32; i++)
            for (int32_t j = 0; j < n; j++) {
                if (!has_bit(a, stride, i, j)) continue;
                counts[j / 32] += j != i; /* the window sets the diagonal */
                n_diagonal += j == i;
            }
        CHECK(n_diagonal == 32);
        for (int32_t column = 0; column < 8; column++) {
            if (counts[column] == 0) continue;
            n_columns++;
            CHECK(abs(column - block) <= 1);
            /* on the diagonal block some of the 102 pairs are on the diagonal, too */
            CHECK(column == block ? counts[column] <= 102 && counts[column] > 80
                                  : counts[column] == 102);
            if (block > 0 && block < 7) has_column[column - block + 1] = true;
        }
        CHECK(n_columns == 1);
    }
    CHECK(has_column[0] + has_column[1] + has_column[2] >= 2);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mask_destroy(m);
    mask_destroy(same);
    mask_destroy(other);
}

/* The first random block, drawn here as mask.h describes it. */
TEST(mask_bigbird_as_described) {
    mask *m;
    int64_t stride;
    uint16_t order[1024];
    rng_key key = rng_make_key(9, RNG_MASK);
    uint32_t n = 70, b = 1;
    CHECK_OK(mask_create(&m, "bigbird,window=0,global=0,seed=9"));
    uint64_t *words = rows_of(m, 0, (int32_t)n, &stride);
    uint32_t column = b + rng_draw(key, n, b, 0, 0).word[0] % 3 - 1;
    for (uint16_t p = 0; p < 1024; p++)
        order[p] = p;
    for (uint32_t k = 0; k < 102; k++) {
        uint32_t word = rng_draw(key, n, b, 0, 1 + k / 4).word[k % 4];
        uint32_t at = k + rng_below(word, 1024 - k);
        uint16_t pair = order[at];
        order[at] = order[k];
        order[k] = pair;
        uint32_t i = b * 32 + pair / 32, j = column * 32 + pair % 32;
        if (i < n && j < n) CHECK(has_bit(words, stride, (int32_t)i, (int32_t)j));
    }
    mem_free(words);
    mask_destroy(m);
}

TEST(mask_texts) {
    static const char *const same[] = {
        "none",
        "causal",
        "sliding,window=7",
        "sliding,window=7,causal",
        "longformer,window=1,global=2",
        "bigbird,window=1,global=2,blocks=3,seed=18446744073709551615",
        "dilated,window=9,dilation=3",
        "strided",
        "fixed,causal"};
    char text[MASK_TEXT_MAX];
    mask_rule r;
    const char *path;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        CHECK_OK(mask_rule_parse(&r, same[i], &path));
        CHECK(path == NULL);
        mask_rule_text(&r, text, sizeof text);
        CHECK_STR(text, same[i]);
    }
    static const char *const pairs[][2] = {
        {"sliding", "sliding,window=32"},
        {"bigbird", "bigbird,window=32,global=32,blocks=1,seed=0"},
        {"dilated", "dilated,window=32,dilation=1"},
        {"none,causal", "causal"},
        {"causal,causal", "causal"},
        {"longformer,global=1,window=2,global=3", "longformer,window=2,global=3"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        CHECK_OK(mask_rule_parse(&r, pairs[i][0], &path));
        mask_rule_text(&r, text, sizeof text);
        CHECK_STR(text, pairs[i][1]);
    }
    CHECK_OK(mask_rule_parse(&r, "bits:a,b.safetensors,causal", &path));
    CHECK(r.kind == MASK_BITS && r.is_causal);
    CHECK_STR(path, "a,b.safetensors,causal");
}

TEST(mask_refuses_texts) {
    static const struct {
        const char *text, *reason;
    } wrong[] = {
        {"", "no kind ''"},
        {"slidng", "no kind 'slidng' (did you mean 'sliding'?)"},
        {"sliding,", "'' does not belong to sliding; known there: window=N, causal"},
        {"sliding,window", "'window' does not belong"},
        {"sliding,window=", "window is ''; it is a number from 0 to 2147483647"},
        {"sliding,window=-1", "window is '-1'"},
        {"sliding,window=+1", "window is '+1'"},
        {"sliding,window= 1", "window is ' 1'"},
        {"sliding,window=1x", "window is '1x'"},
        {"sliding,window=2147483648", "window is '2147483648'"},
        {"sliding,global=1", "'global' does not belong to sliding"},
        {"sliding,seed=1", "'seed' does not belong to sliding"},
        {"causal,window=3", "'window' does not belong to causal; known there: causal"},
        {"bigbird,blocks=1025", "blocks is '1025'; it is a number from 0 to 1024"},
        {"bigbird,seed=18446744073709551616", "seed is '18446744073709551616'"},
        {"bits:", "needs the path of a file"},
        {"csr:,causal", "needs the path of a file"},
    };
    mask *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_FAILS(mask_create(&m, wrong[i].text), ERR_USAGE, wrong[i].reason);
        CHECK(m == NULL);
    }
}

/* The bits of a golden file are those of the tensor, sequence after sequence. */
TEST(mask_golden_bits) {
    for (int model = 0; model < 2; model++) {
        char text[256];
        st_file *f;
        mask *m;
        const st_tensor *bytes, *lengths;
        snprintf(text, sizeof text, "bits:tests/golden-encoder/bert-%d/cases/bits.safetensors",
                 model);
        CHECK_OK(st_open(&f, text + 5));
        CHECK_OK(mask_create(&m, text));
        CHECK(mask_is_by_sequence(m));
        bytes = st_find(f, "mask");
        lengths = st_find(f, "lengths");
        CHECK(bytes != NULL && lengths != NULL);
        const uint8_t *at = bytes->data;
        for (int64_t b = 0; b < lengths->n; b++) {
            int32_t n = lengths->dtype == ST_I64 ? (int32_t)((const int64_t *)lengths->data)[b]
                                                 : ((const int32_t *)lengths->data)[b];
            int64_t stride;
            uint64_t *words = rows_of(m, b, n, &stride);
            for (int32_t i = 0; i < n; i++)
                for (int32_t j = 0; j < n; j++)
                    CHECK(has_bit(words, stride, i, j) == (*at++ != 0));
            mem_free(words);
        }
        CHECK_FAILS(mask_check(m, lengths->n, 1), ERR_USAGE, "there is none for sequence");
        CHECK_FAILS(mask_check(m, 0, 100000), ERR_USAGE, "the mask of sequence 0 is for");
        mask_destroy(m);
        st_close(f);
    }
}

static st_tensor tensor(const char *name, st_dtype dtype, int64_t rows, int64_t columns,
                        const void *data) {
    st_tensor t = {.name = name, .dtype = dtype, .n_dims = columns > 0 ? 2 : 1, .data = data};
    t.shape[0] = rows;
    t.shape[1] = columns;
    t.n = rows * (columns > 0 ? columns : 1);
    return t;
}

static const char *write_file(const st_tensor *tensors, size_t n) {
    static char path[512];
    snprintf(path, sizeof path, "%s/mask.safetensors", test_folder());
    CHECK_OK(st_write(path, tensors, n, NULL, 0));
    return path;
}

static const int64_t csr_begin[] = {0, 2, 2, 4, 6}, csr_keys[] = {0, 3, 1, 2, 0, 3};
static const uint8_t csr_dense[] = {1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1};

/* One mask as bits and as csr, for sequences of its length and for shorter ones. */
TEST(mask_files_of_one_mask) {
    st_tensor csr[] = {tensor("indptr", ST_I64, 5, 0, csr_begin),
                       tensor("indices", ST_I64, 6, 0, csr_keys)};
    st_tensor bits = tensor("mask", ST_U8, 4, 4, csr_dense);
    for (int is_csr = 0; is_csr < 2; is_csr++)
        for (int is_causal = 0; is_causal < 2; is_causal++)
            for (int32_t n = 1; n <= 4; n++) {
                char text[600];
                mask *m;
                int64_t stride;
                snprintf(text, sizeof text, "%s:%s%s", is_csr ? "csr" : "bits",
                         write_file(is_csr ? csr : &bits, is_csr ? 2 : 1),
                         is_causal ? ",causal" : "");
                CHECK_OK(mask_create(&m, text));
                uint64_t *words = rows_of(m, 7, n, &stride);
                for (int32_t i = 0; i < n; i++)
                    for (int32_t j = 0; j < n; j++)
                        CHECK(has_bit(words, stride, i, j) ==
                              (csr_dense[i * 4 + j] && (!is_causal || j <= i)));
                CHECK_FAILS(mask_check(m, 7, 5), ERR_USAGE, "a mask of 4 tokens");
                mem_free(words);
                mask_destroy(m);
            }
}

/* Two sequences in one csr file. */
TEST(mask_csr_by_sequence) {
    static const int32_t lengths[] = {2, 3}, begin[] = {0, 1, 2, 2, 4, 5}, keys[] = {1, 0, 0, 2, 1};
    st_tensor all[] = {tensor("lengths", ST_I32, 2, 0, lengths),
                       tensor("indptr", ST_I32, 6, 0, begin),
                       tensor("indices", ST_I32, 5, 0, keys)};
    char text[600];
    mask *m;
    int64_t stride;
    snprintf(text, sizeof text, "csr:%s", write_file(all, 3));
    CHECK_OK(mask_create(&m, text));
    uint64_t *a = rows_of(m, 0, 2, &stride), *b = rows_of(m, 1, 3, &stride);
    CHECK(a[0] == 2 && a[stride] == 1);
    CHECK(b[0] == 0 && b[stride] == 5 && b[2 * stride] == 2);
    CHECK_FAILS(mask_check(m, 1, 2), ERR_USAGE, "the mask of sequence 1 is for 3 tokens");
    CHECK(mask_length(m, 0) == 2 && mask_length(m, 1) == 3 && mask_length(m, 2) == 0);
    mem_free(a);
    mem_free(b);
    mask_destroy(m);
}

static void check_refused(const char *kind, const st_tensor *tensors, size_t n,
                          const char *reason) {
    char text[600];
    mask *m;
    snprintf(text, sizeof text, "%s:%s", kind, write_file(tensors, n));
    CHECK_FAILS(mask_create(&m, text), ERR_FORMAT, reason);
}

TEST(mask_refuses_files) {
    static const int64_t down[] = {0, 2, 1, 4, 6}, far[] = {0, 2, 2, 4, 7},
                         twice[] = {0, 0, 1, 2, 0, 3}, outside[] = {0, 4, 1, 2, 0, 3},
                         negative[] = {-1, 3, 1, 2, 0, 3}, lengths[] = {2, 3},
                         huge[] = {INT64_MAX, 2}, minus[] = {-1, 5};
    static const float floats[16];
    mask *m;
    CHECK_FAILS(mask_create(&m, "bits:no such file"), ERR_IO, "no such file");
    st_tensor begin = tensor("indptr", ST_I64, 5, 0, csr_begin);
    st_tensor keys = tensor("indices", ST_I64, 6, 0, csr_keys);
    st_tensor dense = tensor("mask", ST_U8, 4, 4, csr_dense);
    check_refused("bits", &begin, 1, "no tensor 'mask'");
    check_refused("csr", &dense, 1, "no tensor 'indptr'");
    check_refused("csr", &begin, 1, "no tensor 'indices'");
    st_tensor flat = tensor("mask", ST_U8, 16, 0, csr_dense);
    check_refused("bits", &flat, 1, "must be (n, n)");
    st_tensor real = tensor("mask", ST_F32, 4, 4, floats);
    check_refused("bits", &real, 1, "'mask' is F32");
    static const char *const ints[] = {"lengths", "indptr", "indices"};
    for (int i = 0; i < 3; i++) {
        char reason[64];
        st_tensor all[] = {tensor("lengths", ST_I64, 1, 0, csr_begin + 2), begin, keys};
        all[i] = tensor(ints[i], ST_F32, all[i].n, 0, floats);
        snprintf(reason, sizeof reason, "'%s' is F32; it must be I32 or I64", ints[i]);
        check_refused("csr", all, 3, reason);
    }
    const int64_t *begins[] = {down, far};
    for (int i = 0; i < 2; i++) {
        st_tensor bad[] = {tensor("indptr", ST_I64, 5, 0, begins[i]), keys};
        check_refused("csr", bad, 2, i == 0 ? "row 1 has keys 2 to 1" : "row 3 has keys 4 to 7");
    }
    const int64_t *indices[] = {twice, outside, negative};
    for (int i = 0; i < 3; i++) {
        st_tensor bad[] = {begin, tensor("indices", ST_I64, 6, 0, indices[i])};
        check_refused("csr", bad, 2, i == 0 ? "keys ascend" : "its sequence has keys 0 to 3");
    }
    const int64_t *all_lengths[] = {lengths, huge, minus};
    const char *const reasons[] = {"the lengths make 13 pairs", "has length 9223372036854775807",
                                   "sequence 0 has length -1"};
    for (int i = 0; i < 3; i++) {
        st_tensor both[] = {tensor("lengths", ST_I64, 2, 0, all_lengths[i]), dense};
        check_refused("bits", both, 2, reasons[i]);
    }
    st_tensor rows[] = {tensor("lengths", ST_I64, 2, 0, lengths), begin, keys};
    check_refused("csr", rows, 3, "'indptr' has 4 rows, but the lengths make 5");
}

static status create_and_destroy(void *ctx) {
    mask *m;
    TRY(mask_create(&m, ctx));
    mask_destroy(m);
    return OK;
}

TEST(mask_out_of_memory) {
    char text[] = "bits:tests/golden-encoder/bert-0/cases/bits.safetensors", rule[] = "fixed";
    CHECK(oom_at_each_allocation(create_and_destroy, text) > 3);
    CHECK(oom_at_each_allocation(create_and_destroy, rule) > 0);
}

/* docs/masks.md has a row for each kind. */
TEST(mask_docs_have_every_kind) {
#define ROW(id, name, parameters, fill) "| `" name "` |",
    static const char *const rows[] = {MASK_KINDS(ROW) "| `bits:FILE`, `csr:FILE` |"};
    char path[4200], *docs;
    size_t n;
    snprintf(path, sizeof path, "%s", test_program()); /* build/VARIANT/hstu in the repository */
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/docs/masks.md");
    CHECK_OK(file_read_all(path, 1 << 20, &docs, &n));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK(strstr(docs, rows[i]) != NULL);
    mem_free(docs);
}
