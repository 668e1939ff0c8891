#include <string.h>

#include "serve/http/http.h"

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_decode(const char *from, size_t n, bool is_query, char *out, size_t out_bytes) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '+' && is_query) c = ' ';
        if (c == '%') {
            int high = i + 2 < n ? hex_digit(from[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(from[i + 2]) : -1;
            if (low < 0) return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0' || length + 1 >= out_bytes) return false;
        out[length++] = c;
    }
    out[length] = '\0';
    return true;
}

http_settings http_default_settings(void) {
    return (http_settings){.host = "127.0.0.1",
                           .port = 8080,
                           .max_connections = 4096,
                           .max_per_address = 1024,
                           .max_header_bytes = 16 << 10,
                           .max_body_bytes = 8 << 20,
                           .header_ms = 5000,
                           .body_ms = 10000,
                           .idle_ms = 60000,
                           .answer_ms = 30000,
                           .max_held_bytes = 256 << 20};
}
