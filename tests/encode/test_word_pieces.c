#include "encode/tokenizer.h"

#include "base/mem.h"
#include "oom.h"
#include "test.h"

/* [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then the words. */
static const char VOCABULARY[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nwant\n##ed\n,"
    "\nrunning\n\xe4\xbd\xa0\n\xe5\xa5\xbd\ncafe\nCaf\xc3\xa9\ncaf\xc3"
    "\xa9\n!\n##a\na\r\n[\n]\nmask\n";
enum {
    UN = 5,
    AFF,
    ABLE,
    WANT,
    ED,
    COMMA,
    RUNNING,
    NI,
    HAO,
    CAFE,
    CAFE_CAPITAL,
    CAFE_ACCENT,
    BANG
};
enum { MORE_A = 18, A, OPEN, CLOSE, MASK_WORD };

static const word_piece_options LOWER = {true, true, true}, AS_IT_IS = {false, false, true};

static tokenizer *make(const word_piece_options *o) {
    tokenizer *p;
    CHECK_OK(tokenizer_of_lines(&p, "vocab.txt", VOCABULARY, sizeof VOCABULARY - 1, o));
    return p;
}

static void check_split(const tokenizer *p, const char *text, const int32_t *want, size_t n) {
    word_ids got = {0};
    CHECK_OK(tokenizer_split(p, text, strlen(text), &got));
    if (got.n != n) FAIL_TEST("\"%s\" has %zu pieces, not %zu", text, got.n, n);
    for (size_t i = 0; i < n; i++)
        if (got.ids[i] != want[i])
            FAIL_TEST("\"%s\": piece %zu is %d, not %d", text, i, got.ids[i], want[i]);
    mem_free(got.ids);
}
#define SPLITS(p, text, ...)                                                                       \
    check_split(p, text, (const int32_t[]){__VA_ARGS__},                                           \
                sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

TEST(word_pieces_of_words) {
    tokenizer *p = make(&LOWER);
    SPLITS(p, "unaffable", UN, AFF, ABLE);
    SPLITS(p, "  UNaffable,running\n", UN, AFF, ABLE, COMMA, RUNNING);
    SPLITS(p, "wanted!", WANT, ED, BANG);
    SPLITS(p, "unx", 1);
    SPLITS(p, "a,a", A, COMMA, A);
    check_split(p, "", NULL, 0);
    check_split(p, " \t\r\n ", NULL, 0);
    tokenizer_destroy(p);
}

/* "UNwanted" is un + ##wanted, which is not there: the whole word is unknown. */
TEST(word_pieces_unknown_words_are_whole) {
    tokenizer *p = make(&LOWER);
    SPLITS(p, "unwanted", 1);
    SPLITS(p, "wantedx want", 1, WANT);
    tokenizer_destroy(p);
}

TEST(word_pieces_accents_and_case) {
    tokenizer *lower = make(&LOWER), *plain = make(&AS_IT_IS);
    word_piece_options keeps = {true, false, true};
    tokenizer *accents = make(&keeps);
    SPLITS(lower, "CAF\xc3\x89", CAFE);
    SPLITS(lower, "cafe\xcc\x81", CAFE); /* e and a combining acute */
    SPLITS(plain, "Caf\xc3\xa9", CAFE_CAPITAL);
    SPLITS(plain, "CAF\xc3\x89", 1);
    SPLITS(accents, "CAF\xc3\x89", CAFE_ACCENT);
    tokenizer_destroy(lower);
    tokenizer_destroy(plain);
    tokenizer_destroy(accents);
}

TEST(word_pieces_chinese_and_controls) {
    tokenizer *p = make(&LOWER);
    word_piece_options whole = {true, true, false};
    tokenizer *joined = make(&whole);
    SPLITS(p, "\xe4\xbd\xa0\xe5\xa5\xbd", NI, HAO);
    SPLITS(joined, "\xe4\xbd\xa0\xe5\xa5\xbd", 1);
    SPLITS(p,
           "wa\x01nt\xe2\x80\x8b"
           "ed",
           WANT, ED); /* a control, a zero-width space */
    SPLITS(p,
           "a\xc2\xa0"
           "a",
           A, A); /* a no-break space */
    SPLITS(p,
           "want\xef\xbf\xbd"
           "ed",
           WANT, ED); /* U+FFFD is left out, */
    SPLITS(p,
           "want\xff"
           "ed",
           WANT, ED); /* and so is what is not UTF-8 */
    SPLITS(p,
           "a\xe4\xbd\xa0"
           "a",
           A, NI, A); /* parted on both sides */
    tokenizer_destroy(p);
    tokenizer_destroy(joined);
}

TEST(word_pieces_special_tokens_are_whole) {
    tokenizer *p = make(&LOWER);
    SPLITS(p, "want[MASK]a [SEP]", WANT, 4, A, 3);
    SPLITS(p, "[mask]", OPEN, MASK_WORD, CLOSE); /* not in lower case */
    SPLITS(p, "[MASK", OPEN, MASK_WORD);
    const token_layout *single = tokenizer_layout(p, false), *pair = tokenizer_layout(p, true);
    CHECK(single->n == 3 && single->slot[0].id == 2 && single->slot[2].id == 3);
    CHECK(pair->n == 5 && pair->slot[0].id == 2 && pair->slot[4].id == 3);
    CHECK(pair->slot[2].type == 0 && pair->slot[3].type == 1 && pair->slot[4].type == 1);
    tokenizer_destroy(p);
}

/* 100 characters are a word, 101 are not. */
TEST(word_pieces_longest_word) {
    tokenizer *p = make(&LOWER);
    char text[102] = "";
    int32_t want[100];
    memset(text, 'a', 100);
    for (int i = 0; i < 100; i++)
        want[i] = i == 0 ? A : MORE_A;
    check_split(p, text, want, 100);
    text[100] = 'a';
    SPLITS(p, text, 1);
    tokenizer_destroy(p);
}

static void check_chars(int (*f)(uint32_t, uint32_t[WORD_CHAR_MAX]), uint32_t c, int n, uint32_t a,
                        uint32_t b, uint32_t d) {
    uint32_t out[WORD_CHAR_MAX] = {0};
    CHECK_EQ(f(c, out), n);
    if (n > 0) CHECK_EQ(out[0], a);
    if (n > 1) CHECK_EQ(out[1], b);
    if (n > 2) CHECK_EQ(out[2], d);
}

TEST(word_chars_decompose_and_lower) {
    check_chars(word_char_strip, 'x', 1, 'x', 0, 0);
    check_chars(word_char_strip, 0x1e69, 1, 's', 0, 0);              /* s with two dots */
    check_chars(word_char_strip, 0x301, 0, 0, 0, 0);                 /* an acute accent */
    check_chars(word_char_strip, 0xac01, 3, 0x1100, 0x1161, 0x11a8); /* Hangul gag */
    check_chars(word_char_strip, 0xac00, 2, 0x1100, 0x1161, 0);
    check_chars(word_char_strip, 0xd7a3, 3, 0x1112, 0x1175, 0x11c2);
    check_chars(word_char_strip, 0x9cb, 2, 0x9c7, 0x9be, 0);
    check_chars(word_char_strip, 0x1d160, 3, 0x1d158, 0x1d165, 0x1d16e);
    check_chars(word_char_lower, 'Z', 1, 'z', 0, 0);
    check_chars(word_char_lower, 'z', 1, 'z', 0, 0);
    check_chars(word_char_lower, 0x100, 1, 0x101, 0, 0); /* every second one of a run */
    check_chars(word_char_lower, 0x101, 1, 0x101, 0, 0);
    check_chars(word_char_lower, 0x130, 2, 'i', 0x307, 0);
    check_chars(word_char_lower, 0x1e900, 1, 0x1e922, 0, 0);
    static const struct {
        uint32_t c;
        bert_class class;
    } chars[] = {{'$', BERT_PUNCTUATION}, {0x3002, BERT_PUNCTUATION}, {'a', BERT_OTHER},
                 {0x10ffff, BERT_OTHER},  {0x110000, BERT_OTHER},     {0x200d, BERT_CONTROL},
                 {'\n', BERT_SPACE},      {0x3000, BERT_SPACE},       {'\t', BERT_SPACE},
                 {0x4e00, BERT_CHINESE},  {0xac00, BERT_OTHER},       {0x301, BERT_MARK}};
    for (size_t i = 0; i < sizeof chars / sizeof *chars; i++)
        CHECK_EQ(word_char_class(chars[i].c), chars[i].class);
}

static status parse_options(word_piece_options *o, const char *text) {
    const json_value *root;
    arena a;
    arena_init(&a, 4096);
    status st = json_parse(&a, "t.json", text, strlen(text), &root);
    if (st == OK) st = word_piece_options_parse(o, "t.json", root);
    arena_fini(&a);
    return st;
}

TEST(word_pieces_options_of_a_folder) {
    static const struct {
        const char *text;
        int is_lower, strips, chinese;
    } all[] = {
        {"{}", 1, 1, 1},
        {"{\"do_lower_case\": false}", 0, 0, 1},
        {"{\"do_lower_case\": true, \"strip_accents\": false}", 1, 0, 1},
        {"{\"do_lower_case\": false, \"strip_accents\": true, \"tokenize_chinese_chars\": false}",
         0, 1, 0},
        {"{\"strip_accents\": null, \"tokenizer_class\": \"BertTokenizer\", \"cls_token\": "
         "\"[CLS]\", \"model_max_length\": 512, \"never_split\": null, \"do_basic_tokenize\": "
         "true, "
         "\"added_tokens_decoder\": {\"0\": {\"content\": \"[PAD]\", \"special\": true}}}",
         1, 1, 1},
    };
    word_piece_options o;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_OK(parse_options(&o, all[i].text));
        CHECK(o.is_lower == all[i].is_lower && o.strips_accents == all[i].strips);
        CHECK(o.parts_chinese == all[i].chinese);
    }
    static const struct {
        const char *text, *word;
    } bad[] = {{"{\"tokenizer_class\": \"RobertaTokenizer\"}", "RobertaTokenizer"},
               {"{\"unk_token\": \"[UNK] [CLS]\"}", "'[UNK] [CLS]' of unk_token"},
               {"{\"cls_token mask_token\": \"[CLS]\"}", "cls_token mask_token"},
               {"{\"do_basic_tokenize\": false}", "do_basic_tokenize"},
               {"{\"never_split\": [\"a\"]}", "never_split"},
               {"{\"cls_token\": \"<s>\"}", "<s>"},
               {"{\"added_tokens_decoder\": {\"7\": {\"content\": \"<x>\"}}}", "<x>"},
               {"{\"new_thing\": 5}", "new_thing"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(parse_options(&o, bad[i].text), ERR_UNSUPPORTED, bad[i].word);
    CHECK_FAILS(parse_options(&o, "{\"do_lower_case\": 1}"), ERR_FORMAT, "do_lower_case");
    CHECK_FAILS(parse_options(&o, "5"), ERR_FORMAT, "t.json");
}

TEST(word_pieces_vocabularies) {
    tokenizer *p;
    CHECK_FAILS(tokenizer_of_lines(&p, "v", "a\nb\n", 4, &LOWER), ERR_FORMAT, "[UNK]");
    CHECK_FAILS(tokenizer_of_lines(&p, "v", "", 0, &LOWER), ERR_FORMAT, "[UNK]");
    CHECK_OK(tokenizer_open(&p, test_folder()));
    CHECK(p == NULL);
    /* Of two equal pieces the later one counts. */
    const char *twice = "[UNK]\n[CLS]\n[SEP]\na\na";
    CHECK_OK(tokenizer_of_lines(&p, "v", twice, strlen(twice), &LOWER));
    SPLITS(p, "a", 4);
    tokenizer_destroy(p);
}

static status split_once(void *ctx) {
    tokenizer *p;
    word_ids ids = {0};
    (void)ctx;
    TRY(tokenizer_of_lines(&p, "v", VOCABULARY, sizeof VOCABULARY - 1, &LOWER));
    status st = tokenizer_split(p, "unaffable, wanted", 17, &ids);
    mem_free(ids.ids);
    tokenizer_destroy(p);
    return st;
}

TEST(word_pieces_no_memory) {
    CHECK(oom_at_each_allocation(split_once, NULL) > 3);
}

/* Random texts, and small models, beside Hugging Face's own packages. */
TEST(word_pieces_as_hugging_face_has_them) {
    char *text;
    int code =
        test_command(&text, "python3 tests/encoder/compare.py %s --texts 800", test_program());
    if (code != 0 && code != 1) SKIP_TEST("Python's package tokenizers is not here");
    if (code == 1) FAIL_TEST("%s", text);
    CHECK_CONTAINS(text, " 0 differ");
    free(text);
}
