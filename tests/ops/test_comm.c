/* What collectives need on memory of the device under test: sums of two arrays (ops/comm.h), and
 * rows and columns that are packed for them (ops/row_moves.h). */
#include "ops/comm.h"

#include "base/half.h"
#include "device.h"
#include "oom.h"
#include "ops/row_moves.h"
#include "test.h"

/* Sums of 16-bit numbers are those of floats, rounded; 1.25 + 2^-7 needs more bits than bfloat16
 * has. */
TEST(comm_combines_16_bits) {
    static const float x[] = {1.25f, -3, 0.0078125f, 100}, y[] = {0.0078125f, 5, 1, -100.5f};
    for (int type = COMM_BF16; type <= COMM_F16; type++)
        for (int rule = COMM_SUM; rule <= COMM_MAX; rule++) {
            backend *be;
            void *from, *to;
            uint16_t a[4], b[4], got[4];
            CHECK_OK(test_real_backend(&be, NULL));
            for (int i = 0; i < 4; i++) {
                float z = rule == COMM_SUM ? x[i] + y[i] : x[i] > y[i] ? x[i] : y[i];
                bool is_bf16 = type == COMM_BF16;
                a[i] = is_bf16 ? half_bf16_from_float(x[i]) : half_f16_from_float(x[i]);
                b[i] = is_bf16 ? half_bf16_from_float(y[i]) : half_f16_from_float(y[i]);
                got[i] = is_bf16 ? half_bf16_from_float(z) : half_f16_from_float(z);
            }
            uint16_t want[4];
            memcpy(want, got, sizeof want);
            CHECK_OK(be->ops->alloc(be, &from, sizeof a));
            CHECK_OK(be->ops->alloc(be, &to, sizeof b));
            CHECK_OK(be->ops->copy_in(be, from, a, sizeof a));
            CHECK_OK(be->ops->copy_in(be, to, b, sizeof b));
            CHECK_OK(combine(be, (comm_type)type, (comm_rule)rule, 4, from, to));
            CHECK_OK(be->ops->copy_out(be, got, to, sizeof got));
            CHECK(memcmp(got, want, sizeof got) == 0);
            be->ops->release(be, from);
            be->ops->release(be, to);
            test_real_backend_end(be);
        }
}

/* Rows of two blocks for three parts, in units of `unit` bytes: blocks of 2 and 1 units a part
 * begin at units 1 and 8. */
static void check_heads(backend *be, int64_t unit) {
    enum { ROWS = 70, UNITS = 12, PARTS = 3, MAX_UNIT = 16 };
    static unsigned char whole[ROWS * UNITS * MAX_UNIT], packed[ROWS * 9 * MAX_UNIT];
    static unsigned char got[sizeof whole];
    size_t whole_bytes = (size_t)(ROWS * UNITS * unit), packed_bytes = (size_t)(ROWS * 9 * unit);
    head_parts a = {.n = ROWS,
                    .n_parts = PARTS,
                    .n_blocks = 2,
                    .first = {unit, 8 * unit},
                    .width = {2 * unit, unit},
                    .stride = UNITS * unit};
    for (size_t i = 0; i < whole_bytes; i++)
        whole[i] = (unsigned char)(i * 7 + i / 251);
    for (int64_t p = 0, at = 0; p < PARTS; p++)
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t c = 0; c < 3 * unit; c++) {
                int64_t from =
                    c < 2 * unit ? unit + p * 2 * unit + c : 8 * unit + p * unit + c - 2 * unit;
                packed[at++] = whole[i * a.stride + from];
            }
    CHECK_OK(be->ops->alloc(be, &a.whole, whole_bytes));
    CHECK_OK(be->ops->alloc(be, &a.packed, packed_bytes));
    CHECK_OK(be->ops->copy_in(be, a.whole, whole, whole_bytes));
    CHECK_OK(head_parts_pack(be, &a));
    CHECK_OK(be->ops->copy_out(be, got, a.packed, packed_bytes));
    CHECK(memcmp(got, packed, packed_bytes) == 0);
    CHECK_OK(be->ops->zero(be, a.whole, whole_bytes));
    CHECK_OK(head_parts_unpack(be, &a));
    CHECK_OK(be->ops->copy_out(be, got, a.whole, whole_bytes));
    for (size_t i = 0; i < whole_bytes; i++) {
        size_t at = i / (size_t)unit % UNITS;
        CHECK_EQ(got[i], (at >= 1 && at < 7) || (at >= 8 && at < 11) ? whole[i] : 0);
    }
    be->ops->release(be, a.whole);
    be->ops->release(be, a.packed);
}

TEST(comm_packs_columns_of_heads) {
    backend *be;
    CHECK_OK(test_real_backend(&be, NULL));
    check_heads(be, 16);
    check_heads(be, 2);
    check_heads(be, 6);
    test_real_backend_end(be);
}

TEST(comm_moves_rows_by_number) {
    enum { ROWS = 9, MAX_BYTES = 32 };
    static const int32_t number[] = {7, 0, 3, 8};
    static const int64_t widths[] = {32, 12, 1, 6};
    for (int w = 0; w < 4; w++) {
        backend *be;
        unsigned char host[ROWS * MAX_BYTES], got[ROWS * MAX_BYTES];
        size_t row = (size_t)widths[w];
        row_moves a = {.n = 4, .row_bytes = widths[w]};
        void *index;
        for (size_t i = 0; i < ROWS * row; i++)
            host[i] = (unsigned char)(i + 1);
        CHECK_OK(test_real_backend(&be, NULL));
        CHECK_OK(be->ops->alloc(be, &a.rows, ROWS * row));
        CHECK_OK(be->ops->alloc(be, &a.picked, 4 * row));
        CHECK_OK(be->ops->alloc(be, &index, sizeof number));
        CHECK_OK(be->ops->copy_in(be, index, number, sizeof number));
        CHECK_OK(be->ops->copy_in(be, a.rows, host, ROWS * row));
        a.index = index;
        CHECK_OK(row_moves_run(be, &a, false));
        CHECK_OK(be->ops->copy_out(be, got, a.picked, 4 * row));
        for (int i = 0; i < 4; i++)
            CHECK(memcmp(got + (size_t)i * row, host + (size_t)number[i] * row, row) == 0);
        CHECK_OK(be->ops->zero(be, a.rows, ROWS * row));
        CHECK_OK(row_moves_run(be, &a, true));
        CHECK_OK(be->ops->copy_out(be, got, a.rows, ROWS * row));
        for (int r = 0; r < ROWS; r++)
            for (size_t c = 0; c < row; c++) {
                bool is_there = r == 7 || r == 0 || r == 3 || r == 8;
                CHECK_EQ(got[(size_t)r * row + c], is_there ? host[(size_t)r * row + c] : 0);
            }
        be->ops->release(be, a.rows);
        be->ops->release(be, a.picked);
        be->ops->release(be, index);
        test_real_backend_end(be);
    }
}
