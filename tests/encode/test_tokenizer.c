#include "encode/tokenizer.h"

#include <stdlib.h>

#include "base/mem.h"
#include "oom.h"
#include "test.h"

/* \u0120 is the space of byte-level BPE, \u2581 that of Unigram. */
#define BPE_MODEL                                                                                  \
    "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"vocab\": {\"<s>\": 0, \"</s>\": 1, "      \
    "\"a\": 2, \"b\": 3, \"c\": 4, \"\\u0120\": 5, \"ab\": 6, \"bc\": 7, \"abc\": 8, "             \
    "\"\\u0120abc\": 9, \"'\": 10, \"s\": 11, \"'s\": 12, \"\\u00c3\": 13, \"\\u00a9\": 14}, "     \
    "\"merges\": [\"b c\", [\"a\", \"b\"], \"a bc\", [\"\\u0120\", \"abc\"], \"' s\"]}"
#define BPE                                                                                        \
    "{\"version\": \"1.0\", \"truncation\": null, \"added_tokens\": ["                             \
    "{\"id\": 0, \"content\": \"<s>\", \"normalized\": false, \"special\": true}, "                \
    "{\"id\": 15, \"content\": \"<mask>\", \"lstrip\": true, \"normalized\": true}], "             \
    "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "                          \
    "\"add_prefix_space\": false, \"trim_offsets\": true}, \"post_processor\": {\"type\": "        \
    "\"RobertaProcessing\", \"sep\": [\"</s>\", 1], \"cls\": [\"<s>\", 0]}, \"decoder\": "         \
    "null, " BPE_MODEL "}"
#define UNIGRAM_MODEL                                                                              \
    "\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], "               \
    "[\"\\u2581\", -2], [\"a\", -3], [\"b\", -3], [\"ab\", -5], [\"\\u2581ab\", -4], "             \
    "[\"ba\", -7], [\"\\u00e9\", -3]]}"
#define UNIGRAM                                                                                    \
    "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\", "           \
    "\"strip_left\": false, \"strip_right\": true}, {\"type\": \"Replace\", \"pattern\": "         \
    "{\"Regex\": \" {2,}\"}, \"content\": \" \"}, {\"type\": \"Replace\", \"pattern\": "           \
    "{\"String\": \"Q\"}, \"content\": \"ab\"}]}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "   \
    "\"replacement\": \"\\u2581\", \"prepend_scheme\": \"always\", \"split\": true}, "             \
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "      \
    "{\"id\": \"x\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "         \
    "\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": "     \
    "\"x\", \"type_id\": 1}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], "                  \
    "\"special_tokens\": {\"x\": {\"id\": \"x\", \"ids\": [6, 7], \"tokens\": [\"x\", "            \
    "\"y\"]}}}, " UNIGRAM_MODEL "}"

#define PIECES                                                                                     \
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"[UNK]\"}], \"normalizer\": "                   \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}, {\"type\": "            \
    "\"BertNormalizer\", \"lowercase\": false, \"strip_accents\": null}]}, \"pre_tokenizer\": "    \
    "{\"type\": \"BertPreTokenizer\"}, \"post_processor\": {\"type\": \"TemplateProcessing\", "    \
    "\"single\": [{\"SpecialToken\": {\"id\": \"x\", \"type_id\": 0}}, {\"Sequence\": {\"id\": "   \
    "\"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "       \
    "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"x\": {\"ids\": "     \
    "[1]}}}, \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", "                      \
    "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": "        \
    "{\"[UNK]\": 0, \"[CLS]\": 1, \"[SEP]\": 2, \"a\": 3, \"##b\": 4, \"\\u00e9\": 5}}}"

static status parse(tokenizer **t, const char *text) {
    const json_value *root;
    arena a;
    *t = NULL;
    arena_init(&a, 4096);
    status st = json_parse(&a, "t.json", text, strlen(text), &root);
    if (st == OK) st = tokenizer_parse(t, "t.json", root);
    arena_fini(&a);
    return st;
}

static tokenizer *make(const char *text) {
    tokenizer *t;
    CHECK_OK(parse(&t, text));
    return t;
}

static void check_split(const tokenizer *t, const char *text, const int32_t *want, size_t n) {
    word_ids got = {0};
    CHECK_OK(tokenizer_split(t, text, strlen(text), &got));
    if (got.n != n) FAIL_TEST("\"%s\" has %zu ids, not %zu", text, got.n, n);
    for (size_t i = 0; i < n; i++)
        if (got.ids[i] != want[i])
            FAIL_TEST("\"%s\": id %zu is %d, not %d", text, i, got.ids[i], want[i]);
    mem_free(got.ids);
}
#define SPLITS(t, text, ...)                                                                       \
    check_split(t, text, (const int32_t[]){__VA_ARGS__},                                           \
                sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

TEST(tokenizer_of_byte_level_bpe) {
    tokenizer *t = make(BPE);
    check_split(t, "", NULL, 0);
    SPLITS(t, "abc", 8); /* the lowest rank first: b c, then a bc */
    SPLITS(t, "abab", 6, 6);
    SPLITS(t, "ab abc's", 6, 9, 12);
    SPLITS(t, "a  abc", 2, 5, 9); /* the last space belongs to the word */
    SPLITS(t, "a  ", 2, 5, 5);
    SPLITS(t, "\xc3\xa9", 13, 14);
    SPLITS(t, "azb", 6); /* z has no piece, and there is no unk_token: left out before merges */
    SPLITS(t, "a<s>b  <mask> c", 2, 0, 3, 15, 5, 4);
    SPLITS(t, "<mask", 2, 11); /* 'm', 'k' and '<' are not there */
    word_ids ids = {0};
    CHECK_FAILS(tokenizer_split(t, "\xff", 1, &ids), ERR_FORMAT, "UTF-8");
    mem_free(ids.ids);
    tokenizer_destroy(t);
}

TEST(tokenizer_of_unigram) {
    tokenizer *t = make(UNIGRAM);
    check_split(t, "", NULL, 0);
    check_split(t, " \t ", NULL, 0);
    SPLITS(t, "ab", 5);
    SPLITS(t, "ba", 1, 3, 2); /* -6 is more than -7 */
    SPLITS(t, "Q   ab \n", 5, 5);
    SPLITS(t, "xyaz", 1, 0, 2, 0); /* x and y are one unknown piece */
    SPLITS(t, "\xc3\xa9", 1, 7);
    tokenizer_destroy(t);
}

/* As transformers 5 saves a BERT tokenizer, without vocab.txt. */
TEST(tokenizer_of_word_pieces) {
    tokenizer *t = make(PIECES);
    SPLITS(t, "aB A b [SEP]", 3, 4, 3, 0, 2);
    SPLITS(t, "\xc3\x89", 5); /* in lower case, with its accent */
    CHECK_EQ(tokenizer_layout(t, false)->n, 2);
    CHECK_EQ(tokenizer_layout(t, false)->slot[0].id, 1);
    tokenizer_destroy(t);
}

TEST(tokenizer_in_lower_case) {
    tokenizer *t = make(UNIGRAM);
    SPLITS(t, "AB", 1, 0);
    CHECK_OK(tokenizer_lower(t));
    SPLITS(t, "AB", 5);
    SPLITS(t, "\xc3\x89", 1, 7);
    for (int i = 0; i < 4; i++)
        CHECK_OK(tokenizer_lower(t));
    CHECK_FAILS(tokenizer_lower(t), ERR_UNSUPPORTED, "do_lower_case");
    tokenizer_destroy(t);
}

TEST(tokenizer_layouts) {
    tokenizer *bpe = make(BPE), *unigram = make(UNIGRAM);
    const token_layout *pair = tokenizer_layout(bpe, true);
    const int32_t roberta[] = {0, SLOT_FIRST, 1, 1, SLOT_SECOND, 1};
    CHECK_EQ(pair->n, 6);
    for (size_t i = 0; i < 6; i++)
        CHECK(pair->slot[i].id == roberta[i] && pair->slot[i].type == 0);
    const token_layout *single = tokenizer_layout(unigram, false);
    CHECK_EQ(single->n, 3);
    CHECK(single->slot[0].id == 6 && single->slot[1].id == 7 && single->slot[2].id == SLOT_FIRST);
    CHECK_EQ(tokenizer_layout(unigram, true)->slot[3].type, 1);
    tokenizer_destroy(bpe);
    tokenizer_destroy(unigram);
}

/* A file with `to` in the place of `from` must be refused with these words. */
static void check_refused(const char *file, const char *from, const char *to, status code,
                          const char *words) {
    char text[8192];
    tokenizer *t;
    const char *at = strstr(file, from);
    if (at == NULL) FAIL_TEST("%s is not there", from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - file), file, to, at + strlen(from));
    CHECK_FAILS(parse(&t, text), code, words);
    CHECK(t == NULL);
}

TEST(tokenizer_refuses) {
    static const struct {
        const char *file, *from, *to;
        status code;
        const char *words;
    } all[] = {
        {BPE, "\"BPE\"", "\"WordLevel\"", ERR_UNSUPPORTED, "WordLevel"},
        {BPE, "\"dropout\": null", "\"dropout\": 0.1", ERR_UNSUPPORTED, "dropout"},
        {BPE, "\"dropout\": null", "\"byte_fallback\": true", ERR_UNSUPPORTED, "byte_fallback"},
        {BPE, "\"dropout\": null", "\"byte_fallback\": 1", ERR_UNSUPPORTED, "byte_fallback"},
        {BPE, "\"dropout\": null", "\"fuse_unk\": 1", ERR_FORMAT, "fuse_unk"},
        {BPE, "\"dropout\": null", "\"new\": 1", ERR_UNSUPPORTED, "new"},
        {BPE, "\"dropout\": null", "\"unk_token\": \"zz\"", ERR_FORMAT, "unk_token"},
        {BPE, "\"bc\": 7", "\"bc\": 6", ERR_FORMAT, "id of another"},
        {BPE, "\"bc\": 7", "\"bc\": -7", ERR_FORMAT, "has no id"},
        {BPE, "\"bc\": 7", "\"bc\": 7.5", ERR_FORMAT, "has no id"},
        {BPE, "\"bc\": 7, ", "", ERR_FORMAT, "merge 0"},
        {BPE, "\"b c\"", "\"b z\"", ERR_FORMAT, "merge 0"},
        {BPE, "\"b c\"", "\"bc\"", ERR_FORMAT, "merge 0"},
        {BPE, "\"b c\"", "[\"b\"]", ERR_FORMAT, "merge 0"},
        {BPE, "\"b c\"", "[\"\", \"b\"]", ERR_FORMAT, "merge 0"},
        {BPE, "\"vocab\": {", "\"vocab\": [], \"x\": {", ERR_UNSUPPORTED, "'x'"},
        {BPE, "\"id\": 15", "\"id\": 16", ERR_FORMAT, "must be 15"},
        {BPE, "\"id\": 0,", "\"id\": 3,", ERR_FORMAT, "must be 0"},
        {BPE, "\"content\": \"<mask>\"", "\"content\": \"\"", ERR_FORMAT, "content"},
        {BPE, "\"lstrip\": true", "\"single_word\": true", ERR_UNSUPPORTED, "single_word"},
        {BPE, "\"lstrip\": true", "\"lstrip\": \"yes\"", ERR_FORMAT, "lstrip"},
        {BPE, "\"ByteLevel\"", "\"Punctuation\"", ERR_UNSUPPORTED, "pre_tokenizer 'Punctuation'"},
        {BPE, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", ERR_UNSUPPORTED,
         "normalizer 'NFKC'"},
        {BPE, "\"normalizer\": null",
         "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/////w==\"}",
         ERR_FORMAT, "precompiled_charsmap"},
        {BPE, "\"normalizer\": null",
         "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"A!\"}",
         ERR_FORMAT, "precompiled_charsmap"},
        {BPE, "RobertaProcessing", "BertProcessing", ERR_UNSUPPORTED, "BertProcessing"},
        {BPE, "[\"</s>\", 1]", "[\"</s>\", -1]", ERR_FORMAT, "sep"},
        {UNIGRAM, "\"unk_id\": 0", "\"unk_id\": 8", ERR_FORMAT, "unk_id"},
        {UNIGRAM, "\"unk_id\": 0", "\"unk_id\": null", ERR_FORMAT, "unk_id"},
        {UNIGRAM, "[\"a\", -3]", "[\"a\", NaN]", ERR_FORMAT, "t.json"},
        {UNIGRAM, "[\"a\", -3]", "[\"a\", \"NaN\"]", ERR_FORMAT, "score"},
        {UNIGRAM, "[\"a\", -3]", "[\"a\", 1e999]", ERR_FORMAT, "t.json"},
        {UNIGRAM, " {2,}", "\\\\s+", ERR_UNSUPPORTED, "\\s+"},
        {UNIGRAM, "{\"String\": \"Q\"}", "{\"String\": \"\"}", ERR_FORMAT, "String"},
        {UNIGRAM, "\"always\"", "\"first\"", ERR_UNSUPPORTED, "first"},
        {UNIGRAM, "\"replacement\": \"\\u2581\"", "\"replacement\": \"ab\"", ERR_FORMAT,
         "replacement"},
        {UNIGRAM, "\"ids\": [6, 7]", "\"ids\": [6, \"7\"]", ERR_FORMAT, "TemplateProcessing"},
        {UNIGRAM, "{\"x\": {", "{\"z\": {", ERR_FORMAT, "TemplateProcessing"},
        {UNIGRAM, "\"id\": \"B\"", "\"id\": \"A\"", ERR_FORMAT, "TemplateProcessing"},
        {UNIGRAM, "\"normalizer\":", "\"other\":", ERR_UNSUPPORTED, "other"},
        {PIECES, "\"##\"", "\"@@\"", ERR_UNSUPPORTED, "WordPiece"},
        {PIECES, "\"unk_token\": \"[UNK]\"", "\"unk_token\": \"a\"", ERR_UNSUPPORTED, "WordPiece"},
        {PIECES, ": 100", ": 99", ERR_UNSUPPORTED, "WordPiece"},
        {PIECES, "BertPreTokenizer", "Whitespace", ERR_UNSUPPORTED, "WordPiece"},
        {PIECES, "BertNormalizer", "NFC", ERR_UNSUPPORTED, "'NFC'"},
        {PIECES, "\"Lowercase\"", "\"NFC\"", ERR_UNSUPPORTED, "'Sequence'"},
        {PIECES, "\"lowercase\"", "\"clean_text\"", ERR_UNSUPPORTED, "clean_text"},
        {PIECES, "\"##b\": 4", "\"##b\": 5", ERR_FORMAT, "id of another piece"},
        {PIECES, "\"##b\": 4", "\"##b\": -4", ERR_FORMAT, "'##b' has no id"},
        {PIECES, "\"content\": \"[UNK]\"", "\"content\": \"a\"", ERR_UNSUPPORTED, "'a'"},
        {PIECES, "\"id\": 0, ", "\"lstrip\": true, ", ERR_UNSUPPORTED, "[UNK]"},
        {PIECES, "[CLS]", "[CLX]", ERR_FORMAT, "[CLS]"},
        {"[]", "[]", "[1]", ERR_FORMAT, "model"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_refused(all[i].file, all[i].from, all[i].to, all[i].code, all[i].words);
}

static status split_once(void *ctx) {
    const char *file = ctx;
    tokenizer *t;
    word_ids ids = {0};
    TRY(parse(&t, file));
    status st = tokenizer_split(t, "ab abc <mask>  Q x", 18, &ids);
    mem_free(ids.ids);
    tokenizer_destroy(t);
    return st;
}

TEST(tokenizer_no_memory) {
    CHECK(oom_at_each_allocation(split_once, BPE) > 10);
    CHECK(oom_at_each_allocation(split_once, UNIGRAM) > 10);
    CHECK(oom_at_each_allocation(split_once, PIECES) > 5);
}

/* A word as long as a line may be takes no quadratic time. */
TEST(tokenizer_of_a_long_word) {
    enum { N = 1 << 20 };
    static const char *const files[] = {BPE, UNIGRAM};
    char *text;
    CHECK_OK(MEM_NEW_RAW(&text, N));
    memset(text, 'a', N);
    for (size_t i = 0; i < N; i += 3)
        text[i] = 'b';
    for (int i = 0; i < 2; i++) {
        tokenizer *t = make(files[i]);
        word_ids ids = {0};
        CHECK_OK(tokenizer_split(t, text, N, &ids));
        CHECK(ids.n > N / 2);
        mem_free(ids.ids);
        tokenizer_destroy(t);
    }
    mem_free(text);
}

/* Trained tokenizers beside those of the package. */
TEST(tokenizer_as_hugging_face_has_them) {
    char *text;
    int code =
        test_command(&text, "python3 tests/encoder/compare_json.py %s --texts 800", test_program());
    if (code != 0 && code != 1) SKIP_TEST("Python's package tokenizers is not here");
    if (code == 1) FAIL_TEST("%s", text);
    CHECK_CONTAINS(text, " 0 differ");
    free(text);
}
