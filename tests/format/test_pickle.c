/* Pickles: what Python writes, and what nobody should execute. */
#include "format/pickle.h"

#include "oom.h"
#include "test.h"

static const char *const allowed[] = {"collections.OrderedDict", "torch.Size", NULL};

static status read_text(arena *a, const char *pickle, size_t n, const pickle_value **out) {
    return pickle_read(out, a, "x", (const unsigned char *)pickle, n, allowed);
}

#define READ(a, text, out) read_text(a, text, sizeof(text) - 1, out)

TEST(pickle_values) {
    const pickle_value *v;
    arena a;
    arena_init(&a, 4096);
    CHECK_OK(READ(&a,
                  "\x80\x02(NK\x07M\x00\x01J\xfe\xff\xff\xff\x8a\x00\x8a\x02\x00\x80\x88G?"
                  "\xf8\0\0\0\0\0\0X\x03\0\0\0abct.",
                  &v));
    CHECK_EQ(v->type, PICKLE_TUPLE);
    CHECK_EQ(v->n, 9);
    const pickle_value *at[9];
    int n = 0;
    for (const pickle_item *i = v->first; i != NULL; i = i->next)
        at[n++] = i->value;
    CHECK_EQ(at[0]->type, PICKLE_NONE);
    CHECK(at[1]->type == PICKLE_INT && at[1]->integer == 7);
    CHECK_EQ(at[2]->integer, 256);
    CHECK_EQ(at[3]->integer, -2);
    CHECK_EQ(at[4]->integer, 0);
    CHECK_EQ(at[5]->integer, -32768);
    CHECK(at[6]->type == PICKLE_BOOL && at[6]->integer == 1);
    CHECK(at[7]->type == PICKLE_FLOAT && at[7]->number == 1.5);
    CHECK_STR(at[8]->text, "abc");
    arena_fini(&a);
}

/* pickle.dumps(collections.OrderedDict(a=[1, 2], b=(3,)), 2) and protocol 4, with its attributes.
 */
TEST(pickle_containers) {
    const pickle_value *v;
    arena a;
    arena_init(&a, 4096);
    CHECK_OK(READ(&a,
                  "\x80\x02"
                  "ccollections\nOrderedDict\nq\0)Rq\x01(X\x01\0\0\0aq\x02]q\x03(K\x01K\x02"
                  "eX\x01\0\0\0bq\x04K\x03\x85q\x05u}X\x01\0\0\0mK\x01sb.",
                  &v));
    CHECK_EQ(v->type, PICKLE_DICT);
    CHECK_EQ(v->n, 2);
    CHECK_STR(v->first->key->text, "a");
    CHECK_EQ(v->first->value->n, 2);
    CHECK_EQ(v->last->value->first->value->integer, 3);
    CHECK_OK(READ(&a,
                  "\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c\x0b"
                  "collections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94.",
                  &v));
    CHECK(v->type == PICKLE_DICT && v->n == 0);
    CHECK_OK(READ(&a,
                  "\x80\x02"
                  "ctorch\nSize\nK\x01K\x02\x86\x85R.",
                  &v));
    CHECK_EQ(v->type, PICKLE_CALL);
    CHECK_STR(v->function->text, "torch.Size");
    CHECK_EQ(v->args->first->value->n, 2);
    CHECK_OK(READ(&a, "\x80\x02K\x05Q.", &v));
    CHECK(v->type == PICKLE_OUTSIDE && v->args->integer == 5);
    arena_fini(&a);
}

TEST(pickle_refusals) {
    static const struct {
        const char *pickle;
        size_t n;
        const char *reason;
    } cases[] = {
#define CASE(pickle, reason) {pickle, sizeof(pickle) - 1, reason}
        CASE("\x80\x02"
             "cos\nsystem\nX\x02\0\0\0id\x85R.",
             "at byte 2: it wants 'os.system', which is not on the list"),
        CASE("\x80\x02"
             "cbuiltins\neval\n.",
             "'builtins.eval'"),
        CASE("\x80\x02"
             "c\x1b[2J\nx\n.",
             "'\\x1b[2J.x'"),
        CASE("\x80\x04\x8c\x02os\x8c\x06system\x93.", "'os.system'"),
        CASE("\x80\x02"
             "ctorch\nSize",
             "does not end"),
        CASE("", "it has no end"),
        CASE("\x80\x02", "it has no end"),
        CASE("\x80\x06N.", "not one of 2 to 5"),
        CASE("\x80\x02NN.", "more than one value"),
        CASE("\x80\x02N.N", "more than one value"),
        CASE("\x80\x02.", "a value is missing"),
        CASE("\x80\x02(.", "a value is missing"),
        CASE("\x80\x02t.", "a mark is missing"),
        CASE("\x80\x02\x86.", "a value is missing"),
        CASE("\x80\x02(N\x86.", "a value is missing"),
        CASE("\x80\x02J\x01", "ends in the middle"),
        CASE("\x80\x02X\xff\xff\xff\xff", "longer than the pickle"),
        CASE("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "longer than the pickle"),
        CASE("\x80\x02X\x01\0\0\0\xff.", "not UTF-8"),
        CASE("\x80\x02\x8a\x09\1\1\1\1\1\1\1\1\1.", "more than 64 bits"),
        CASE("\x80\x02Nr\xff\xff\xff\xff.", "leaves a gap"),
        CASE("\x80\x02Nq\x01.", "leaves a gap"),
        CASE("\x80\x02h\x00.", "never put there"),
        CASE("\x80\x02NNs.", "no dict"),
        CASE("\x80\x02}(Nu.", "a key has no value"),
        CASE("\x80\x02}(N(u.", "no dict"),
        CASE("\x80\x02NNa.", "no list"),
        CASE("\x80\x02(a.", "no list"),
        CASE("\x80\x02N)R.", "not of a global"),
        CASE("\x80\x02"
             "ctorch\nSize\nNR.",
             "not of a global"),
        CASE("\x80\x02"
             "ccollections\nOrderedDict\nN\x85R.",
             "with arguments"),
        CASE("\x80\x02N}b.", "what has none"),
        CASE("\x80\x02I1\n.", "opcode 0x49 is not one"),
        CASE("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "a frame is longer"),
#undef CASE
    };
    arena a;
    arena_init(&a, 4096);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const pickle_value *v;
        CHECK_FAILS(read_text(&a, cases[i].pickle, cases[i].n, &v), ERR_FORMAT, cases[i].reason);
        CHECK(v == NULL);
    }
    arena_fini(&a);
}

static status read_some(void *ctx) {
    const pickle_value *v;
    arena a;
    (void)ctx;
    arena_init(&a, 64);
    status st = READ(&a, "\x80\x02}q\0X\x01\0\0\0a](NNNe\x85s.", &v);
    arena_fini(&a);
    return st;
}

TEST(pickle_out_of_memory) {
    CHECK(oom_at_each_allocation(read_some, NULL) > 3);
}
