/* Zip archives: those of our writer, and damaged ones. */
#include "format/zip.h"

#include "base/file.h"
#include "test.h"

static unsigned char bytes[4096];
static size_t n_bytes;

/* Two members, the second aligned; their archive is in `bytes`. */
static void make(void) {
    char path[512];
    zip_writer *w;
    file_map m;
    snprintf(path, sizeof path, "%s/a.zip", test_folder());
    CHECK_OK(zip_create(&w, path));
    CHECK_OK(zip_begin(w, "r/one", 5, 1));
    CHECK_OK(zip_write(w, "hel", 3));
    CHECK_OK(zip_write(w, "lo", 2));
    CHECK_OK(zip_end(w));
    CHECK_OK(zip_begin(w, "r/data/0", 3, 64));
    CHECK_OK(zip_write(w, "abc", 3));
    CHECK_OK(zip_end(w));
    CHECK_OK(zip_commit(w));
    CHECK_OK(file_map_open(&m, path));
    n_bytes = m.n_bytes;
    CHECK(n_bytes < sizeof bytes);
    memcpy(bytes, m.bytes, n_bytes);
    file_map_close(&m);
}

static void put(size_t at, uint64_t value, int n) {
    for (int i = 0; i < n; i++)
        bytes[at + (size_t)i] = (unsigned char)(value >> 8 * i);
}

static size_t find(const char *text, size_t n, size_t from) {
    for (size_t i = from; i + n <= n_bytes; i++)
        if (memcmp(bytes + i, text, n) == 0) return i;
    FAIL_TEST("not in the archive");
}

static status read_it(arena *a, zip_list *l) {
    return zip_read(l, a, "x.zip", bytes, n_bytes);
}

TEST(zip_members) {
    arena a;
    zip_list l;
    make();
    arena_init(&a, 4096);
    CHECK_OK(read_it(&a, &l));
    CHECK_EQ(l.n, 2);
    const zip_member *m = zip_find(&l, "r/one");
    CHECK(m != NULL && m->n_bytes == 5 && memcmp(m->bytes, "hello", 5) == 0 && m->is_stored);
    CHECK_OK(zip_verify(m, "x.zip"));
    m = zip_find(&l, "r/data/0");
    CHECK(m != NULL && m->n_bytes == 3 && (m->bytes - bytes) % 64 == 0);
    CHECK(zip_find(&l, "r/none") == NULL);
    bytes[m->bytes - bytes] ^= 1;
    CHECK_FAILS(zip_verify(m, "x.zip"), ERR_FORMAT, "the file is damaged");
    arena_fini(&a);
}

static void refuse(const char *reason) {
    arena a;
    zip_list l;
    arena_init(&a, 4096);
    CHECK_FAILS(read_it(&a, &l), ERR_FORMAT, reason);
    CHECK(l.n == 0);
    arena_fini(&a);
}

TEST(zip_refusals) {
    make();
    size_t end = n_bytes - 22, first = find("PK\1\2", 4, 0), second = find("PK\1\2", 4, first + 4);
    size_t directory = first;
    n_bytes -= 1;
    refuse("no directory at its end");
    n_bytes += 1;
#define WITH(at, value, n, reason) make(), put(at, value, n), refuse(reason)
    WITH(end + 16, directory + 1, 4, "does not fit");
    WITH(end + 16, 0xfffffff0u, 4, "does not fit");
    WITH(end + 10, 200, 2, "does not fit");
    WITH(end + 4, 1, 2, "divided");
    WITH(first + 28, 300, 2, "cut short");
    WITH(first + 28, 0, 2, "no usable name");
    WITH(first + 8, 1, 2, "is encrypted");
    WITH(first + 24, 6, 4, "the sizes of a member differ");
    WITH(first + 42, 1, 4, "not where the directory says");
    WITH(first + 42, 0xfffffff0u, 4, "not where the directory says");
    WITH(first + 20, 0xffffffffu, 4, "a zip64 field is missing");
    make(), put(first + 20, directory, 4), put(first + 24, directory, 4),
        refuse("does not fit before");
    make(), put(first + 20, 95, 4), put(first + 24, 95, 4), refuse("two members overlap");
    WITH(first + 46, 'x', 1, "another name");
    WITH(second, 0, 1, "cut short");
    make(); /* twice the same name: both entries lead to members of this name */
    memcpy(bytes + find("r/data/0", 8, 0), "r/data/1", 8);
    refuse("another name");
    arena a;
    zip_list l;
    make();
    arena_init(&a, 4096);
    put(first + 10, 8, 2); /* deflated: listed, and of no use */
    CHECK_OK(read_it(&a, &l));
    CHECK_FAILS(zip_verify(zip_find(&l, "r/one"), "x.zip"), ERR_FORMAT, "is compressed");
    arena_fini(&a);
}

/* The zip64 end record, which torch always writes, in front of a plain one that says nothing. */
TEST(zip64_end_record) {
    arena a;
    zip_list l;
    make();
    size_t end = n_bytes - 22, first = find("PK\1\2", 4, 0);
    memmove(bytes + end + 76, bytes + end, 22);
    memset(bytes + end, 0, 76);
    put(end, 0x06064b50, 4), put(end + 4, 44, 8), put(end + 24, 2, 8), put(end + 32, 2, 8);
    put(end + 40, end - first, 8), put(end + 48, first, 8);
    put(end + 56, 0x07064b50, 4), put(end + 64, end, 8), put(end + 72, 1, 4);
    n_bytes += 76;
    put(n_bytes - 22 + 8, 0xffff, 2), put(n_bytes - 22 + 10, 0xffff, 2);
    put(n_bytes - 22 + 12, 0xffffffffu, 4), put(n_bytes - 22 + 16, 0xffffffffu, 4);
    arena_init(&a, 4096);
    CHECK_OK(read_it(&a, &l));
    CHECK_EQ(l.n, 2);
    arena_fini(&a);
    put(end + 64, end + 1, 8);
    refuse("not where it should be");
    put(end + 64, UINT64_MAX, 8);
    refuse("not where it should be");
    put(end + 64, end, 8), put(end + 32, UINT64_MAX, 8);
    refuse("does not fit");
}
