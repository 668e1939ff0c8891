/* Answers that go on: what a writer adds waits in memory until libmicrohttpd asks for it. */
#include "serve/http/http.h"

#ifdef HSTU_HAS_MICROHTTPD
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "serve/http/http_int.h"

enum { STREAM_BYTES = 256 << 10 }; /* unread, at most */

static void stream_free(http_stream *s) {
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->waiting);
    mem_free(s);
}

http_stream *http_respond_stream(http_exchange *x, const char *type) {
    http_stream *s;
    buf none;
    buf_init(&none);
    if (MEM_NEW(&s, 1) != OK) {
        http_respond(x, 503, "application/json", &none);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->connection = x->connection;
    s->fd = x->from->fd;
    x->stream = s;
    x->code = 200;
    x->type = type;
    http_finish_answer(x);
    return s;
}

/* Waits for more where there is none: the connection sleeps until a write resumes it. */
ssize_t http_stream_read(void *context, uint64_t position, char *out, size_t max) {
    http_stream *s = context;
    (void)position;
    pthread_mutex_lock(&s->lock);
    size_t n = s->waiting.n_bytes - s->taken;
    if (n > max) n = max;
    if (n > 0) memcpy(out, s->waiting.data + s->taken, n);
    s->taken += n;
    if (s->taken == s->waiting.n_bytes) {
        buf_clear(&s->waiting);
        s->taken = 0;
    }
    bool is_end = n == 0 && s->is_closed;
    if (n == 0 && !is_end) {
        s->is_suspended = true;
        MHD_suspend_connection(s->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return is_end ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

void http_stream_leave(void *context) {
    http_stream *s = context;
    pthread_mutex_lock(&s->lock);
    bool is_last = s->is_closed;
    s->is_gone = true;
    pthread_mutex_unlock(&s->lock);
    if (is_last) stream_free(s);
}

static void stream_resume(http_stream *s) {
    if (s->is_suspended) MHD_resume_connection(s->connection);
    s->is_suspended = false;
}

bool http_stream_write(http_stream *s, const char *text, size_t n) {
    pthread_mutex_lock(&s->lock);
    bool is_good = !s->is_gone && s->waiting.n_bytes - s->taken + n <= STREAM_BYTES &&
                   buf_append(&s->waiting, text, n) == OK;
    /* A reader that is too slow would hold its connection and what waits for as long as it likes.
     * The library closes the socket after it has left the stream. */
    if (!is_good && !s->is_gone) shutdown(s->fd, SHUT_RDWR);
    if (is_good) stream_resume(s);
    pthread_mutex_unlock(&s->lock);
    return is_good;
}

void http_stream_close(http_stream *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    bool is_last = s->is_gone;
    s->is_closed = true;
    if (!is_last) stream_resume(s);
    pthread_mutex_unlock(&s->lock);
    if (is_last) stream_free(s);
}
#endif
