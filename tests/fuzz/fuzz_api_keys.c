/* Any bytes as a file of API keys; the file's own words are then tried as keys. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http/api_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    api_keys *k;
    const char *name;
    unsigned roles;
    char word[API_KEY_MAX + 1] = "";
    if (api_keys_read(&k, "fuzz", (const char *)bytes, n) != OK) return 0;
    memcpy(word, bytes, n < API_KEY_MAX ? n : API_KEY_MAX);
    word[strcspn(word, " \t\r\n")] = '\0';
    if (api_keys_use(k, word, 1, &name, &roles) == KEY_OK && (name == NULL || roles == 0)) abort();
    if (api_keys_use(k, "", 1, &name, &roles) != KEY_UNKNOWN) abort();
    api_keys_close(k);
    return 0;
}
