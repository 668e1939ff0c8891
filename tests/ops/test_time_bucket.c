/* The time buckets against the golden vectors, and against their definition at every edge. */
#include "format/safetensors.h"
#include "ops/time_bucket.h"
#include "test.h"

static const void *tensor(const st_file *f, const char *name, st_dtype dtype) {
    const st_tensor *t;
    CHECK_OK(st_get(f, name, dtype, &t));
    return t->data;
}

TEST(time_bucket_golden) {
    st_file *f;
    int n_checked = 0;
    CHECK_OK(st_open(&f, test_shared("golden/meta_buckets.safetensors")));
    const int64_t *difference = tensor(f, "dt", ST_I64);
    const int32_t *want = tensor(f, "bucket", ST_I32);
    const uint8_t *is_ambiguous = tensor(f, "ambiguous", ST_U8);
    int64_t n = st_find(f, "dt")->n;
    const bucket_table *table = bucket_table_get();
    for (int64_t i = 0; i < n; i++) {
        if (is_ambiguous[i]) continue;
        int32_t got = (int32_t)bucket_of(table, bucket_distance(difference[i], 0));
        if (got != want[i])
            FAIL_TEST("bucket(%" PRId64 ") is %d, not %d", difference[i], got, want[i]);
        n_checked++;
    }
    CHECK(n_checked > 1000);
    st_close(f);
}

static int32_t definition(float distance) {
    float bucket = (float)log((double)distance) / 0.301f;
    return bucket > 128.0f ? 128 : (int32_t)bucket;
}

/* Every float around every edge, and a walk over all magnitudes. */
TEST(time_bucket_edges) {
    const bucket_table *table = bucket_table_get();
    for (int bucket = 1; bucket <= 128; bucket++) {
        float edge = (float)exp(0.301 * bucket), below = edge, above = edge;
        for (int step = 0; step < 200; step++) {
            below = nextafterf(below, 0.0f);
            above = nextafterf(above, INFINITY);
            CHECK_EQ(bucket_of(table, below), definition(below));
            CHECK_EQ(bucket_of(table, above), definition(above));
        }
        CHECK_EQ(bucket_of(table, edge), definition(edge));
    }
    for (float f = 1.0f; f < 3000.0f; f += 1.0f)
        CHECK_EQ(bucket_of(table, f), definition(f));
    for (float f = 1.0f; f < 1.8e19f; f *= 1.0001f)
        CHECK_EQ(bucket_of(table, f), definition(f));
}

TEST(time_bucket_extremes) {
    const bucket_table *table = bucket_table_get();
    CHECK_EQ(bucket_of(table, bucket_distance(5, 5)), 0);
    CHECK_EQ(bucket_of(table, bucket_distance(1, 2)), 0);
    CHECK_EQ(bucket_of(table, bucket_distance(INT64_MIN, INT64_MAX)), 128);
    CHECK_EQ(bucket_of(table, bucket_distance(INT64_MAX, INT64_MIN)), 128);
    CHECK_EQ(bucket_of(table, bucket_distance(INT64_MAX, 0)), 128);
}
