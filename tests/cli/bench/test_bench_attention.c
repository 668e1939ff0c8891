/* hstu bench attention from outside, on the CPU. */
#include "test.h"

static char *said(int code, const char *options) {
    char *text;
    CHECK_EQ(test_command(&text, "%s bench attention --device cpu %s", test_program(), options),
             code);
    return text;
}

/* A row with a bias is a long one: a sanitizer takes minutes for the float64 it is checked
 * against. */
#ifdef __SANITIZE_ADDRESS__
#define JSON_ROW  "--dim 32 --length 50"
#define JSON_BIAS "\"bias\":\"none\""
#else
#define JSON_ROW  "--mask bias --length 200 --dim 64"
#define JSON_BIAS "\"bias\":\"time\""
#endif

TEST(bench_attention_of_some_rows) {
    char *text;
    if (!test_is_brief()) {
        text = said(0, "--dim 32 --length 50");
        CHECK_CONTAINS(text, "TFLOP/s");
        CHECK_CONTAINS(text, "  32  512     1-50  causal ");
        CHECK(strstr(text, " 64  512") == NULL && strstr(text, "1-200") == NULL);
        free(text);
    }
    text = said(0, JSON_ROW " --json");
    CHECK_CONTAINS(text, JSON_BIAS);
    CHECK_CONTAINS(text, "\"fwd_tflops\":");
    CHECK(strstr(text, "ratio") == NULL); /* peers were measured on a GPU */
    free(text);
}

TEST(bench_attention_without_rows) {
    char *text = said(2, "--dim 33");
    CHECK_CONTAINS(text, "no row has this --dim");
    free(text);
}
