#include "data/read/download.h"

#include <sys/file.h>

#define GROUPLENS "https://files.grouplens.org/datasets/movielens/"
#define ZENODO    "https://zenodo.org/records/10439422/files/"
#define SNAP      "http://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"

enum { MD5_CHARS = 32, PATH_BYTES = 4096, DEFAULT_STALL_S = 60 };

/* The checksums are those of GroupLens's .md5 files and of KuaiRand's README. */
static const download_source sources[] = {
    {"ml-100k", GROUPLENS "ml-100k.zip", "ml-100k.zip", "0e33842e24a9c977be4e0107933c0723"},
    {"ml-1m", GROUPLENS "ml-1m.zip", "ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"},
    {"ml-20m", GROUPLENS "ml-20m.zip", "ml-20m.zip", "cd245b17a1ae2cc31bb14903e1204af3"},
    {"kuairand-pure", ZENODO "KuaiRand-Pure.tar.gz", "KuaiRand-Pure.tar.gz",
     "0820331067a3784d9691136f772b35a7"},
    {"kuairand-1k", ZENODO "KuaiRand-1K.tar.gz", "KuaiRand-1K.tar.gz",
     "6b0b9c8222d67fcd4c676218edca3f1f"},
    {"kuairand-27k", ZENODO "KuaiRand-27K.tar.gz", "KuaiRand-27K.tar.gz",
     "3e3c799a24e2d23a4d2c757fbf9adf59"},
    {"amzn-books", SNAP "ratings_Books.csv", "ratings_Books.csv", NULL},
};

const download_source *download_find(const char *name) {
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (strcmp(sources[i].name, name) == 0) return &sources[i];
    return NULL;
}

/* A download under way. */
typedef struct transfer {
    const char *url;
    const char *md5; /* or NULL */
    char part[PATH_BYTES];
    int fd; /* of the part, locked */
    int stall_s;
    uint64_t start;      /* bytes of the part when this attempt began */
    uint64_t at;         /* bytes of the part */
    status write_status; /* a full disk and the like, found while curl is running */
    progress bar;
} transfer;

static status fetch(transfer *t);

/* The md5 of an open file, from its beginning. */
static status sum_of(int fd, const char *path, char hex[MD5_CHARS + 1]) {
    unsigned char block[1 << 16];
    md5_state md5;
    ssize_t n = 1;
    md5_begin(&md5);
    for (off_t at = 0; n > 0; at += n) {
        do
            n = pread(fd, block, sizeof block, at);
        while (n < 0 && errno == EINTR);
        if (n < 0) return fail_errno("%s cannot be read", path);
        md5_add(&md5, block, (size_t)n);
    }
    md5_end(&md5, hex);
    return OK;
}

/* A file that exists already is kept if its checksum is right or unknown. */
static status check_existing(const char *path, const char *md5, bool *out_keep) {
    char hex[MD5_CHARS + 1];
    *out_keep = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0) return fail_errno("%s cannot be opened", path);
    status st = sum_of(fd, path, hex);
    close(fd);
    if (st != OK) return st;
    *out_keep = md5 == NULL || strcmp(hex, md5) == 0;
    if (md5 == NULL)
        log_info("%s is here already (md5 %s); no published checksum is known, so delete it to "
                 "fetch it again",
                 path, hex);
    else if (*out_keep)
        log_info("%s is here already, with the right checksum", path);
    else
        log_warn("%s has the md5 %s, not %s; it is fetched again", path, hex, md5);
    return OK;
}

/* Opens the partial file under a lock: two writers would corrupt it. */
static status open_part(transfer *t, const char *path) {
    struct stat info;
    int n = snprintf(t->part, sizeof t->part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof t->part)
        return fail(ERR_USAGE, "the path %.60s... is too long", path);
    t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0) return fail_errno("%s cannot be written", t->part);
    if (flock(t->fd, LOCK_EX | LOCK_NB) != 0)
        return fail(ERR_IO, "%s is being written by another download; wait for it", t->part);
    if (fstat(t->fd, &info) != 0) return fail_errno("%s cannot be examined", t->part);
    t->at = (uint64_t)info.st_size;
    return OK;
}

static status verify(transfer *t) {
    char hex[MD5_CHARS + 1];
    TRY(sum_of(t->fd, t->part, hex));
    if (t->md5 == NULL) {
        log_info("no published checksum of %s is known; the md5 of what arrived is %s", t->url,
                 hex);
        return OK;
    }
    if (strcmp(hex, t->md5) == 0) return OK;
    unlink(t->part);
    return fail(ERR_FORMAT,
                "%s: what arrived has the md5 %s, but %s was expected; it was removed, so that "
                "the next download starts over",
                t->url, hex, t->md5);
}

static status publish(transfer *t, const char *path) {
    if (file_sync(t->fd) != 0) return fail_errno("%s cannot be written", t->part);
    if (rename(t->part, path) != 0) return fail_errno("%s cannot become %s", t->part, path);
    folder_sync_of(path);
    return OK;
}

status download_file(const char *url, const char *path, const char *md5, int stall_s) {
    transfer t = {.url = url, .md5 = md5, .fd = -1};
    bool is_kept;
    t.stall_s = stall_s > 0 ? stall_s : DEFAULT_STALL_S;
    TRY(check_existing(path, md5, &is_kept));
    if (is_kept) return OK;
    status st = open_part(&t, path);
    if (st == OK) st = fetch(&t);
    if (st == OK) st = verify(&t);
    if (st == OK) st = publish(&t, path);
    if (t.fd >= 0) close(t.fd);
    return st;
}

#ifdef HSTU_HAS_CURL
#include <curl/curl.h>
#include <pthread.h>

/* A broken connection is tried again as long as each attempt brings some bytes. */
enum { MAX_ATTEMPTS = 5, CONNECT_S = 30, MAX_REDIRECTS = 10, HTTP_BAD_RANGE = 416 };

static size_t on_data(char *bytes, size_t size, size_t n_items, void *ctx) {
    transfer *t = ctx;
    size_t n = size * n_items;
    for (size_t done = 0; done < n;) {
        ssize_t w = pwrite(t->fd, bytes + done, n - done, (off_t)t->at);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            t->write_status = fail_errno("%s cannot be written", t->part);
            return 0; /* makes curl stop */
        }
        done += (size_t)w;
        t->at += (uint64_t)w;
    }
    return n;
}

static int on_progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up_now) {
    transfer *t = ctx;
    t->bar.total = total > 0 ? t->start + (uint64_t)total : 0;
    progress_update(&t->bar, t->at);
    return 0;
}

/* Only http and https, and never from https back to http. */
static void set_protocols(CURL *curl, const char *url) {
    bool is_secure = strncmp(url, "https:", 6) == 0;
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, is_secure ? "https" : "http,https");
#else
    long https = CURLPROTO_HTTPS, both = CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, both);
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS, is_secure ? https : both);
#endif
}

static void set_options(CURL *curl, transfer *t, char *error) {
    curl_easy_setopt(curl, CURLOPT_URL, t->url);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "hstu.c");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)t->stall_s);
    curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)t->start);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    set_protocols(curl, t->url);
}

/* One request, from where the part ends. */
static CURLcode attempt(transfer *t, long *out_http, char *error) {
    error[0] = '\0';
    *out_http = 0;
    t->start = t->at;
    CURL *curl = curl_easy_init();
    if (curl == NULL) return CURLE_OUT_OF_MEMORY;
    set_options(curl, t, error);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, out_http);
    curl_easy_cleanup(curl);
    if (error[0] == '\0') snprintf(error, CURL_ERROR_SIZE, "%s", curl_easy_strerror(code));
    return code;
}

static bool is_broken_off(CURLcode code) {
    return code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING ||
           code == CURLE_OPERATION_TIMEDOUT;
}

static status give_up(const transfer *t, CURLcode code, long http, const char *error) {
    if (code == CURLE_OUT_OF_MEMORY) return fail(ERR_NOMEM, "%s: out of memory", t->url);
    if (http >= 400)
        return fail(ERR_IO, "%s cannot be fetched: the server answered %ld", t->url, http);
    return fail(ERR_IO, "%s cannot be fetched: %s%s", t->url, error,
                t->at > 0 ? "; run the same command again to resume" : "");
}

/* The server cannot resume.  It also says so when the partial file is already complete; the
 * checksum tells the two cases apart. */
static status start_over(transfer *t, bool *out_is_complete) {
    char hex[MD5_CHARS + 1] = "";
    if (t->md5 != NULL) TRY(sum_of(t->fd, t->part, hex));
    *out_is_complete = t->md5 != NULL && strcmp(hex, t->md5) == 0;
    if (*out_is_complete) return OK;
    log_info("%s cannot be resumed; starting over", t->url);
    if (ftruncate(t->fd, 0) != 0) return fail_errno("%s cannot be emptied", t->part);
    t->at = 0;
    return OK;
}

static status fetch_in_attempts(transfer *t) {
    for (int n = 1;; n++) {
        long http;
        char error[CURL_ERROR_SIZE];
        CURLcode code = attempt(t, &http, error);
        /* curl treats 416 as success: the partial file is as long as the file, or longer. */
        bool is_complete = code == CURLE_OK && http != HTTP_BAD_RANGE;
        bool is_refused = code == CURLE_RANGE_ERROR || http == HTTP_BAD_RANGE;
        if (is_complete) return OK;
        if (t->write_status != OK) return t->write_status;
        if (is_refused && t->start > 0 && n < MAX_ATTEMPTS) {
            TRY(start_over(t, &is_complete));
            if (is_complete) return OK;
        } else if (is_broken_off(code) && t->at > t->start && n < MAX_ATTEMPTS) {
            log_info("%s: %s; resuming", t->url, error);
        } else {
            return give_up(t, code, http, error);
        }
    }
}

static void init_curl(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static status fetch(transfer *t) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *slash = strrchr(t->part, '/');
    pthread_once(&once, init_curl);
    log_info("fetching %s", t->url);
    progress_begin(&t->bar, slash != NULL ? slash + 1 : t->part, "B", 0);
    t->bar.start_done = t->at;
    status st = fetch_in_attempts(t);
    progress_end(&t->bar);
    /* An empty part helps nobody. */
    if (st != OK && t->at == 0) unlink(t->part);
    return st;
}

#else

static status fetch(transfer *t) {
    if (t->at == 0) unlink(t->part);
    return fail(ERR_UNSUPPORTED,
                "this build cannot download: install libcurl4-openssl-dev and build again, or "
                "fetch %s by hand and name the file with --input",
                t->url);
}

#endif
