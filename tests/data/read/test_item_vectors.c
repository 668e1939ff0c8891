#include <math.h>

#include "format/safetensors.h"
#include "prep_test.h"

#define EVENTS "user_id,item_id,ts\n1,10,100\n2,11,101\n1,12,102\n"
#define ITEMS  "item_id,title\n12,C\n10,A\n99,Z\n"

static const float vectors[] = {1, 2, 3, 4, 5, 6};

static const char *path_of(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static st_tensor matrix(const char *name, int64_t n, int64_t dim, const float *data) {
    return (st_tensor){
        .name = name, .dtype = ST_F32, .n_dims = 2, .shape = {n, dim}, .n = n * dim, .data = data};
}

static void write_tensors(const st_tensor *t, size_t n) {
    CHECK_OK(st_write(path_of("v.safetensors"), t, n, NULL, 0));
}

/* What prep makes of the vectors and these options; what was said. */
static seq_file *read_vectors(const char *options, char **said) {
    char args[1024];
    seq_file *s;
    put_file("in.csv", EVENTS);
    put_file("items.csv", ITEMS);
    snprintf(args, sizeof args, "csv --input in.csv --out out --item-vectors %s", options);
    *said = prep_ok(args);
    CHECK_OK(seq_file_open(&s, path_of("out"), NULL));
    return s;
}

static void check_vector(const seq_file *s, const char *item, float first, float second) {
    const float *v = s->item_vector + 2 * seq_find_item(s, item);
    CHECK_EQ(s->item_vector_dim, 2);
    if (v[0] != first || v[1] != second) FAIL_TEST("%s: %g %g", item, (double)v[0], (double)v[1]);
}

static void check_bad(const char *options, int code, const char *reason) {
    char args[1024], *said;
    put_file("in.csv", EVENTS);
    put_file("items.csv", ITEMS);
    run_shell(&said, "rm -rf out");
    snprintf(args, sizeof args, "csv --input in.csv --out out --item-vectors %s", options);
    prep_fails(args, code, reason);
}

TEST(vectors_by_the_rows_of_items) {
    char *said;
    st_tensor t = matrix("anything", 3, 2, vectors);
    write_tensors(&t, 1);
    seq_file *s = read_vectors("v.safetensors --items items.csv", &said);
    check_vector(s, "12", 1, 2);
    check_vector(s, "10", 3, 4);
    check_vector(s, "99", 5, 6);
    check_vector(s, "11", 0, 0);
    CHECK(s->item_vector[0] == 0 && s->item_vector[1] == 0);
    seq_file_close(s);
    CHECK_CONTAINS(said, "  Vectors                3   items by v.safetensors\n");
    /* A filter renumbers the items, and their vectors follow. */
    s = read_vectors("v.safetensors --items items.csv --min-item-events 1", &said);
    CHECK_EQ(s->n_items, 3);
    check_vector(s, "12", 1, 2);
    seq_file_close(s);
    check_bad("v.safetensors", 1, "has 3 vectors, but there are 0 rows of items");
    put_file("double.csv", ITEMS "10,B\n");
    check_bad("v.safetensors --items double.csv", 1, "--item-vector-ids, one per line");
}

TEST(vectors_by_given_ids) {
    char *said;
    const int64_t ids[] = {11, 77, 10};
    st_tensor t[] = {
        {.name = "ids", .dtype = ST_I64, .n_dims = 1, .shape = {3}, .n = 3, .data = ids},
        matrix("other", 1, 6, vectors),
        matrix("vectors", 3, 2, vectors)};
    write_tensors(t, 3);
    /* Item 77 is not in the catalogue, and a vector does not bring it there. */
    seq_file *s = read_vectors("v.safetensors", &said);
    CHECK_EQ(s->n_items, 3);
    check_vector(s, "11", 1, 2);
    check_vector(s, "10", 5, 6);
    check_vector(s, "12", 0, 0);
    seq_file_close(s);
    put_file("ids.txt", "10\r\n12\n11");
    s = read_vectors("v.safetensors --item-vector-ids ids.txt", &said);
    check_vector(s, "10", 1, 2);
    check_vector(s, "12", 3, 4);
    check_vector(s, "11", 5, 6);
    seq_file_close(s);
    put_file("ids.txt", "7\n8\n9\n");
    seq_file_close(read_vectors("v.safetensors --item-vector-ids ids.txt", &said));
    CHECK_CONTAINS(said, "warning: no item of the catalogue has a vector in v.safetensors");
    put_file("ids.txt", "7\n8\n");
    check_bad("v.safetensors --item-vector-ids ids.txt", 1, "has 3 vectors, but there are 2 ids");
    put_file("ids.txt", "7\n8\nx\n");
    check_bad("v.safetensors --item-vector-ids ids.txt", 1, "'x' is not a whole number");
    put_file("ids.txt", "7\n8\n7\n");
    check_bad("v.safetensors --item-vector-ids ids.txt", 1, "item '7' has two vectors");
    put_file("ids.txt", "7\n\n9\n");
    check_bad("v.safetensors --item-vector-ids ids.txt", 1, "id 2 is empty");
    check_bad("v.safetensors --item-vector-ids none.txt", 1, "none.txt");
}

TEST(vectors_that_cannot_be) {
    const float bad[] = {1, 2, 3, INFINITY, 5, 6};
    static const float wide[4097];
    st_tensor t[2] = {matrix("a", 3, 2, bad), matrix("b", 3, 2, vectors)};
    write_tensors(t, 1);
    check_bad("v.safetensors --items items.csv", 1, "row 2 is not finite");
    write_tensors(t, 2);
    check_bad("v.safetensors --items items.csv", 1, "2 of its tensors are (n, dim)");
    t[0] = matrix("vectors", 1, 4097, wide);
    write_tensors(t, 1);
    check_bad("v.safetensors --items items.csv", 1, "0 of its tensors are (n, dim)");
    t[0] =
        (st_tensor){.name = "ids", .dtype = ST_F32, .n_dims = 1, .shape = {3}, .n = 3, .data = bad};
    write_tensors(t, 2);
    check_bad("v.safetensors --items items.csv", 1, "'ids' is not of int64 or int32");
    put_file("v.npy", "nonsense");
    check_bad("v.npy --items items.csv", 1, "v.npy: no matrix of floating point");
    check_bad("none.npy --items items.csv", 1, "none.npy");
}

TEST(vectors_of_npy) {
    char *said;
    char header[] =
        "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
    FILE *f = fopen(path_of("v.npy"), "wb");
    CHECK(f != NULL && fwrite(header, 1, sizeof header - 1, f) == sizeof header - 1);
    for (size_t i = sizeof header - 1; i < 128; i++)
        fputc(i < 127 ? ' ' : '\n', f);
    CHECK(fwrite(vectors, 1, sizeof vectors, f) == sizeof vectors && fclose(f) == 0);
    seq_file *s = read_vectors("v.npy --items items.csv", &said);
    check_vector(s, "10", 3, 4);
    seq_file_close(s);
}

/* Titles to vectors to prep: the file of items is the input of hstu encode too. */
TEST(vectors_of_the_encoder) {
    char *said, folder[4096];
    st_file *f;
    CHECK(realpath("tests/golden-encoder/bert-0", folder) != NULL);
    put_file("items.jsonl", "{\"item_id\":12,\"title\":\"C\",\"ids\":[2,7,3]}\n"
                            "{\"item_id\":10,\"title\":\"A\",\"ids\":[2,9,9,3]}\n");
    int code = run_shell(&said,
                         "%s encode %s --device cpu --head mean --input items.jsonl --out "
                         "v.safetensors",
                         test_program(), folder);
    if (code != 0) FAIL_TEST("%s", said);
    seq_file *s = read_vectors("v.safetensors --items items.jsonl --item-features none", &said);
    CHECK_OK(st_open(&f, path_of("v.safetensors")));
    const st_tensor *t = st_find(f, "embedding");
    CHECK(t != NULL && t->shape[0] == 2 && t->shape[1] == s->item_vector_dim);
    size_t dim = (size_t)t->shape[1];
    CHECK(memcmp(s->item_vector + seq_find_item(s, "12") * dim, t->data, dim * 4) == 0);
    CHECK(memcmp(s->item_vector + seq_find_item(s, "10") * dim, (const float *)t->data + dim,
                 dim * 4) == 0);
    CHECK_STR(content_of(s, "10", "ids"), "?");
    st_close(f);
    seq_file_close(s);
}
