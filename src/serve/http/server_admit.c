/* Who may send a request, by its headers: its host, its key and the key's roles, and the page that
 * sent it. */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/http/server_int.h"

enum { HOST_BYTES = 256 };

/* The host without its port and, of IPv6, its brackets. */
static bool read_host(const char *header, char host[HOST_BYTES]) {
    bool has_brackets = header[0] == '[';
    size_t n = has_brackets ? strcspn(header, "]") : strcspn(header, ":");
    const char *port = header + n + (has_brackets && header[n] != '\0');
    if (n >= HOST_BYTES || (*port != '\0' && *port != ':')) return false;
    if (*port == ':' && port[1 + strspn(port + 1, "0123456789")] != '\0') return false;
    memcpy(host, header + has_brackets, n - has_brackets);
    host[n - has_brackets] = '\0';
    return true;
}

static bool is_address(const char *host) {
    unsigned char bytes[16];
    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

/* A name that leads here by anybody's DNS would make a page of theirs one of ours, for a browser on
 * this machine or in its network (DNS rebinding).  An address, or one of our own names, cannot. */
static bool is_our_host(const server *s, const char *header) {
    char host[HOST_BYTES], machine[HOST_BYTES] = "";
    if (!read_host(header, host)) return false;
    gethostname(machine, sizeof machine - 1);
    if (is_address(host) || strcasecmp(host, "localhost") == 0 || strcasecmp(host, machine) == 0 ||
        strcasecmp(host, s->set.http.host) == 0)
        return true;
    for (size_t i = 0; i < s->set.n_allow_hosts; i++) {
        const char *allowed = s->set.allow_hosts[i];
        if (strcmp(allowed, "*") == 0 || strcasecmp(allowed, host) == 0) return true;
    }
    return false;
}

/* Where keys are asked for, a page that has none gets nowhere, whatever its host; checks of health
 * say nothing. */
static bool has_good_host(const call *c) {
    const char *host = http_header(c->x, "Host");
    bool is_checked = c->s->keys == NULL || c->s->set.n_allow_hosts > 0;
    return !is_checked || host == NULL || c->route == ROUTE_HEALTH || is_our_host(c->s, host);
}

/* A page of another site, in a browser of somebody who can reach this server, may not change
 * anything: browsers say where a script comes from. */
static bool is_foreign(const call *c) {
    const char *origin = http_header(c->x, "Origin"), *host = http_header(c->x, "Host");
    const char *forwarded = http_header(c->x, "X-Forwarded-Host");
    if (origin == NULL || strcmp(c->x->method, "GET") == 0) return false;
    const char *from = strstr(origin, "://");
    if (from == NULL) return true;
    from += 3;
    return !(host != NULL && strcasecmp(from, host) == 0) &&
           !(forwarded != NULL && strcasecmp(from, forwarded) == 0);
}

/* "Authorization: Bearer KEY" or "X-Api-Key: KEY". */
static bool has_key(call *c) {
    const char *text = http_header(c->x, "Authorization");
    if (text != NULL && strncasecmp(text, "Bearer ", 7) == 0)
        text += 7;
    else
        text = http_header(c->x, "X-Api-Key");
    key_verdict v = api_keys_use(c->s->keys, text, clock_ns(), &c->key_name, &c->roles);
    if (v == KEY_OK) return true;
    if (v == KEY_OVER_QUOTA) {
        atomic_fetch_add(&c->s->metrics.rejected_quota, 1);
        http_set_header(c->x, "Retry-After", "1");
        call_fail(c, 429, "the quota of this key is used up for this second");
    } else {
        http_set_header(c->x, "WWW-Authenticate", "Bearer");
        call_fail(c, 401, "send a key of this server as 'Authorization: Bearer KEY'");
    }
    return false;
}

bool call_may(call *c, unsigned role) {
    if ((c->roles & role) == role) return true;
    call_fail(c, 403, "the key of %s does not have the role %s, which this needs", c->key_name,
              key_role_name(role));
    return false;
}

bool call_admit(call *c, unsigned role) {
    c->roles = KEY_ALL;
    if (!has_good_host(c)) {
        call_fail(c, 403,
                  "'%.100s' is not a name of this server; start it with --allow-host NAME, or "
                  "--allow-host '*' for any",
                  http_header(c->x, "Host"));
        return false;
    }
    if (c->s->keys != NULL && role != 0 && (!has_key(c) || !call_may(c, role))) return false;
    if (!is_foreign(c)) return true;
    call_fail(c, 403, "a page of another site must not send this");
    return false;
}
