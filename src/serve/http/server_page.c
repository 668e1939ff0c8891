/* The page at /: server_page.html, in the program.  Each answer has a new nonce, which the page's
 * own script and style carry: the browser runs nothing else, and fetches from nowhere else. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "serve/http/server_int.h"

__asm__(".section .rodata\n"
        ".globl server_page_begin, server_page_end\n"
        ".hidden server_page_begin, server_page_end\n"
        ".balign 16\n"
        "server_page_begin:\n"
        ".incbin \"src/serve/http/server_page.html\"\n"
        "server_page_end:\n"
        ".byte 0\n"
        ".previous\n");
/* Hidden: found without the table of addresses that shared libraries need. */
extern const char server_page_begin[] __attribute__((visibility("hidden")));
extern const char server_page_end[] __attribute__((visibility("hidden")));

static const char mark[] = "NONCE";

static void make_nonce(char text[33]) {
    unsigned char bytes[16] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) memset(bytes, 0x5a, sizeof bytes);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static status write_page(buf *out, const char *nonce) {
    const char *at = server_page_begin, *next;
    while ((next = memmem(at, (size_t)(server_page_end - at), mark, strlen(mark))) != NULL) {
        TRY(buf_append(out, at, (size_t)(next - at)));
        TRY(buf_text(out, nonce));
        at = next + strlen(mark);
    }
    return buf_append(out, at, (size_t)(server_page_end - at));
}

void serve_page(call *c) {
    char nonce[33], policy[320];
    buf body;
    buf_init(&body);
    make_nonce(nonce);
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    status st = write_page(&body, nonce);
    if (st != OK) {
        call_fail_status(c, st);
        return;
    }
    http_set_header(c->x, "Content-Security-Policy", policy);
    http_set_header(c->x, "X-Content-Type-Options", "nosniff");
    http_set_header(c->x, "Referrer-Policy", "no-referrer");
    http_set_header(c->x, "Cache-Control", "no-store");
    call_reply(c, 200, "text/html; charset=utf-8", &body);
}
