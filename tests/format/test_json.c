#include <locale.h>
#include <math.h>

#include "base/hash.h"
#include "format/json.h"
#include "oom.h"
#include "test.h"

static arena tree;
static buf number, string;

AFTER_TESTS {
    arena_fini(&tree);
    buf_fini(&number);
    buf_fini(&string);
}

/* Parses text into an arena that lives as long as the test. */
static status parse(const char *text, size_t n, const json_value **out) {
    arena_fini(&tree);
    arena_init(&tree, 4096);
    /* A copy of exactly n bytes: the address sanitizer sees any read past the end. */
    char *copy = malloc(n + (n == 0));
    memcpy(copy, text, n);
    status st = json_parse(&tree, "t.json", copy, n, out);
    free(copy);
    return st;
}

static const json_value *parsed(const char *text) {
    const json_value *v;
    CHECK_OK(parse(text, strlen(text), &v));
    return v;
}

#define CHECK_REFUSED(text, reason)                                                                \
    do {                                                                                           \
        const json_value *v_;                                                                      \
        CHECK_FAILS(parse((text), strlen(text), &v_), ERR_FORMAT, (reason));                       \
        CHECK(v_ == NULL);                                                                         \
    } while (0)

static const char *written_double(double value) {
    json_writer w;
    buf_clear(&number);
    json_begin(&w, &number, 0);
    json_double(&w, value);
    CHECK_OK(json_finish(&w));
    return buf_str(&number);
}

static const char *written_string(const char *text, size_t n) {
    json_writer w;
    buf_clear(&string);
    json_begin(&w, &string, 0);
    json_string_n(&w, text, n);
    CHECK_OK(json_finish(&w));
    return buf_str(&string);
}

static void write_sample(json_writer *w) {
    json_object_open(w);
    json_key_string(w, "name", "a");
    json_key(w, "list");
    json_array_open(w);
    json_int(w, -1);
    json_uint(w, UINT64_MAX);
    json_null(w);
    json_array_open(w);
    json_array_close(w);
    json_object_open(w);
    json_object_close(w);
    json_array_close(w);
    json_key_bool(w, "yes", true);
    json_key_double(w, "x", 0.5);
    json_key_int(w, "n", INT64_MIN);
    json_object_close(w);
}

TEST(json_writes_one_line) {
    buf b = {0};
    json_writer w;
    json_begin(&w, &b, 0);
    write_sample(&w);
    CHECK_OK(json_finish(&w));
    CHECK_STR(buf_str(&b), "{\"name\":\"a\",\"list\":[-1,18446744073709551615,null,[],{}],"
                           "\"yes\":true,\"x\":0.5,\"n\":-9223372036854775808}");
    buf_fini(&b);
}

TEST(json_writes_indented) {
    buf b = {0};
    json_writer w;
    json_begin(&w, &b, 2);
    write_sample(&w);
    CHECK_OK(json_finish(&w));
    CHECK_STR(buf_str(&b),
              "{\n  \"name\": \"a\",\n  \"list\": [\n    -1,\n    18446744073709551615,\n"
              "    null,\n    [],\n    {}\n  ],\n  \"yes\": true,\n  \"x\": 0.5,\n"
              "  \"n\": -9223372036854775808\n}");
    buf_fini(&b);
}

TEST(json_escapes_strings) {
    CHECK_STR(written_string("a\"b\\c/\b\f\n\r\t\x01\x1f\x7f", 14),
              "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\"");
    CHECK_STR(written_string("x\0y", 3), "\"x\\u0000y\"");
    CHECK_STR(written_string("", 0), "\"\"");
    CHECK_STR(written_string("Am\xc3\xa9lie \xe2\x82\xac \xf0\x9f\x8e\xac", 16),
              "\"Am\xc3\xa9lie \xe2\x82\xac \xf0\x9f\x8e\xac\"");
}

TEST(json_replaces_invalid_utf8) {
#define BAD "\xef\xbf\xbd"
    CHECK_STR(written_string("Am\xe9lie", 6), "\"Am" BAD "lie\"");       /* Latin-1 */
    CHECK_STR(written_string("\xc0\x80", 2), "\"" BAD BAD "\"");         /* overlong */
    CHECK_STR(written_string("\xed\xa0\x80", 3), "\"" BAD BAD BAD "\""); /* a surrogate */
    CHECK_STR(written_string("\xf4\x90\x80\x80", 4), "\"" BAD BAD BAD BAD "\"");
    CHECK_STR(written_string("\xe2\x82", 2), "\"" BAD BAD "\""); /* cut off */
    CHECK_STR(written_string("\xe2\x82\"", 3), "\"" BAD BAD "\\\"\"");
}

TEST(json_writes_shortest_doubles) {
    CHECK_STR(written_double(0.1), "0.1");
    CHECK_STR(written_double(0.1 + 0.2), "0.30000000000000004");
    CHECK_STR(written_double(1.0 / 3), "0.3333333333333333");
    CHECK_STR(written_double(100), "100");
    CHECK_STR(written_double(-0.0), "-0");
    CHECK_STR(written_double(1e300), "1e+300");
    CHECK_STR(written_double(5e-324), "4.94065645841247e-324");
    CHECK_STR(written_double(1.7976931348623157e308), "1.7976931348623157e+308");
    CHECK_STR(written_double(INFINITY), "null");
    CHECK_STR(written_double(-INFINITY), "null");
    CHECK_STR(written_double(NAN), "null");
}

TEST(json_doubles_round_trip) {
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        double value;
        uint64_t bits = hash64_mix(state++ * 0x9e3779b97f4a7c15u);
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        const json_value *v = parsed(written_double(value));
        CHECK(v->type == JSON_NUMBER && v->number == value);
    }
}

TEST(json_ignores_the_locale) {
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL && setlocale(LC_ALL, "fr_FR.UTF-8") == NULL)
        SKIP_TEST("no locale with a decimal comma is installed");
    CHECK_STR(written_double(0.5), "0.5");
    CHECK(parsed("2.5e0")->number == 2.5);
}

TEST(json_writer_refuses_great_depth) {
    buf b = {0};
    json_writer w;
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 40; depth += 40) {
        buf_clear(&b);
        json_begin(&w, &b, 0);
        for (int i = 0; i < depth; i++)
            json_array_open(&w);
        for (int i = 0; i < depth; i++)
            json_array_close(&w);
        if (depth == JSON_MAX_DEPTH)
            CHECK_OK(json_finish(&w));
        else
            CHECK_FAILS(json_finish(&w), ERR_FORMAT, "deeper than 64 levels");
        if (depth == JSON_MAX_DEPTH) parsed(buf_str(&b));
    }
    buf_fini(&b);
}

TEST(json_reads_values) {
    const json_value *v =
        parsed(" {\"a\" : [1, -2.5e+1, true, false, null, \"x\"],\r\n\t\"b\":{}} ");
    CHECK_EQ(v->type, JSON_OBJECT);
    CHECK_EQ(v->n_children, 2);
    const json_value *a = json_member(v, "a");
    CHECK_EQ(a->type, JSON_ARRAY);
    CHECK_EQ(a->n_children, 6);
    const json_value *e = a->first;
    CHECK(e->type == JSON_NUMBER && e->is_integer && e->integer == 1 && e->number == 1.0);
    e = e->next;
    CHECK(e->type == JSON_NUMBER && !e->is_integer && e->number == -25.0);
    e = e->next;
    CHECK(e->type == JSON_BOOL && e->boolean);
    e = e->next;
    CHECK(e->type == JSON_BOOL && !e->boolean);
    e = e->next;
    CHECK_EQ(e->type, JSON_NULL);
    e = e->next;
    CHECK_STR(e->string, "x");
    CHECK(e->next == NULL);
    CHECK_EQ(json_member(v, "b")->n_children, 0);
    CHECK(json_member(v, "c") == NULL && json_member(a, "c") == NULL);
}

TEST(json_reads_numbers) {
    const json_value *v = parsed("9223372036854775807");
    CHECK(v->is_integer && v->integer == INT64_MAX);
    v = parsed("-9223372036854775808");
    CHECK(v->is_integer && v->integer == INT64_MIN);
    v = parsed("[999999999999999999, -999999999999999999, 1000000000000000001]")->first;
    CHECK(v->is_integer && v->integer == 999999999999999999 && v->number == 1e18);
    CHECK(v->next->is_integer && v->next->integer == -999999999999999999);
    CHECK(v->next->next->integer == 1000000000000000001);
    v = parsed("9223372036854775808");
    CHECK(!v->is_integer && v->number == 9223372036854775808.0);
    v = parsed("18446744073709551615");
    CHECK(!v->is_integer && v->number == 18446744073709551616.0);
    v = parsed("-0");
    CHECK(v->is_integer && v->integer == 0 && signbit(v->number));
    v = parsed("0");
    CHECK(v->is_integer && !signbit(v->number));
    v = parsed("1E2");
    CHECK(!v->is_integer && v->number == 100.0);
    CHECK(parsed("1e-400")->number == 0.0);
    CHECK(parsed("0.1")->number == 0.1);
    char digits[400];
    memset(digits, '9', 300);
    digits[300] = '\0';
    CHECK(parsed(digits)->number == 1e300);
}

TEST(json_reads_strings) {
    const json_value *v =
        parsed("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83c\\udfac\"");
    CHECK_STR(v->string, "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\xac");
    CHECK_EQ(v->string_bytes, 18);
    CHECK_STR(parsed("\"\xf4\x8f\xbf\xbf\xed\x9f\xbf\"")->string, "\xf4\x8f\xbf\xbf\xed\x9f\xbf");
    CHECK_STR(parsed("\"\x7f\"")->string, "\x7f");
    CHECK_STR(parsed("\"\"")->string, "");
}

TEST(json_refuses_with_place) {
    CHECK_REFUSED("", "t.json:1: byte 0: expected a value (string, number, object, array, true, "
                      "false or null), but the text ends here");
    CHECK_REFUSED("{\n\"a\": 1,\n\"b\" 2}", "t.json:3: byte 14: expected ':' after the key, found "
                                            "'2'");
    CHECK_REFUSED("[1 2]", "t.json:1: byte 3: expected ',' or ']', found '2'");
    CHECK_REFUSED("{\"a\":1 \x80", "t.json:1: byte 7: expected ',' or '}', found byte 0x80");
    CHECK_REFUSED("[1,]", "byte 3: expected a value");
    CHECK_REFUSED("{\"a\":1,}", "byte 7: expected a key in double quotes, found '}'");
    CHECK_REFUSED("{a:1}", "expected a key in double quotes");
    CHECK_REFUSED("[", "the text ends here");
    CHECK_REFUSED("{\"a\"", "expected ':' after the key, but the text ends here");
    CHECK_REFUSED("1 1", "t.json:1: byte 2: expected the end of the text, found '1'");
    CHECK_REFUSED("{}\n\n,", "t.json:3: byte 4: expected the end of the text, found ','");
    CHECK_REFUSED("nul", "expected a value");
    CHECK_REFUSED("True", "expected a value");
    CHECK_REFUSED("'a'", "expected a value");
    CHECK_REFUSED("// c\n1", "expected a value");
    CHECK_REFUSED("\xef\xbb\xbf{}", "found byte 0xef");
    const json_value *v;
    CHECK_FAILS(parse("1\0", 2, &v), ERR_FORMAT, "expected the end of the text, found byte 0x00");
}

TEST(json_refuses_numbers) {
    CHECK_REFUSED("01", "t.json:1: byte 0: a number must not start with 0");
    CHECK_REFUSED("-012", "byte 1: a number must not start with 0");
    CHECK_REFUSED("+1", "expected a value");
    CHECK_REFUSED(".5", "expected a value");
    CHECK_REFUSED("-", "byte 1: expected a digit, but the text ends here");
    CHECK_REFUSED("-a", "expected a digit, found 'a'");
    CHECK_REFUSED("1.", "expected a digit after the decimal point");
    CHECK_REFUSED("1.e5", "expected a digit after the decimal point, found 'e'");
    CHECK_REFUSED("1e", "expected a digit in the exponent");
    CHECK_REFUSED("1e+", "expected a digit in the exponent");
    CHECK_REFUSED("0x10", "expected the end of the text, found 'x'");
    CHECK_REFUSED("NaN", "expected a value");
    CHECK_REFUSED("Infinity", "expected a value");
    CHECK_REFUSED("-Infinity", "expected a digit");
    CHECK_REFUSED("1e309", "byte 0: 1e309 is larger than any double");
    CHECK_REFUSED("[-1e999]", "byte 1: -1e999 is larger than any double");
}

TEST(json_refuses_strings) {
    CHECK_REFUSED("[\"abc", "byte 1: this string has no closing quote");
    CHECK_REFUSED("\"abc\\", "the text ends here");
    CHECK_REFUSED("\"abc\\\"", "byte 0: this string has no closing quote");
    CHECK_REFUSED("\"a\nb\"", "byte 2: control byte 0x0a in a string; write it as \\u000a");
    CHECK_REFUSED("\"\\x41\"", "byte 2: expected one of \"\\/bfnrtu after a backslash, found 'x'");
    CHECK_REFUSED("\"\\u12g4\"", "byte 5: expected four hexadecimal digits after \\u, found 'g'");
    CHECK_REFUSED("\"\\u12", "the text ends here");
    CHECK_REFUSED("\"\\u0000\"", "\\u0000 cannot be part of a string");
    CHECK_REFUSED("\"\\ud800\"", "byte 1: a lone surrogate \\ud800");
    CHECK_REFUSED("\"\\ud800\\u0041\"", "byte 1: a lone surrogate \\ud800");
    CHECK_REFUSED("\"\\ud800\\n\"", "a lone surrogate");
    CHECK_REFUSED("\"\\udc00\\ud800\"", "byte 1: a lone surrogate \\udc00");
    CHECK_REFUSED("\"\xc0\xaf\"", "byte 1: byte 0xc0 is not UTF-8");
    CHECK_REFUSED("\"\xe0\x9f\xbf\"", "byte 0xe0 is not UTF-8");
    CHECK_REFUSED("\"\xed\xa0\x80\"", "byte 0xed is not UTF-8");
    CHECK_REFUSED("\"\xf5\x80\x80\x80\"", "byte 0xf5 is not UTF-8");
    CHECK_REFUSED("\"\x80\"", "byte 0x80 is not UTF-8");
    CHECK_REFUSED("\"\xe2\x82\"", "byte 0xe2 is not UTF-8");
    const json_value *v;
    CHECK_FAILS(parse("\"a\0b\"", 5, &v), ERR_FORMAT, "control byte 0x00 in a string");
}

TEST(json_refuses_duplicate_keys) {
    CHECK_REFUSED("{\"a\":1,\n \"b\":2,\"a\":3,\"b\":4}",
                  "t.json:2: byte 15: the key \"a\" stands here for the second time");
    CHECK_REFUSED("{\"a\":1,\"\\u0061\":2}", "the key \"a\" stands here for the second time");
    CHECK_REFUSED("{\"\":1,\"\":2}", "the key \"\" stands");
    CHECK_REFUSED("[{\"x\":{\"a\":1,\"a\":2}}]", "the key \"a\"");
    parsed("{\"a\":{\"a\":[{\"a\":1},{\"a\":1}]},\"b\":{\"a\":1}}");
    for (int n = 2; n <= 20; n++) { /* few and many keys: the last is the first again, or not */
        char text[300] = "{";
        size_t at = 1;
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "\"k%d\":1,", n - i);
        snprintf(text + at, sizeof text - at, "\"k%d\":1}", n);
        CHECK_REFUSED(text, "stands here for the second time");
        snprintf(text + at, sizeof text - at, "\"k\":1}");
        parsed(text);
    }
}

/* The keys of an object are compared with those of the one before it in an array first. */
TEST(json_reads_lists_of_objects) {
    static const struct {
        const char *text, *keys; /* of the last object */
    } lists[] = {{"[{\"a\":1,\"b\":2},{\"a\":3,\"b\":4}]", "a b "},
                 {"[{\"a\":1,\"b\":2},{\"b\":3,\"a\":4}]", "b a "},
                 {"[{\"a\":1,\"b\":1},{\"ab\":2,\"b\":3}]", "ab b "},
                 {"[{\"ab\":1},{\"a\":2}]", "a "},
                 {"[{\"a\":1},{\"a\":1,\"b\":2,\"c\":3}]", "a b c "},
                 {"[{\"a\":1,\"b\":1},{\"a\":2}]", "a "},
                 {"[{\"\\u0061\":1},{\"a\":2},{\"a\":3}]", "a "},
                 {"[{\"a\":1},{\"\\u0061\":2}]", "a "},
                 {"[{\"a\":1},{ \"a\" :2 }]", "a "},
                 {"[{\"\":1},{\"\":2}]", " "},
                 {"[{\"a\\\"b\":1},{\"a\\\"b\":2}]", "a\"b "},
                 {"[{\"\303\244\":1},{\"\303\244\":2}]", "\303\244 "},
                 {"[{\"a\":1},7,[{\"b\":1}],{\"a\":1,\"c\":[{\"a\":1},{\"a\":2}]}]", "a c "}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char keys[32] = "";
        const json_value *last = parsed(lists[i].text)->first;
        while (last->next != NULL)
            last = last->next;
        for (const json_value *m = last->first; m != NULL; m = m->next) {
            strcat(keys, m->key);
            strcat(keys, " ");
        }
        CHECK_STR(keys, lists[i].keys);
    }
    CHECK_REFUSED("[{\"a\":1,\"b\":2},{\"a\":3,\"b\":4,\"a\":5}]", "byte 28: the key \"a\" stands");
    CHECK_REFUSED("[{\"a\":1,\"b\":2},{\"b\":3,\"b\":4}]", "the key \"b\" stands");
    CHECK_REFUSED("[{\"a\":1},{\"a\":2,\"a\":3}]", "the key \"a\" stands");
    CHECK_REFUSED("[{\"a\":1,\"b\":2},{\"a\":1,\"\\u0061\":2}]", "the key \"a\" stands");
    CHECK_REFUSED("[{\"a\":1},{\"a", "no closing quote");
    CHECK_REFUSED("[{\"a\":1},{\"a\"", "':' after the key");
}

TEST(json_limits_depth) {
    char text[400] = "";
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        strcat(text, i % 2 ? "[" : "{\"a\":");
    size_t opened = strlen(text);
    strcat(text, "1");
    for (int i = JSON_MAX_DEPTH - 1; i >= 0; i--)
        strcat(text, i % 2 ? "]" : "}");
    parsed(text);
    text[opened] = '[';
    CHECK_REFUSED(text, "nested deeper than 64 levels");
    size_t n = 1 << 20;
    char *deep = malloc(n + 1);
    memset(deep, '[', n);
    deep[n] = '\0';
    CHECK_REFUSED(deep, "byte 64: nested deeper than 64 levels");
    free(deep);
}

TEST(json_reads_many_keys_quickly) {
    buf b = {0};
    json_writer w;
    json_begin(&w, &b, 0);
    json_object_open(&w);
    for (int i = 0; i < 300000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        json_key_int(&w, key, i);
    }
    json_key_int(&w, "last", 7);
    json_object_close(&w);
    CHECK_OK(json_finish(&w));
    const json_value *v;
    int64_t last;
    CHECK_OK(parse(b.data, b.n_bytes, &v));
    CHECK_EQ(v->n_children, 300001);
    CHECK_OK(json_member_int(v, "last", &last));
    CHECK_EQ(last, 7);
    b.n_bytes--;
    CHECK_OK(buf_text(&b, ",\"k77\":0}"));
    CHECK_FAILS(parse(b.data, b.n_bytes, &v), ERR_FORMAT, "the key \"k77\" stands here");
    buf_fini(&b);
}

TEST(json_typed_members) {
    const json_value *v = parsed("{\"i\":3,\"d\":0.5,\"s\":\"t\",\"z\":null}");
    int64_t i;
    double d;
    const char *s;
    CHECK_OK(json_member_int(v, "i", &i));
    CHECK_EQ(i, 3);
    CHECK_OK(json_member_double(v, "d", &d));
    CHECK(d == 0.5);
    CHECK_OK(json_member_double(v, "i", &d));
    CHECK(d == 3.0);
    CHECK_OK(json_member_string(v, "s", &s));
    CHECK_STR(s, "t");
    CHECK_FAILS(json_member_int(v, "steps", &i), ERR_FORMAT, "the member 'steps' is missing");
    CHECK_FAILS(json_member_int(v, "d", &i), ERR_FORMAT, "'d' must be a 64-bit integer, not 0.5");
    CHECK_FAILS(json_member_int(v, "s", &i), ERR_FORMAT, "'s' must be a number, not a string");
    CHECK_FAILS(json_member_string(v, "z", &s), ERR_FORMAT, "'z' must be a string, not null");
    CHECK_FAILS(json_member_double(json_member(v, "i"), "x", &d), ERR_FORMAT,
                "expected an object with a member 'x', found a number");
}

/* Reads and writes with a small arena, so that many allocations can fail. */
static status read_and_write(void *ctx) {
    const char *text = "{\"a\":[1,2.5,\"a long enough string to need a block\"],\"b\":{\"c\":1}}";
    arena values;
    buf b = {0};
    json_writer w;
    const json_value *v;
    (void)ctx;
    arena_init(&values, 64);
    status st = json_parse(&values, "t.json", text, strlen(text), &v);
    json_begin(&w, &b, 2);
    if (st == OK) {
        write_sample(&w);
        st = json_finish(&w);
    }
    buf_fini(&b);
    arena_fini(&values);
    return st;
}

TEST(json_survives_lack_of_memory) {
    CHECK(oom_at_each_allocation(read_and_write, NULL) > 5);
}

/* A seal that is added later is the one that the writer writes. */
TEST(json_seal_is_added_to_a_finished_object) {
    json_writer w;
    buf text = {0}, other = {0};
    for (int i = 0; i < 2; i++) {
        json_begin(&w, i == 0 ? &text : &other, 2);
        json_object_open(&w);
        json_key_int(&w, "a", 7);
        if (i == 1) CHECK_OK(json_finish_sealed(&w));
    }
    CHECK_OK(buf_text(&text, "\n}"));
    CHECK_OK(json_add_seal(&text));
    CHECK_STR(buf_str(&text), buf_str(&other));
    buf_clear(&text);
    CHECK_OK(buf_text(&text, "{}"));
    CHECK_FAILS(json_add_seal(&text), ERR_FORMAT, "no indented object");
    buf_fini(&text);
    buf_fini(&other);
}

/* A sealed text accepts no change of any byte, in either layout, but a newline at its end. */
TEST(json_seal_covers_every_byte) {
    for (int indent = 0; indent <= 2; indent += 2) {
        json_writer w;
        buf text = {0};
        char want[9];
        json_begin(&w, &text, indent);
        json_object_open(&w);
        json_key_int(&w, "crc32 of", 7);
        json_key_string(&w, "a", "\"crc32\": \"00000000\"");
        CHECK_OK(json_finish_sealed(&w));
        CHECK(json_is_sealed(text.data, text.n_bytes));
        CHECK(json_seal(text.data, text.n_bytes, want) != NULL);
        for (size_t i = 0; i < text.n_bytes; i++)
            for (int change = 1; change < 256; change++) {
                text.data[i] = (char)(text.data[i] ^ change);
                if (json_is_sealed(text.data, text.n_bytes))
                    FAIL_TEST("byte %zu ^ %d went unseen", i, change);
                text.data[i] = (char)(text.data[i] ^ change);
            }
        for (size_t n = 0; n < text.n_bytes; n++)
            CHECK(!json_is_sealed(text.data, n));
        CHECK_OK(buf_text(&text, "\n"));
        CHECK(json_is_sealed(text.data, text.n_bytes));
        text.data[5] ^= 1;
        CHECK(!json_is_sealed(text.data, text.n_bytes));
        text.data[5] ^= 1;
        CHECK_OK(buf_text(&text, "\n"));
        CHECK(!json_is_sealed(text.data, text.n_bytes));
        buf_fini(&text);
    }
}

TEST(csv_write_quotes_what_needs_it) {
    struct {
        const char *in, *out;
        size_t n;
    } cases[] = {{"plain", "plain", 5},      {"", "\"\"", 0},
                 {"a,b", "\"a,b\"", 3},      {"say \"x\"", "\"say \"\"x\"\"\"", 7},
                 {"a\nb", "\"a\nb\"", 3},    {"a\rb", "\"a\rb\"", 3},
                 {"\xff\xfe", "\xff\xfe", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf b = {0};
        CHECK_OK(csv_put_field(&b, cases[i].in, cases[i].n));
        CHECK_STR(buf_str(&b), cases[i].out);
        buf_fini(&b);
    }
}

TEST(fields_are_written_by_their_type) {
    buf out = {0};
    json_writer w;
    char text[] = "a\"b";
    json_begin(&w, &out, 0);
    json_object_open(&w);
    JSON_FIELDS(&w, FIELD("i", -3), FIELD("u", UINT64_MAX), FIELD("d", 0.5), FIELD("b", (bool)true),
                KNOWN("left_out", NAN), KNOWN("k", 2.5), FIELD("n", (double)NAN), FIELD("s", text));
    json_key_array(&w, "l");
    JSON_OBJECT(&w, FIELD("x", (int64_t)1 << 40));
    json_array_close(&w);
    json_object_close(&w);
    CHECK_OK(json_finish(&w));
    CHECK_STR(buf_str(&out), "{\"i\":-3,\"u\":18446744073709551615,\"d\":0.5,\"b\":true,\"k\":2.5,"
                             "\"n\":null,\"s\":\"a\\\"b\",\"l\":[{\"x\":1099511627776}]}");
    buf_fini(&out);
}
