/* The gin reader: every form of text, with its place, and every way to be wrong. */
#include "base/log.h"
#include "config/gin.h"
#include "test.h"

static gin_config g;

AFTER_TESTS {
    gin_fini(&g);
}

/* Reads text as the file "t" and finishes. */
static status read_bytes(const char *text, size_t n) {
    gin_fini(&g);
    gin_init(&g);
    status st = gin_read_text(&g, "t", text, n);
    return st == OK ? gin_finish(&g) : st;
}

static status read_all(const char *text) {
    return read_bytes(text, strlen(text));
}

static const gin_value *value_of(const char *scope, const char *class_name, const char *field) {
    const gin_binding *b = gin_find(&g, scope, class_name, field);
    if (b == NULL) FAIL_TEST("nothing binds %s/%s.%s", scope, class_name, field);
    return b->value;
}

/* The value of `A.b = TEXT`. */
static const gin_value *value(const char *text) {
    char line[4096];
    snprintf(line, sizeof line, "A.b = %s", text);
    CHECK_OK(read_all(line));
    return value_of("", "A", "b");
}

static void write_file(const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    FILE *f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) FAIL_TEST("cannot write %s", path);
}

static status read_file(const char *name) {
    char path[4096];
    gin_fini(&g);
    gin_init(&g);
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    status st = gin_read_file(&g, path);
    return st == OK ? gin_finish(&g) : st;
}

TEST(gin_numbers) {
    static const struct {
        const char *text;
        int64_t integer;
    } ints[] = {{"0", 0},
                {"12", 12},
                {"-7", -7},
                {"+7", 7},
                {"1_000_000", 1000000},
                {"0x1F", 31},
                {"-0x10", -16},
                {"0o17", 15},
                {"0b101", 5},
                {"- 3", -3},
                {"000", 0},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        const gin_value *v = value(ints[i].text);
        CHECK_EQ(v->type, GIN_INT);
        CHECK_EQ(v->integer, ints[i].integer);
        CHECK(v->number == (double)ints[i].integer);
    }
    static const struct {
        const char *text;
        double number;
    } floats[] = {{"1e-3", 1e-3}, {"0.05", 0.05}, {".5", 0.5},     {"2.", 2},
                  {"-1.5", -1.5}, {"1E+2", 100},  {"1_0.5", 10.5}, {"1e-400", 0}};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        CHECK_EQ(value(floats[i].text)->type, GIN_FLOAT);
        CHECK(value(floats[i].text)->number == floats[i].number);
    }
}

TEST(gin_numbers_refused) {
    CHECK_FAILS(read_all("A.b = 9223372036854775808"), ERR_CONFIG,
                "t:1: 9223372036854775808 does not fit");
    CHECK_FAILS(read_all("\nA.b = 1e999"), ERR_CONFIG, "t:2: 1e999 is too large");
    CHECK_FAILS(read_all("A.b = 007"), ERR_CONFIG, "'007' is not a number");
    CHECK_FAILS(read_all("A.b = 1__0"), ERR_CONFIG, "'1__0' is not a number");
    CHECK_FAILS(read_all("A.b = 1_"), ERR_CONFIG, "'1_' is not a number");
    CHECK_FAILS(read_all("A.b = 12abc"), ERR_CONFIG, "'12abc' is not a number");
    CHECK_FAILS(read_all("A.b = 0x"), ERR_CONFIG, "'0x' is not a number");
    CHECK_FAILS(read_all("A.b = 0x1.8p3"), ERR_CONFIG, "is not a number");
    CHECK_FAILS(read_all("A.b = -"), ERR_CONFIG, "'-' is not a number");
    CHECK_FAILS(read_all("A.b = 1.2.3"), ERR_CONFIG, "'1.2.3' is not a number");
    CHECK_FAILS(read_all("A.b = inf"), ERR_CONFIG, "'inf' is not a value");
    CHECK_FAILS(read_all("A.b = -inf"), ERR_CONFIG, "'-inf' is not a number");
    CHECK_FAILS(read_all("A.b = nan"), ERR_CONFIG, "'nan' is not a value");
    CHECK_FAILS(read_all("A.b = 1j"), ERR_CONFIG, "'1j' is not a number");
}

TEST(gin_strings) {
    CHECK_STR(value("'a b'")->string, "a b");
    CHECK_STR(value("\"it's\"")->string, "it's");
    CHECK_STR(value("''")->string, "");
    CHECK_STR(value("'a#b'  # comment")->string, "a#b");
    CHECK_STR(value("'a' \"b\" 'c'")->string, "abc");
    CHECK_STR(value("'a' \\\n  'b'")->string, "ab");
    CHECK_STR(value("('a'\n  # between\n 'b')")->string, "ab");
    CHECK_STR(value("'''two\nlines ''quoted'' '''")->string, "two\nlines ''quoted'' ");
    CHECK_STR(value("\"\"\"\"q\" \"\"\"")->string, "\"q\" ");
    CHECK_STR(value("'\\n\\t\\\\\\'\\\"\\x41\\101\\u00e9\\U0001F600\\q'")->string,
              "\n\t\\'\"AA\xc3\xa9\xf0\x9f\x98\x80\\q");
    CHECK_STR(value("'\\ud7ff\\ue000\\U0010ffff'")->string,
              "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"); /* beside what is none */
    CHECK_STR(value("'a\\\nb'")->string, "ab");
    CHECK_STR(value("r'a\\nb'")->string, "a\\nb");
    CHECK_STR(value("u'x'")->string, "x");
    CHECK_EQ(value("'''a\nb'''\nC.d = 1")->line, 1);
    CHECK_EQ(value_of("", "C", "d")->line, 3);
}

TEST(gin_strings_refused) {
    CHECK_FAILS(read_all("A.b = 'open"), ERR_CONFIG,
                "t:1: the string that starts here is not closed (' is");
    CHECK_FAILS(read_all("A.b = 'open\n'"), ERR_CONFIG,
                "t:1: the string that starts here is not closed");
    CHECK_FAILS(read_all("\n\nA.b = '''x\n\ny''"), ERR_CONFIG,
                "t:3: the string that starts here is not closed (''' is");
    CHECK_FAILS(read_all("A.b = 'x\\"), ERR_CONFIG, "is not closed");
    CHECK_FAILS(read_all("A.b = r'x\\"), ERR_CONFIG, "is not closed");
    CHECK_FAILS(read_all("A.b = '\\x4'"), ERR_CONFIG, "needs 2 hexadecimal digits");
    CHECK_FAILS(read_all("A.b = '\\ud800'"), ERR_CONFIG, "is not a character");
    CHECK_FAILS(read_all("A.b = '\\udfff'"), ERR_CONFIG, "is not a character");
    CHECK_FAILS(read_all("A.b = '\\U00110000'"), ERR_CONFIG, "is not a character");
    CHECK_FAILS(read_all("A.b = '\\0'"), ERR_CONFIG, "NUL character");
    CHECK_FAILS(read_all("A.b = b'x'"), ERR_CONFIG, "'b' is not a value");
    CHECK_FAILS(read_all("A.b = adam"), ERR_CONFIG,
                "t:1: 'adam' is not a value; strings need quotes");
    CHECK_FAILS(read_all("A.b = true"), ERR_CONFIG, "'true' is not a value");
}

TEST(gin_containers) {
    const gin_value *v = value("[1, 'x', True, None, (2.5,), {'k': [3], 4: ()},]  # end");
    CHECK_EQ(v->type, GIN_LIST);
    CHECK_EQ(v->n_children, 6);
    const gin_value *e = v->first;
    CHECK_EQ(e->integer, 1);
    CHECK_STR((e = e->next)->string, "x");
    CHECK((e = e->next)->type == GIN_BOOL && e->boolean);
    CHECK_EQ((e = e->next)->type, GIN_NONE);
    CHECK_EQ((e = e->next)->type, GIN_TUPLE);
    CHECK_EQ(e->n_children, 1);
    CHECK_EQ((e = e->next)->type, GIN_DICT);
    CHECK_STR(e->first->key->string, "k");
    CHECK_EQ(e->first->first->integer, 3);
    CHECK_EQ(e->first->next->key->integer, 4);
    CHECK_EQ(e->first->next->type, GIN_TUPLE);
    CHECK_EQ(e->first->next->n_children, 0);
    CHECK_EQ(value("(1)")->type, GIN_INT);
    CHECK_EQ(value("(1, 2)")->type, GIN_TUPLE);
    CHECK_EQ(value("[]")->n_children, 0);
    CHECK_EQ(value("{}")->type, GIN_DICT);
    CHECK_EQ(value("[(1), (2)]")->n_children, 2);
    v = value("[\n    512, 8,  # widths\n]\nA.c = 3");
    CHECK_EQ(v->first->line, 2);
    CHECK_EQ(value_of("", "A", "c")->line, 4);
}

TEST(gin_containers_refused) {
    char deep[200];
    memset(deep, '[', 100);
    deep[100] = '\0';
    memcpy(deep, "A.b=", 4);
    CHECK_FAILS(read_all(deep), ERR_CONFIG, "t:1: brackets are nested more than 48 deep");
    CHECK_FAILS(read_all("A.b = [1, 2\n\n"), ERR_CONFIG,
                "t:1: the bracket that opens here is not closed (']'");
    CHECK_FAILS(read_all("A.b = [1 2]"), ERR_CONFIG, "',' or ']' is expected, not '2'");
    CHECK_FAILS(read_all("A.b = [1)"), ERR_CONFIG, "',' or ']' is expected, not ')'");
    CHECK_FAILS(read_all("A.b = {'a' 1}"), ERR_CONFIG, "the ':' is missing");
    CHECK_FAILS(read_all("A.b = {1, 2}"), ERR_CONFIG, "the ':' is missing");
    CHECK_FAILS(read_all("A.b = [,]"), ERR_CONFIG, "a value cannot start with ','");
    CHECK_FAILS(read_all("A.b = (1,,2)"), ERR_CONFIG, "a value cannot start with ','");
    CHECK_FAILS(read_all("A.b = 1 2"), ERR_CONFIG, "t:1: the end of the line is expected, not '2'");
    CHECK_FAILS(read_all("A.b = 1]"), ERR_CONFIG, "the end of the line is expected, not ']'");
}

TEST(gin_names_and_scopes) {
    CHECK_OK(read_all("a/b/mod.sub.Class.field = 1\nClass.field = 2\na/Class.other=3\n"));
    CHECK_EQ(value_of("a/b", "Class", "field")->integer, 1);
    CHECK_EQ(value_of("a", "Class", "field")->integer, 2);
    CHECK_EQ(value_of("", "Class", "field")->integer, 2);
    CHECK_EQ(value_of("a/b/c", "Class", "field")->integer, 1);
    CHECK_EQ(value_of("a/b", "Class", "other")->integer, 3);
    CHECK(gin_find(&g, "", "Class", "other") == NULL);
    CHECK(gin_find(&g, "ab", "Class", "other") == NULL);
    CHECK(gin_find(&g, "b", "Class", "other") == NULL);
    CHECK_STR(g.bindings[0]->scope, "a/b");
    CHECK_STR(g.bindings[0]->class_name, "Class");
}

TEST(gin_later_binding_wins) {
    CHECK_OK(read_all("A.b = 1\nA.c = 5\nA.b = 2\n"));
    CHECK_EQ(value_of("", "A", "b")->integer, 2);
    CHECK_EQ(gin_find(&g, "", "A", "b")->line, 3);
    CHECK_EQ(g.n_bindings, 3);
}

TEST(gin_names_refused) {
    CHECK_FAILS(read_all("1A.b = 1"), ERR_CONFIG, "t:1: a name is expected, not '1'");
    CHECK_FAILS(read_all("A. = 1"), ERR_CONFIG, "'A.' is not a whole name");
    CHECK_FAILS(read_all("A..b = 1"), ERR_CONFIG, "'A.' is not a whole name");
    CHECK_FAILS(read_all("a//B.c = 1"), ERR_CONFIG, "'a/' is not a whole name");
    CHECK_FAILS(read_all("/A.b = 1"), ERR_CONFIG, "a name is expected, not '/'");
    CHECK_FAILS(read_all("m.a/B.c = 1"), ERR_CONFIG, "a scope, before '/', has no '.'");
    CHECK_FAILS(read_all("A.b 1"), ERR_CONFIG, "'=' is expected after 'b'");
    CHECK_FAILS(read_all("A.b ="), ERR_CONFIG, "t:1: a value is missing");
    CHECK_FAILS(read_all("A.b =\n 3"), ERR_CONFIG, "t:1: a value is missing");
    CHECK_FAILS(read_all("A.b = # 3"), ERR_CONFIG, "a value is missing");
    CHECK_FAILS(read_all("A.b = @"), ERR_CONFIG, "the name of a configurable is missing");
    CHECK_FAILS(read_all("A.b = @x(1)"), ERR_CONFIG, "'@x(' must be followed by ')'");
    CHECK_FAILS(read_all("\xff"), ERR_CONFIG, "a name is expected, not byte 0xff");
}

TEST(gin_references) {
    const gin_value *v = value("@s/t/mod.Class()");
    CHECK_EQ(v->type, GIN_REFERENCE);
    CHECK_STR(v->scope, "s/t");
    CHECK_STR(v->name, "Class");
    CHECK(v->is_call);
    v = value("@Class");
    CHECK_STR(v->scope, "");
    CHECK(!v->is_call);
    CHECK(value("@Class( )")->is_call);
}

TEST(gin_macros) {
    CHECK_OK(read_all("A.b = %size\nA.c = [%size, %s/other]\nsize = 4\ns/other = %size\nsize = 5\n"
                      "A.d = {%key: %list}\nkey = 'k'\nlist = [%size]"));
    CHECK_EQ(value_of("", "A", "b")->integer, 5);
    CHECK_EQ(value_of("", "A", "b")->line, 1);
    CHECK_EQ(value_of("", "A", "c")->first->integer, 5);
    CHECK_EQ(value_of("", "A", "c")->first->next->integer, 5);
    CHECK(value_of("", "A", "c")->first->next->next == NULL);
    CHECK_STR(value_of("", "A", "d")->first->key->string, "k");
    CHECK_EQ(value_of("", "A", "d")->first->first->integer, 5);
    CHECK_FAILS(read_all("A.b = %none"), ERR_CONFIG, "t:1: nothing defines the macro %none");
    CHECK_FAILS(read_all("a = %b\nb = [%a]"), ERR_CONFIG,
                "a cycle: this macro leads back to itself: %a");
    CHECK_FAILS(read_all("a = %a"), ERR_CONFIG, "t:1: a cycle");
    CHECK_FAILS(read_all("A.b = %s/x\nx = 1"), ERR_CONFIG, "nothing defines the macro %s/x");
}

/* Thirty lines that would unfold to 2^30 values. */
TEST(gin_macro_bomb) {
    log_set_level(LOG_QUIET);
    char text[1024] = "m0 = [1, 1]\n";
    for (int i = 1; i < 30; i++)
        sprintf(text + strlen(text), "m%d = [%%m%d, %%m%d]\n", i, i - 1, i - 1);
    CHECK_FAILS(read_all(text), ERR_CONFIG, "this value has more than 1048576 parts");
    char chain[4096] = "m0 = 1\n";
    for (int i = 1; i < 100; i++)
        sprintf(chain + strlen(chain), "m%d = %%m%d\n", i, i - 1);
    CHECK_OK(read_all(chain));
    strcpy(chain, "");
    for (int i = 100; i > 1; i--)
        sprintf(chain + strlen(chain), "m%d = %%m%d\n", i, i - 1);
    strcat(chain, "m1 = 1\n");
    CHECK_FAILS(read_all(chain), ERR_CONFIG, "nested more than 48 deep");
}

static int n_lines;
static char last_line[512];

static void count_line(void *ctx, log_level level, const char *line) {
    (void)ctx;
    (void)level;
    n_lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

TEST(gin_numbers_have_an_end) {
    char line[200];
    snprintf(line, sizeof line, "A.b = 0.%077d", 1); /* 79 characters */
    CHECK_OK(read_all(line));
    snprintf(line, sizeof line, "A.b = 0.%078d", 1);
    CHECK_FAILS(read_all(line), ERR_CONFIG, "a number of more than 78 digits");
}

TEST(gin_imports_and_unused_macros) {
    log_set_level(LOG_INFO);
    log_set_sink(count_line, NULL);
    CHECK_OK(read_all("import a.b.c\nfrom x import y  # why\nimport z as w\nA.b = 1"));
    CHECK_EQ(n_lines, 3);
    CHECK_CONTAINS(last_line, "t:3: the import of z as w is ignored");
    CHECK_EQ(g.n_bindings, 1);
    n_lines = 0;
    CHECK_OK(read_all("import = 3\nnum_layers = 4\nA.b = %import"));
    CHECK_EQ(n_lines, 1);
    CHECK_CONTAINS(last_line, "t:2: nothing uses the macro 'num_layers'");
    log_set_sink(NULL, NULL);
}

TEST(gin_blocks) {
    CHECK_OK(read_all(
        "s/mod.A:  # a block\n    b = 1\n\n# comment\n\tc = [2,\n3]\nA.d = 4\nB:\n  e = 5"));
    CHECK_EQ(value_of("s", "A", "b")->integer, 1);
    CHECK_EQ(value_of("s", "A", "c")->n_children, 2);
    CHECK_EQ(value_of("", "A", "d")->integer, 4);
    CHECK_EQ(value_of("", "B", "e")->integer, 5);
    CHECK(gin_find(&g, "", "A", "b") == NULL);
    CHECK_FAILS(read_all("A:\n  b.c = 1"), ERR_CONFIG,
                "t:2: inside a block a line starts with the field alone, not 'b.c'");
    CHECK_FAILS(read_all("A: b = 1"), ERR_CONFIG, "the end of the line is expected");
}

TEST(gin_line_ends) {
    CHECK_OK(read_all("\xef\xbb\xbf"
                      "A.b = 1\r\nA.c = [1,\r\n 2]\r\n\r\n# x\r\nA.d = 'x' \\\r\n 'y'\r\nA.e = 7"));
    CHECK_EQ(value_of("", "A", "b")->integer, 1);
    CHECK_EQ(value_of("", "A", "c")->n_children, 2);
    CHECK_STR(value_of("", "A", "d")->string, "xy");
    CHECK_EQ(value_of("", "A", "e")->line, 8);
    CHECK_OK(read_all(""));
    CHECK_OK(read_all("\n\n   \n\t# only\n"));
    CHECK_EQ(g.n_bindings, 0);
    CHECK_OK(read_all("\tA.b\t=\t1\t"));
    CHECK_EQ(value_of("", "A", "b")->integer, 1);
    CHECK_FAILS(read_bytes("A.b = 1\nA.\0c = 2", 17), ERR_CONFIG,
                "t:2: a NUL byte: this is not a text file");
}

TEST(gin_includes) {
    char sub[4096];
    snprintf(sub, sizeof sub, "%s/sub", test_folder());
    CHECK_EQ(test_command(NULL, "mkdir %s", sub), 0);
    write_file("base.gin", "A.b = 1\nA.c = %size\n");
    write_file("sub/mid.gin", "include '../base.gin'\nA.d = 4\n");
    write_file("top.gin", "A.b = 0\ninclude 'sub/mid.gin'  # all of it\nsize = 3\nA.d = 5\n");
    CHECK_OK(read_file("top.gin"));
    CHECK_EQ(value_of("", "A", "b")->integer, 1);
    CHECK_EQ(value_of("", "A", "c")->integer, 3);
    CHECK_EQ(value_of("", "A", "d")->integer, 5);
    CHECK_CONTAINS(gin_find(&g, "", "A", "b")->file, "/sub/../base.gin");
    write_file("missing.gin", "\ninclude 'nowhere.gin'");
    CHECK_FAILS(read_file("missing.gin"), ERR_IO, "missing.gin:2: include: ");
    write_file("one.gin", "include 'two.gin'");
    write_file("two.gin", "A.b = 1\ninclude 'one.gin'");
    CHECK_FAILS(read_file("one.gin"), ERR_CONFIG, "two.gin:2: this include closes a cycle: ");
    CHECK_CONTAINS(status_reason(), "one.gin <- ");
    write_file("self.gin", "include 'self.gin'");
    CHECK_FAILS(read_file("self.gin"), ERR_CONFIG, "self.gin:1: this include closes a cycle");
    write_file("bad.gin", "include 3");
    CHECK_FAILS(read_file("bad.gin"), ERR_CONFIG, "bad.gin:1: include needs a path in quotes");
    CHECK_FAILS(read_all("include 'x'"), ERR_CONFIG, "include works in a file only");
    CHECK_FAILS(read_file("none.gin"), ERR_IO, "none.gin");
}

/* f0 includes f1 twice, f1 includes f2 twice, ...: limits instead of 2^20 readings. */
TEST(gin_include_bomb) {
    for (int i = 0; i < 20; i++) {
        char name[32], text[128];
        snprintf(name, sizeof name, "f%d.gin", i);
        snprintf(text, sizeof text, "include 'f%d.gin'\ninclude 'f%d.gin'\n", i + 1, i + 1);
        write_file(name, text);
    }
    CHECK_FAILS(read_file("f0.gin"), ERR_CONFIG,
                "f16.gin:1: includes are nested more than 16 deep");
    write_file("f12.gin", "A.b = 1\n");
    CHECK_FAILS(read_file("f0.gin"), ERR_CONFIG, "more than 256 files are included");
}

TEST(gin_overrides) {
    static const char text[] = "A.b = 1\nA.c = 2\n";
    gin_init(&g);
    CHECK_OK(gin_override(&g, "A.b=7"));
    CHECK_OK(gin_read_text(&g, "t", text, strlen(text)));
    CHECK_OK(gin_override(&g, "s/A.d=bfloat16"));
    CHECK_OK(gin_override(&g, "A.e = ./runs/a-1"));
    CHECK_OK(gin_override(&g, "A.f='x y'"));
    CHECK_OK(gin_override(&g, "A.g=[1, 2]"));
    CHECK_OK(gin_override(&g, "A.h=True"));
    CHECK_OK(gin_override(&g, "A.i=.5"));
    CHECK_OK(gin_finish(&g));
    CHECK_EQ(value_of("", "A", "b")->integer, 7);
    CHECK_EQ(value_of("", "A", "c")->integer, 2);
    CHECK_STR(value_of("s", "A", "d")->string, "bfloat16");
    CHECK_STR(value_of("", "A", "e")->string, "./runs/a-1");
    CHECK_STR(value_of("", "A", "f")->string, "x y");
    CHECK_EQ(value_of("", "A", "g")->n_children, 2);
    CHECK_EQ(value_of("", "A", "h")->type, GIN_BOOL);
    CHECK_EQ(value_of("", "A", "i")->type, GIN_FLOAT);
    CHECK_FAILS(gin_override(&g, "A.b"), ERR_CONFIG, "--set A.b: write it as Class.field=value");
    CHECK_FAILS(gin_override(&g, "A.b="), ERR_CONFIG, "--set A.b=: a value is missing");
    CHECK_FAILS(gin_override(&g, "=3"), ERR_CONFIG, "a name is expected");
    CHECK_FAILS(gin_override(&g, "A.b=1 2"), ERR_CONFIG, "the end of the line is expected");
    CHECK_FAILS(gin_override(&g, "A.b=1\nA.c=2"), ERR_CONFIG, "more than one line");
}

/* Every prefix of a rich text, and the text with each byte changed: an answer, never a crash. */
TEST(gin_damaged_text) {
    static const char text[] =
        "# c\nimport x\nm = 3\na/mod.A.b = [1, -2.5e3, 'x\\n' \"y\", (True,), {'k': @s/C()}]\n"
        "A.c = '''l\n''' \\\n 'z'\nB:\n  d = %m\n";
    log_set_level(LOG_QUIET);
    CHECK_OK(read_all(text));
    for (size_t n = 0; n < sizeof text; n++)
        (void)read_bytes(text, n);
    char changed[sizeof text];
    for (size_t i = 0; i < sizeof text; i++)
        for (int flip = 1; flip < 256; flip <<= 1) {
            memcpy(changed, text, sizeof text);
            changed[i] = (char)(changed[i] ^ flip);
            if (read_bytes(changed, sizeof text - 1) != OK) CHECK_CONTAINS(status_reason(), "t:");
        }
}
