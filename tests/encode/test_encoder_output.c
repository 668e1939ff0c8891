#include "encode/encoder_output.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

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
    TRY(encoder_output_create(&o, out_path(), dim, has_pooled));
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
    encoder_output *o;
    CHECK_OK(write_batches(2, true));
    CHECK_OK(encoder_output_create(&o, out_path(), 1, true));
    CHECK_OK(encoder_output_add(o, 1, offsets, &x, &x));
    CHECK_FAILS(encoder_output_close(o, fail(ERR_FORMAT, "a bad line")), ERR_FORMAT, "a bad line");
    check_file(2, true);
    CHECK_FAILS(encoder_output_create(&o, "/no/such/folder/x.safetensors", 1, true), ERR_IO,
                "/no/such/folder");
    CHECK(o == NULL);
}

TEST(encoder_output_lines) {
    const float hidden[] = {0.5f, -1, 2, 0.1f}, pooled[] = {3, 4};
    buf text;
    buf_init(&text);
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
