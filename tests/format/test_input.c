#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/text.h"
#include "format/input.h"
#include "oom.h"
#include "test.h"

/* What goes in, compressed in some tests, and what comes out; each test has a process of its own.
 */
static buf text, packed, got;

AFTER_TESTS {
    buf_fini(&text);
    buf_fini(&packed);
    buf_fini(&got);
}

/* "FOLDER/name" of this test. */
static const char *at(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 256, "%s/%s", test_folder(), name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* Reads to the end in pieces of `piece` bytes. */
static status read_all(input *in, size_t piece, buf *out) {
    char *bytes = malloc(piece);
    size_t n = 1;
    status st = OK;
    buf_clear(out);
    while (st == OK && n > 0) {
        st = input_read(in, bytes, piece, &n);
        if (st == OK) st = buf_append(out, bytes, n);
    }
    free(bytes);
    return st;
}

/* Opens and reads the whole file. */
static status read_path(const char *path, buf *out) {
    input *in;
    TRY(input_open(&in, path));
    status st = read_all(in, 10000, out);
    input_close(in);
    return st;
}

/* A text in which every place is different: "1\n2\n3\n...". */
static void numbers(buf *b, int n) {
    buf_clear(b);
    for (int i = 1; i <= n; i++)
        CHECK_OK(buf_printf(b, "%d\n", i));
}

static bool is_same(const buf *a, const buf *b) {
    return a->n_bytes == b->n_bytes && memcmp(a->data, b->data, a->n_bytes) == 0;
}

TEST(crc32_vectors) {
    CHECK_EQ(crc32_add(0, "", 0), 0);
    CHECK_EQ(crc32_add(0, "123456789", 9), 0xcbf43926u);
    CHECK_EQ(crc32_add(crc32_add(0, "12345", 5), "6789", 4), 0xcbf43926u);
    CHECK_EQ(crc32_add(0, "The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
}

TEST(input_reads_plain_files) {
    numbers(&text, 100000);
    write_file(at("plain.csv"), text.data, text.n_bytes);
    static const size_t pieces[] = {1, 511, 512, 513, 1 << 20};
    for (int i = 0; i < 5; i++) {
        input *in;
        uint64_t done, total;
        CHECK_OK(input_open(&in, at("plain.csv")));
        CHECK_STR(input_name(in), at("plain.csv"));
        if (pieces[i] > 1) CHECK_OK(read_all(in, pieces[i], &got));
        if (pieces[i] > 1) CHECK(is_same(&text, &got));
        input_progress(in, &done, &total);
        CHECK_EQ(total, text.n_bytes);
        CHECK_EQ(done, pieces[i] > 1 ? text.n_bytes : 512);
        input_close(in);
    }
    write_file(at("empty"), "", 0);
    CHECK_OK(read_path(at("empty"), &got));
    CHECK_EQ(got.n_bytes, 0);
    input_close(NULL);
}

TEST(input_refuses_what_is_no_file) {
    input *in;
    bundle *b;
    CHECK_FAILS(input_open(&in, at("nothing")), ERR_IO, "nothing cannot be opened: No such file");
    CHECK(in == NULL);
    CHECK_FAILS(input_open(&in, test_folder()), ERR_IO, "is a folder");
    CHECK_FAILS(bundle_open(&b, at("nothing")), ERR_IO, "nothing cannot be opened");
    CHECK(b == NULL);
    write_file(at("a.7z"), "7z\xbc\xaf\x27\x1c   ", 9);
    CHECK_FAILS(input_open(&in, at("a.7z")), ERR_UNSUPPORTED,
                "a.7z: 7-Zip files are not supported; unpack it by hand");
}

TEST(input_reads_a_pipe) {
    numbers(&text, 5000);
    CHECK(mkfifo(at("pipe"), 0600) == 0);
    if (fork() == 0) {
        write_file(at("pipe"), text.data, text.n_bytes);
        _exit(0);
    }
    CHECK_OK(read_path(at("pipe"), &got));
    CHECK(is_same(&text, &got));
}

TEST(bundle_of_a_folder) {
    bundle *b;
    input *in;
    const char *const *names;
    size_t n;
    CHECK(mkdir(at("set"), 0700) == 0 && mkdir(at("set/sub"), 0700) == 0);
    CHECK(mkdir(at("set/sub/deep"), 0700) == 0 && mkdir(at("set/movies.dat"), 0700) == 0);
    write_file(at("set/users.dat"), "top", 3);
    write_file(at("set/sub/users.dat"), "sub", 3);
    write_file(at("set/sub/ratings.dat"), "r", 1);
    write_file(at("set/sub/deep/tags.dat"), "t", 1);
    CHECK_OK(bundle_open(&b, at("set")));
    CHECK_OK(bundle_list(b, &names, &n));
    CHECK_EQ(n, 3);
    CHECK_STR(names[0], "users.dat");
    CHECK_STR(names[1], "ratings.dat");
    CHECK_STR(names[2], "users.dat");
    CHECK_OK(bundle_open_member(b, "users.dat", true, &in));
    CHECK_OK(read_all(in, 100, &got));
    CHECK_STR(buf_str(&got), "top");
    CHECK_STR(input_name(in), at("set/users.dat"));
    input_close(in);
    CHECK_OK(bundle_open_member(b, "ratings.dat", true, &in));
    CHECK_STR(input_name(in), at("set/sub/ratings.dat"));
    input_close(in);
    CHECK_OK(bundle_open_member(b, "tags.dat", false, &in));
    CHECK(in == NULL);
    CHECK_FAILS(bundle_open_member(b, "movies.dat", true, &in), ERR_IO,
                "set holds no file 'movies.dat' (nor one ending in .gz, .xz, .bz2 or .zst); there "
                "is users.dat, ratings.dat, users.dat");
    CHECK(in == NULL);
    bundle_close(b);
    bundle_close(NULL);
}

TEST(bundle_of_an_empty_folder_and_of_a_file) {
    bundle *b;
    input *in;
    const char *const *names;
    size_t n;
    CHECK(mkdir(at("none"), 0700) == 0);
    CHECK_OK(bundle_open(&b, at("none")));
    CHECK_FAILS(bundle_open_member(b, "x", true, &in), ERR_IO, "there is nothing at all");
    bundle_close(b);
    write_file(at("ratings_Books.csv"), "a,b", 3);
    CHECK_OK(bundle_open(&b, at("ratings_Books.csv")));
    CHECK_OK(bundle_list(b, &names, &n));
    CHECK_EQ(n, 1);
    CHECK_STR(names[0], "ratings_Books.csv");
    CHECK_OK(bundle_open_member(b, "whatever", true, &in));
    CHECK_STR(input_name(in), at("ratings_Books.csv"));
    input_close(in);
    bundle_close(b);
}

#ifndef HSTU_HAS_ARCHIVE

TEST(input_refuses_compression_without_libarchive) {
    input *in;
    bundle *b;
    write_file(at("a.gz"), "\x1f\x8b\x08", 3);
    CHECK_FAILS(input_open(&in, at("a.gz")), ERR_UNSUPPORTED,
                "a.gz: this build cannot read gzip files; unpack it by hand, or install "
                "libarchive-dev");
    write_file(at("a.zip"), "PK\3\4", 4);
    CHECK_FAILS(bundle_open(&b, at("a.zip")), ERR_UNSUPPORTED, "libarchive-dev");
}

TEST(input_compressed) {
    SKIP_TEST("this build is without libarchive");
}

#else
#include <archive.h>
#include <archive_entry.h>

typedef struct member {
    const char *path;
    const char *bytes;
    size_t n_bytes;
    unsigned type; /* 0: AE_IFREG */
} member;

/* Writes a tar or zip with a filter ("gzip", "none", ...); format "raw" takes one member. */
static void write_archive(const char *path, const char *format, const char *filter,
                          const member *members, int n) {
    struct archive *a = archive_write_new();
    CHECK(archive_write_set_format_by_name(a, format) == ARCHIVE_OK);
    if (strcmp(filter, "none") != 0 && archive_write_add_filter_by_name(a, filter) != ARCHIVE_OK)
        SKIP_TEST("libarchive cannot write %s", filter);
    archive_write_set_bytes_in_last_block(a, 1);
    CHECK(archive_write_open_filename(a, path) == ARCHIVE_OK);
    for (int i = 0; i < n; i++) {
        struct archive_entry *e = archive_entry_new();
        unsigned type = members[i].type != 0 ? members[i].type : AE_IFREG;
        archive_entry_set_pathname(e, members[i].path);
        archive_entry_set_filetype(e, type);
        archive_entry_set_perm(e, 0644);
        archive_entry_set_size(e, (la_int64_t)members[i].n_bytes);
        if (type == AE_IFLNK) archive_entry_set_symlink(e, "/etc/passwd");
        CHECK(archive_write_header(a, e) == ARCHIVE_OK);
        if (members[i].n_bytes > 0)
            CHECK(archive_write_data(a, members[i].bytes, members[i].n_bytes) >= 0);
        archive_entry_free(e);
    }
    CHECK(archive_write_close(a) == ARCHIVE_OK);
    archive_write_free(a);
}

static void compress_file(const char *path, const char *filter, const buf *content) {
    write_archive(path, "raw", filter, &(member){"data", content->data, content->n_bytes, 0}, 1);
}

static void load(const char *path, buf *out) {
    char bytes[4096];
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    buf_clear(out);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, f)) > 0;)
        CHECK_OK(buf_append(out, bytes, n));
    fclose(f);
}

TEST(input_decompresses) {
    static const char *const filters[] = {"gzip", "bzip2", "xz", "zstd"};
    numbers(&text, 50000);
    for (int i = 0; i < 4; i++) {
        input *in;
        uint64_t done, total;
        compress_file(at("data"), filters[i], &text);
        CHECK_OK(input_open(&in, at("data")));
        CHECK_STR(input_name(in), at("data"));
        CHECK_OK(read_all(in, 777, &got));
        CHECK(is_same(&text, &got));
        input_progress(in, &done, &total);
        CHECK(total > 0 && total < text.n_bytes && done == total);
        input_close(in);
    }
}

TEST(input_decompresses_to_nothing) {
    for (int i = 0; i < 2; i++) {
        write_archive(at("data"), "raw", i == 0 ? "gzip" : "xz", &(member){"data", "", 0, 0}, 1);
        CHECK_OK(read_path(at("data"), &got));
        CHECK_EQ(got.n_bytes, 0);
    }
}

/* Every way to cut a compressed file short is noticed. */
TEST(input_refuses_cut_streams) {
    static const char *const filters[] = {"gzip", "bzip2", "xz", "zstd"};
    numbers(&text, 3000);
    for (int i = 0; i < 4; i++) {
        compress_file(at("whole"), filters[i], &text);
        load(at("whole"), &packed);
        for (size_t n = 6; n < packed.n_bytes; n += n < 40 || n + 40 > packed.n_bytes ? 1 : 97) {
            write_file(at("cut"), packed.data, n);
            CHECK_FAILS(read_path(at("cut"), &got), ERR_FORMAT, "cut is damaged");
        }
    }
}

/* A format is known by its first bytes, whatever follows them; with one byte less it is a text. */
TEST(input_knows_formats_by_their_first_bytes) {
    static const struct {
        const char *bytes;
        size_t n;
    } formats[] = {{"\x1f\x8b", 2},           {"BZh", 3},          {"\xfd\x37zXZ", 6},
                   {"\x28\xb5\x2f\xfd", 4},   {"PK\3\4", 4},       {"PK\5\6", 4},
                   {"7z\xbc\xaf\x27\x1c", 6}, {"Rar!\x1a\x07", 6}, {"\x04\x22\x4d\x18", 4}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (size_t n = formats[i].n - 1; n <= formats[i].n + 1; n++) {
            char bytes[8];
            snprintf(bytes, sizeof bytes, "%s", formats[i].bytes);
            memset(bytes + formats[i].n, '?', sizeof bytes - formats[i].n);
            write_file(at("data"), bytes, n);
            status st = read_path(at("data"), &got);
            if (n < formats[i].n) CHECK(st == OK && got.n_bytes == n);
            if (n >= formats[i].n) CHECK(st == ERR_FORMAT || st == ERR_UNSUPPORTED);
        }
}

/* libarchive does not check gzip's checksum, so we do. */
TEST(input_checks_gzip_sums) {
    numbers(&text, 3000);
    compress_file(at("whole"), "gzip", &text);
    load(at("whole"), &packed);
    packed.data[packed.n_bytes - 8] ^= 1;
    write_file(at("crc"), packed.data, packed.n_bytes);
    CHECK_FAILS(read_path(at("crc"), &got), ERR_FORMAT, "crc is damaged: its checksum is");
    packed.data[packed.n_bytes - 8] ^= 1;
    packed.data[packed.n_bytes - 1] ^= 1;
    write_file(at("length"), packed.data, packed.n_bytes);
    CHECK_FAILS(read_path(at("length"), &got), ERR_FORMAT, "length is damaged");
    packed.data[packed.n_bytes - 1] ^= 1;
    /* Two concatenated streams read as one. */
    size_t n = packed.n_bytes;
    CHECK_OK(buf_reserve(&packed, n));
    CHECK_OK(buf_append(&packed, packed.data, n));
    write_file(at("two"), packed.data, packed.n_bytes);
    CHECK_OK(read_path(at("two"), &got));
    CHECK_EQ(got.n_bytes, 2 * text.n_bytes);
}

/* Any flipped bit of a compressed csv either leaves the content as it is or is noticed. */
TEST(input_notices_flipped_bits) {
    static const char *const filters[] = {"gzip", "bzip2", "xz"};
    numbers(&text, 300);
    for (int i = 0; i < 3; i++) {
        compress_file(at("whole"), filters[i], &text);
        load(at("whole"), &packed);
        for (size_t n = 6; n < packed.n_bytes; n += 1 + n / 50) {
            packed.data[n] ^= (char)(1 << n % 8);
            write_file(at("bad"), packed.data, packed.n_bytes);
            status st = read_path(at("bad"), &got);
            if (st != OK || !is_same(&text, &got)) CHECK_FAILS(st, ERR_FORMAT, "is damaged");
            packed.data[n] ^= (char)(1 << n % 8);
        }
    }
}

static const member movie_set[] = {
    {"ml-1m/", "", 0, AE_IFDIR},
    {"ml-1m/README", "read me", 7, 0},
    {"ml-1m/users.dat", "", 0, AE_IFLNK},
    {"../../ml-1m/users.dat", "1::F", 4, 0},
    {"ml-1m/ratings.dat", "1::1193::5::978300760\n", 22, 0},
    {"other/ratings.dat", "second", 6, 0},
};

static void check_movie_set(const char *path) {
    bundle *b;
    input *in;
    const char *const *names;
    size_t n;
    buf name = {0};
    CHECK_OK(bundle_open(&b, path));
    CHECK_OK(bundle_open_member(b, "ratings.dat", true, &in));
    CHECK_OK(buf_printf(&name, "%s:ml-1m/ratings.dat", path));
    CHECK_STR(input_name(in), buf_str(&name));
    CHECK_OK(read_all(in, 7, &got));
    CHECK_STR(buf_str(&got), "1::1193::5::978300760\n");
    input_close(in);
    CHECK_OK(bundle_open_member(b, "users.dat", true, &in));
    CHECK_OK(read_all(in, 100, &got));
    CHECK_STR(buf_str(&got), "1::F");
    input_close(in);
    CHECK_OK(bundle_open_member(b, "movies.dat", false, &in));
    CHECK(in == NULL);
    CHECK_FAILS(bundle_open_member(b, "movies.dat", true, &in), ERR_IO,
                "holds no file 'movies.dat' (nor one ending in .gz, .xz, .bz2 or .zst); there is "
                "README, users.dat, ratings.dat, ratings.dat");
    CHECK_OK(bundle_list(b, &names, &n));
    CHECK_EQ(n, 4);
    CHECK_STR(names[0], "README");
    CHECK_FAILS(input_open(&in, path), ERR_FORMAT, "holds 4 files (README, ...)");
    bundle_close(b);
    buf_fini(&name);
}

TEST(bundle_of_archives) {
    static const char *const formats[][3] = {
        {"zip", "none", "a.zip"},     {"ustar", "none", "a.tar"},  {"paxr", "gzip", "a.tar.gz"},
        {"gnutar", "xz", "a.tar.xz"}, {"ustar", "bzip2", "a.tbz"}, {"ustar", "zstd", "a.tar.zst"}};
    for (int i = 0; i < 6; i++) {
        write_archive(at(formats[i][2]), formats[i][0], formats[i][1], movie_set, 6);
        check_movie_set(at(formats[i][2]));
    }
}

TEST(bundle_decompresses_members) {
    bundle *b;
    input *in;
    numbers(&text, 20000);
    compress_file(at("packed"), "xz", &text);
    load(at("packed"), &packed);
    member m = {"d/u.data.xz", packed.data, packed.n_bytes, 0};
    for (int i = 0; i < 2; i++) {
        write_archive(at("a"), i == 0 ? "zip" : "ustar", i == 0 ? "none" : "gzip", &m, 1);
        CHECK_OK(bundle_open(&b, at("a")));
        CHECK_OK(bundle_open_member(b, "u.data", true, &in));
        CHECK_OK(read_all(in, 5000, &got));
        CHECK(is_same(&text, &got));
        input_close(in);
        bundle_close(b);
        CHECK_OK(read_path(at("a"), &got)); /* the only file of an archive */
        CHECK(is_same(&text, &got));
    }
    write_file(at("u.data.xz"), packed.data, packed.n_bytes);
    CHECK_OK(bundle_open(&b, test_folder()));
    CHECK_OK(bundle_open_member(b, "u.data", true, &in));
    CHECK_STR(input_name(in), at("u.data.xz"));
    input_close(in);
    bundle_close(b);
}

TEST(bundle_refuses_archives_in_archives) {
    bundle *b;
    input *in;
    write_archive(at("inner"), "zip", "none", movie_set, 6);
    load(at("inner"), &packed);
    write_archive(at("outer"), "ustar", "none",
                  &(member){"inner.zip", packed.data, packed.n_bytes, 0}, 1);
    CHECK_OK(bundle_open(&b, at("outer")));
    CHECK_FAILS(bundle_open_member(b, "inner.zip", true, &in), ERR_UNSUPPORTED,
                "outer:inner.zip is an archive within an archive");
    CHECK(in == NULL);
    bundle_close(b);
}

TEST(bundle_of_an_empty_archive) {
    bundle *b;
    input *in;
    write_archive(at("empty.zip"), "zip", "none", NULL, 0);
    CHECK_OK(bundle_open(&b, at("empty.zip")));
    CHECK_FAILS(bundle_open_member(b, "x", true, &in), ERR_IO, "there is nothing at all");
    CHECK_FAILS(input_open(&in, at("empty.zip")), ERR_FORMAT, "holds 0 files;");
    bundle_close(b);
}

/* Reads a member, whatever fails on the way. */
static status read_member(const char *path, const char *name, buf *out) {
    bundle *b;
    input *in = NULL;
    TRY(bundle_open(&b, path));
    status st = bundle_open_member(b, name, true, &in);
    if (st == OK) st = read_all(in, 1000, out);
    input_close(in);
    bundle_close(b);
    return st;
}

TEST(bundle_refuses_damaged_archives) {
    static const char *const kinds[][2] = {{"zip", "none"}, {"ustar", "gzip"}, {"ustar", "none"}};
    numbers(&text, 3000);
    member m = {"d/ratings.dat", text.data, text.n_bytes, 0};
    for (int i = 0; i < 3; i++) {
        write_archive(at("whole"), kinds[i][0], kinds[i][1], &m, 1);
        load(at("whole"), &packed);
        for (size_t n = 600; n < text.n_bytes && n < packed.n_bytes - 60; n += 333) {
            write_file(at("cut"), packed.data, n);
            CHECK_FAILS(read_member(at("cut"), "ratings.dat", &got), ERR_FORMAT, "cut");
            CHECK_CONTAINS(status_reason(), "is damaged");
        }
        /* A flipped bit in the middle: plain tar has no checksum of the content. */
        packed.data[packed.n_bytes / 2] ^= 4;
        write_file(at("bad"), packed.data, packed.n_bytes);
        if (i < 1) CHECK_FAILS(read_member(at("bad"), "ratings.dat", &got), ERR_FORMAT, "damaged");
    }
}

TEST(bundle_checks_the_sum_of_a_whole_tar_gz) {
    bundle *b;
    const char *const *names;
    size_t n;
    write_archive(at("a.tgz"), "ustar", "gzip", movie_set, 6);
    load(at("a.tgz"), &packed);
    packed.data[packed.n_bytes - 7] ^= 1;
    write_file(at("a.tgz"), packed.data, packed.n_bytes);
    CHECK_OK(bundle_open(&b, at("a.tgz")));
    CHECK_FAILS(bundle_list(b, &names, &n), ERR_FORMAT, "a.tgz is damaged: its checksum is");
    CHECK_FAILS(bundle_list(b, &names, &n), ERR_FORMAT, "a.tgz is damaged: its checksum is");
    bundle_close(b);
}

TEST(bundle_refuses_encrypted_members) {
    write_archive(at("a.zip"), "zip", "none", movie_set + 1, 1);
    load(at("a.zip"), &packed);
    /* Bit 0 of the flags, in the local header and in the central one. */
    for (size_t i = 0; i + 10 < packed.n_bytes; i++) {
        if (memcmp(packed.data + i, "PK\3\4", 4) == 0) packed.data[i + 6] |= 1;
        if (memcmp(packed.data + i, "PK\1\2", 4) == 0) packed.data[i + 8] |= 1;
    }
    write_file(at("a.zip"), packed.data, packed.n_bytes);
    CHECK_FAILS(read_member(at("a.zip"), "README", &got), ERR_UNSUPPORTED,
                "a.zip: ml-1m/README is encrypted");
}

/* Such a member may ask for 4 GiB, as its own header says. */
TEST(bundle_refuses_lzma_in_zip) {
    write_archive(at("a.zip"), "zip", "none", movie_set + 1, 1);
    load(at("a.zip"), &packed);
    for (size_t i = 0; i + 12 < packed.n_bytes; i++) {
        if (memcmp(packed.data + i, "PK\3\4", 4) == 0) packed.data[i + 8] = 14;
        if (memcmp(packed.data + i, "PK\1\2", 4) == 0) packed.data[i + 10] = 14;
    }
    write_file(at("a.zip"), packed.data, packed.n_bytes);
    CHECK_FAILS(read_member(at("a.zip"), "README", &got), ERR_UNSUPPORTED,
                "README is compressed by a method (lzma");
}

/* A small file may unpack to much, a larger one only to what a data set does. */
TEST(input_refuses_what_was_made_to_fill_memory) {
    input *in;
    size_t n = 1, total = 0;
    char *bytes = malloc(1 << 20);
    CHECK_EQ(test_command(NULL, "head -c 80000000 /dev/zero | gzip -1 >%s", at("zeros.gz")), 0);
    CHECK_EQ(test_command(NULL, "head -c 60000000 /dev/zero | gzip -9 >%s", at("fine.gz")), 0);
    CHECK_OK(input_open(&in, at("zeros.gz")));
    status st = OK;
    for (; st == OK && n > 0; total += n)
        st = input_read(in, bytes, 1 << 20, &n);
    CHECK(st == OK); /* gzip -1 packs them to a 229th */
    input_close(in);
    CHECK_EQ(test_command(NULL, "head -c 80000000 /dev/zero | gzip -9 >%s", at("zeros.gz")), 0);
    CHECK_OK(input_open(&in, at("zeros.gz")));
    for (n = 1, total = 0; st == OK && n > 0; total += n)
        st = input_read(in, bytes, 1 << 20, &n);
    CHECK(st == ERR_FORMAT && total <= (64 << 20) + (1 << 20));
    CHECK_CONTAINS(status_reason(), "zeros.gz unpacks to more than 250 times");
    input_close(in);
    CHECK_OK(input_open(&in, at("fine.gz")));
    for (st = OK, n = 1; st == OK && n > 0;)
        st = input_read(in, bytes, 1 << 20, &n);
    CHECK_OK(st);
    input_close(in);
    free(bytes);
}

static status open_twice(void *ctx) {
    bundle *b;
    input *in = NULL;
    const char *const *names;
    size_t n;
    TRY(bundle_open(&b, ctx));
    status st = bundle_list(b, &names, &n);
    if (st == OK) st = bundle_open_member(b, "users.dat", true, &in);
    input_close(in);
    bundle_close(b);
    return st;
}

TEST(bundle_survives_lack_of_memory) {
    write_archive(at("a.tgz"), "ustar", "gzip", movie_set, 6);
    write_file(at("users.dat"), "1", 1);
    CHECK(oom_at_each_allocation(open_twice, (void *)at("a.tgz")) > 10);
    CHECK(oom_at_each_allocation(open_twice, (void *)test_folder()) > 5);
}

TEST(input_reads_a_compressed_pipe) {
    numbers(&text, 5000);
    compress_file(at("packed"), "gzip", &text);
    load(at("packed"), &packed);
    CHECK(mkfifo(at("pipe"), 0600) == 0);
    if (fork() == 0) {
        write_file(at("pipe"), packed.data, packed.n_bytes);
        _exit(0);
    }
    CHECK_OK(read_path(at("pipe"), &got));
    CHECK(is_same(&text, &got));
}

TEST(input_reads_the_real_sets) {
    bundle *b;
    input *in;
    const char *folder = test_shared("data/ml-1m");
    CHECK_OK(bundle_open(&b, folder));
    CHECK_OK(bundle_open_member(b, "ratings.dat", true, &in));
    CHECK_OK(read_all(in, 1 << 20, &got));
    size_t lines = 0;
    for (size_t i = 0; i < got.n_bytes; i++)
        lines += got.data[i] == '\n';
    CHECK_EQ(lines, 1000209);
    input_close(in);
    bundle_close(b);
}

#endif
