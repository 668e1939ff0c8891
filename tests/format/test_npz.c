#include "format/npz.h"

#include "base/file.h"
#include "base/hash.h"
#include "oom.h"
#include "test.h"

static const char *npz_path(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/a.npz", test_folder());
    return path;
}

static const float numbers[6] = {1, -2.5f, 3, 0, 1e30f, 6};

/* Two arrays: (2, 3) floats in two pieces, three strings of four bytes. */
static status write_two(void *ctx) {
    zip_writer *w = NULL;
    (void)ctx;
    status st = zip_create(&w, npz_path());
    if (st == OK) st = npz_begin(w, &(npz_array){"embedding", "<f4", 4, 2, {2, 3}});
    if (st == OK) st = zip_write(w, numbers, 8);
    if (st == OK) st = zip_write(w, numbers + 2, 16);
    if (st == OK) st = zip_end(w);
    if (st == OK) st = npz_begin(w, &(npz_array){"id", "|S4", 4, 1, {3}});
    if (st == OK) st = zip_write(w, "ab\0\0cdefg\0\0\0", 12);
    if (st == OK) st = zip_end(w);
    if (st == OK) return zip_commit(w);
    zip_abandon(w);
    return st;
}

static uint64_t number_at(const unsigned char *p, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

/* Checks the member at the local header `p`, and returns the content of its array. */
static const unsigned char *check_member(const unsigned char *p, const char *name,
                                         const char *header, size_t n_bytes) {
    CHECK_EQ(number_at(p, 4), 0x04034b50);
    CHECK_EQ(number_at(p + 8, 2), 0); /* stored */
    size_t size = number_at(p + 18, 4), n_name = number_at(p + 26, 2), n_extra;
    CHECK_EQ(number_at(p + 22, 4), size);
    n_extra = number_at(p + 28, 2);
    CHECK(n_name == strlen(name) && memcmp(p + 30, name, n_name) == 0);
    const unsigned char *content = p + 30 + n_name + n_extra;
    CHECK_EQ(number_at(p + 14, 4), crc32_add(0, content, size));
    CHECK(memcmp(content, "\x93NUMPY\x01\x00", 8) == 0);
    size_t n_header = number_at(content + 8, 2);
    CHECK((10 + n_header) % 64 == 0 && content[9 + n_header] == '\n');
    CHECK(memcmp(content + 10, header, strlen(header)) == 0);
    CHECK_EQ(size, 10 + n_header + n_bytes);
    return content + 10 + n_header;
}

TEST(npz_is_a_zip_of_npy) {
    file_map m;
    CHECK_OK(write_two(NULL));
    CHECK_OK(file_map_open(&m, npz_path()));
    const unsigned char *end = m.bytes + m.n_bytes - 22;
    CHECK_EQ(number_at(end, 4), 0x06054b50);
    CHECK_EQ(number_at(end + 10, 2), 2);
    const unsigned char *directory = m.bytes + number_at(end + 16, 4);
    CHECK_EQ(directory + number_at(end + 12, 4) - m.bytes, end - m.bytes);
    CHECK_EQ(number_at(directory, 4), 0x02014b50);
    const unsigned char *next = directory + 46 + number_at(directory + 28, 2);
    const unsigned char *first = m.bytes + number_at(directory + 42, 4);
    const unsigned char *second = m.bytes + number_at(next + 42, 4);
    const unsigned char *got =
        check_member(first, "embedding.npy",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, ), }", 24);
    CHECK(memcmp(got, numbers, sizeof numbers) == 0);
    CHECK_EQ(number_at(directory + 16, 4), number_at(first + 14, 4)); /* the same checksum */
    got = check_member(second, "id.npy",
                       "{'descr': '|S4', 'fortran_order': False, 'shape': (3, ), }", 12);
    CHECK(memcmp(got, "ab\0\0cdefg\0\0\0", 12) == 0);
    CHECK(second == first + number_at(first + 18, 4) + 30 + strlen("embedding.npy"));
    file_map_close(&m);
}

TEST(npz_opens_in_numpy) {
    char *text;
    if (test_command(NULL, "python3 -c 'import numpy'") != 0) SKIP_TEST("numpy is not installed");
    CHECK_OK(write_two(NULL));
    CHECK_EQ(test_command(&text,
                          "python3 -c \"import numpy; z = numpy.load('%s'); "
                          "print(z.files, z['embedding'].tolist(), z['id'].tolist())\"",
                          npz_path()),
             0);
    CHECK_CONTAINS(text, "['embedding', 'id'] [[1.0, -2.5, 3.0], [0.0, ");
    CHECK_CONTAINS(text, "[b'ab', b'cdef', b'g']");
    free(text);
}

/* An array has the bytes of its shape, and a file is there whole or not at all. */
TEST(npz_refuses_what_does_not_fit) {
    zip_writer *w;
    CHECK_OK(zip_create(&w, npz_path()));
    CHECK_FAILS(zip_write(w, "x", 1), ERR_CONFIG, "1 bytes for a member");
    CHECK_FAILS(zip_end(w), ERR_CONFIG, "lacks");
    CHECK_FAILS(npz_begin(w, &(npz_array){"big", "<f4", 4, 2, {INT64_MAX, 4}}), ERR_UNSUPPORTED,
                "larger than a file");
    CHECK_OK(npz_begin(w, &(npz_array){"a", "<i8", 8, 1, {1}}));
    CHECK_FAILS(npz_begin(w, &(npz_array){"b", "<i8", 8, 1, {1}}), ERR_CONFIG, "cannot be begun");
    CHECK_FAILS(zip_write(w, numbers, 9), ERR_CONFIG, "room for 8");
    CHECK_OK(zip_write(w, numbers, 4));
    CHECK_FAILS(zip_end(w), ERR_CONFIG, "lacks 4 bytes");
    CHECK_FAILS(zip_commit(w), ERR_CONFIG, "still open");
    CHECK(!file_exists(npz_path()));
    zip_abandon(NULL);
}

TEST(npz_out_of_memory) {
    CHECK(oom_at_each_allocation(write_two, NULL) > 5);
    CHECK(file_exists(npz_path()));
}

/* Writes a file as numpy.save does, with this dictionary and n_bytes of data; opens it. */
static status open_npy(const char *dictionary, int version, size_t n_bytes, st_file **out) {
    unsigned char text[256] = "\x93NUMPY";
    size_t n = strlen(dictionary), begin = version > 1 ? 12 : 10;
    text[6] = (unsigned char)version;
    text[8] = (unsigned char)n;
    memcpy(text + begin, dictionary, n);
    memcpy(text + begin + n, numbers, n_bytes);
    FILE *f = fopen(npz_path(), "wb");
    CHECK(f != NULL && fwrite(text, 1, begin + n + n_bytes, f) > 0 && fclose(f) == 0);
    return npy_open(out, npz_path());
}

#define NPY(type, order, shape)                                                                    \
    "{'descr': '" type "', 'fortran_order': " order ", 'shape': " shape ", }   \n"

TEST(npy_is_read) {
    st_file *f;
    for (int version = 1; version <= 3; version++) {
        CHECK_OK(open_npy(NPY("<f4", "False", "(2, 3)"), version, 24, &f));
        const st_tensor *t = st_find(f, "vectors");
        CHECK(t != NULL && t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3);
        CHECK(t->dtype == ST_F32 && memcmp(t->data, numbers, 24) == 0);
        st_close(f);
    }
    CHECK_OK(open_npy(NPY("<f2", "False", "(3, 4)"), 1, 24, &f));
    CHECK(f->tensors[0].dtype == ST_F16);
    st_close(f);
    CHECK_OK(open_npy(NPY("<f8", "False", "(3, 1)"), 1, 24, &f));
    CHECK(f->tensors[0].dtype == ST_F64);
    st_close(f);
    static const char *const bad[] = {NPY("<f4", "True", "(2, 3)"),
                                      NPY(">f4", "False", "(2, 3)"),
                                      NPY("<i4", "False", "(2, 3)"),
                                      NPY("<f4", "False", "(6,)"),
                                      NPY("<f4", "False", "(3, 3)"),
                                      NPY("<f4", "False", "(-2, -3)"),
                                      NPY("<f4", "False", "(1, 3)"),
                                      NPY("<f4", "False", "(999999999999999999, 99999999999)"),
                                      NPY("<f3", "False", "(2, 3)"),
                                      "",
                                      "{'descr': '<f4'}",
                                      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3",
                                      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)",
                                      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(open_npy(bad[i], 1, 24, &f), ERR_FORMAT, "no matrix of floating point");
    CHECK_FAILS(open_npy(NPY("<f4", "False", "(2, 3)"), 1, 23, &f), ERR_FORMAT, "cut short");
    FILE *file = fopen(npz_path(), "wb");
    CHECK(file != NULL && fclose(file) == 0);
    CHECK_FAILS(npy_open(&f, npz_path()), ERR_FORMAT, "no matrix");
}
