#include "serve/http/api_keys.h"

enum { MAX_FILE = 1 << 20 };

typedef struct api_key {
    char key[API_KEY_MAX + 1], name[API_KEY_NAME];
    unsigned roles;    /* 0: the file names none */
    double per_second; /* 0: no limit */
    double left;
    uint64_t filled_ns;
} api_key;

struct api_keys {
    pthread_mutex_t lock;
    api_key *key;
    size_t n, capacity;
};

/* The next word of a line; NULL: there is none. */
static const char *next_word(const char **at, const char *end, size_t *n) {
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r'))
        ++*at;
    const char *word = *at;
    while (*at < end && **at != ' ' && **at != '\t' && **at != '\r')
        ++*at;
    *n = (size_t)(*at - word);
    return *n > 0 ? word : NULL;
}

const char *key_role_name(key_role one) {
    return one == KEY_READ ? "read" : one == KEY_EVENTS ? "events" : "admin";
}

/* Adds the roles of a list such as read,events; false: there is another word in it. */
static bool add_roles(api_key *key, const char *text, size_t n) {
    for (const char *end = text + n; text < end; text++) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        size_t length = (size_t)((comma != NULL ? comma : end) - text);
        unsigned role = KEY_READ;
        while (role <= KEY_ADMIN && (strlen(key_role_name(role)) != length ||
                                     memcmp(key_role_name(role), text, length) != 0))
            role *= 2;
        if (role > KEY_ADMIN) return false;
        key->roles |= role;
        text += length;
        if (text + 1 == end) return false; /* it ends with a comma */
    }
    return true;
}

static status add_line(api_keys *k, const char *name, int line, const char *at, const char *end) {
    size_t n, n_name, n_rate, n_roles, n_rest;
    char rate[32], *rest;
    const char *word = next_word(&at, end, &n), *owner, *limit;
    if (word == NULL || word[0] == '#') return OK;
    owner = next_word(&at, end, &n_name);
    limit = next_word(&at, end, &n_rate);
    const char *roles = next_word(&at, end, &n_roles);
    if (roles != NULL && roles[0] == '#') roles = NULL;
    const char *more = roles != NULL ? next_word(&at, end, &n_rest) : NULL;
    if (owner == NULL || limit == NULL || (more != NULL && more[0] != '#') || n > API_KEY_MAX ||
        n < API_KEY_MIN || n_name >= API_KEY_NAME || n_rate >= sizeof rate)
        return fail(ERR_FORMAT,
                    "%s:%d: a line is KEY NAME REQUESTS_PER_SECOND [ROLES], with a key of %d to %d "
                    "bytes",
                    name, line, API_KEY_MIN, API_KEY_MAX);
    TRY(MEM_RESERVE(&k->key, &k->capacity, k->n + 1));
    api_key *new = &k->key[k->n];
    *new = (api_key){0};
    memcpy(new->key, word, n);
    memcpy(new->name, owner, n_name);
    memcpy(rate, limit, n_rate);
    rate[n_rate] = '\0';
    new->per_second = strtod(rate, &rest);
    if (*rest != '\0' || !(new->per_second >= 0 && new->per_second <= 1e9))
        return fail(ERR_FORMAT, "%s:%d: '%s' is not a number of requests a second", name, line,
                    rate);
    if (roles != NULL && !add_roles(new, roles, n_roles))
        return fail(ERR_FORMAT,
                    "%s:%d: '%.*s': roles are read, events and admin, as in read,events", name,
                    line, (int)(n_roles < 40 ? n_roles : 40), roles);
    new->left = new->per_second > 1 ? new->per_second : 1;
    for (size_t i = 0; i < k->n; i++)
        if (strcmp(k->key[i].key, new->key) == 0)
            return fail(ERR_FORMAT, "%s:%d: this key appears twice", name, line);
    k->n++;
    return OK;
}

status api_keys_read(api_keys **out, const char *name, const char *text, size_t n) {
    api_keys *k;
    status st = OK;
    int line = 1;
    *out = NULL;
    TRY(MEM_NEW(&k, 1));
    pthread_mutex_init(&k->lock, NULL);
    for (const char *at = text, *end = text + n; at < end && st == OK; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        st = memchr(at, '\0', (size_t)(stop - at)) != NULL
                 ? fail(ERR_FORMAT, "%s:%d: a NUL byte in a text file", name, line)
                 : add_line(k, name, line, at, stop);
        at = stop + 1;
    }
    if (st == OK && k->n == 0) st = fail(ERR_FORMAT, "%s: the file has no key", name);
    return CREATED(st, out, k, api_keys_close);
}

status api_keys_open(api_keys **out, const char *path) {
    char *text;
    size_t n;
    *out = NULL;
    TRY(file_read_all(path, MAX_FILE, &text, &n));
    status st = api_keys_read(out, path, text, n);
    mem_free(text);
    return st;
}

void api_keys_close(api_keys *k) {
    if (k == NULL) return;
    pthread_mutex_destroy(&k->lock);
    MEM_FREE(k->key, k);
}

/* Takes the same time for every key of the same length: a guess learns nothing from it. */
static bool is_same(const char *a, const char *b) {
    size_t n = strlen(a);
    unsigned char differs = 0;
    if (strlen(b) != n) return false;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

static key_verdict use(api_key *key, uint64_t now_ns) {
    double most = key->per_second > 1 ? key->per_second : 1;
    if (key->per_second == 0) return KEY_OK;
    if (now_ns > key->filled_ns && key->filled_ns > 0)
        key->left += (double)(now_ns - key->filled_ns) / 1e9 * key->per_second;
    key->filled_ns = now_ns;
    if (key->left > most) key->left = most;
    if (key->left < 1) return KEY_OVER_QUOTA;
    key->left -= 1;
    return KEY_OK;
}

size_t api_keys_without_roles(const api_keys *k) {
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        n += k->key[i].roles == 0;
    return n;
}

key_verdict api_keys_use(api_keys *k, const char *text, uint64_t now_ns, const char **name,
                         unsigned *roles) {
    key_verdict verdict = KEY_UNKNOWN;
    *name = NULL;
    *roles = 0;
    if (text == NULL) return KEY_UNKNOWN;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n; i++) {
        if (!is_same(k->key[i].key, text)) continue;
        *name = k->key[i].name;
        *roles = k->key[i].roles != 0 ? k->key[i].roles : KEY_ALL;
        verdict = use(&k->key[i], now_ns);
    }
    pthread_mutex_unlock(&k->lock);
    return verdict;
}
