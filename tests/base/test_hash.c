/* HMAC-SHA-256 against the vectors of RFC 4231. */
#include "base/hash.h"

#include "test.h"

static void check(const char *key, size_t n_key, const char *text, size_t n, const char *want) {
    unsigned char got[HMAC_BYTES];
    char hex[2 * HMAC_BYTES + 1];
    for (size_t cut = 0; cut <= n; cut += n / 3 + 1) { /* in two parts */
        hmac_part parts[] = {{text, cut}, {text + cut, n - cut}};
        hmac_sha256(key, n_key, parts, 2, got);
        for (int i = 0; i < HMAC_BYTES; i++)
            snprintf(hex + 2 * i, 3, "%02x", got[i]);
        CHECK(strcmp(hex, want) == 0);
    }
}

TEST(hmac_vectors) {
    char key[131], text[50];
    memset(key, 0x0b, 20);
    check(key, 20, "Hi There", 8,
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check("Jefe", 4, "what do ya want for nothing?", 28,
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(text, 0xdd, sizeof text);
    check(key, 20, text, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    check("", 0, "", 0, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(hmac_compares_all_bytes) {
    unsigned char a[HMAC_BYTES] = {1, 2, 3}, b[HMAC_BYTES] = {1, 2, 3};
    CHECK(hmac_equal(a, b));
    for (int i = 0; i < HMAC_BYTES; i++) {
        b[i] ^= 0x80;
        CHECK(!hmac_equal(a, b));
        b[i] ^= 0x80;
    }
}
