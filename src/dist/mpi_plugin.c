/* The MPI plugin (mpi_plugin.h): the only file that knows MPI, compiled by mpicc alone.
 *
 * Messages go from point to point, in pieces below 2^31 bytes: MPI 3.1 counts in ints.  Memory is
 * always the host's: an MPI without CUDA support would crash on a GPU's. */
#include "dist/mpi_plugin.h"

#include <mpi.h>
#include <sched.h>

enum { PIECE_BYTES = 1 << 30, TAG = 7, MAX_RANKS = 1024, N_SPINS = 256, ENDED = 2 };

static int n_ranks, own_rank;
static MPI_Request requests[2 * MAX_RANKS];
static int n_requests;
static char library_text[MPI_MAX_LIBRARY_VERSION_STRING];

static int (*has_ended)(void *ctx);
static void *ended_ctx;

static void set_ended(int (*ended)(void *ctx), void *ctx) {
    has_ended = ended;
    ended_ctx = ctx;
}

static int failed(int code, char *text) {
    char reason[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS) return 0;
    MPI_Error_string(code, reason, &n);
    snprintf(text, MPI_PLUGIN_TEXT_BYTES, "MPI: %.240s", reason);
    return 1;
}

static int ask_local(int *local_rank, int *local_size, char *text) {
    MPI_Comm local;
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    if (failed(code, text)) return 1;
    MPI_Comm_rank(local, local_rank);
    MPI_Comm_size(local, local_size);
    MPI_Comm_free(&local);
    return 0;
}

static int begin(int *rank, int *size, int *local_rank, int *local_size, char *text) {
    int provided;
    if (failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), text)) return 1;
    if (provided < MPI_THREAD_FUNNELED) {
        snprintf(text, MPI_PLUGIN_TEXT_BYTES, "MPI: this library allows no threads besides it");
        return 1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    if (n_ranks > MAX_RANKS) {
        snprintf(text, MPI_PLUGIN_TEXT_BYTES, "%d ranks; at most %d can work together", n_ranks,
                 MAX_RANKS);
        return 1;
    }
    *rank = own_rank;
    *size = n_ranks;
    return ask_local(local_rank, local_size, text);
}

/* Piece number `round` of a message, if it has one. */
static int enqueue(void *memory, int64_t n, int rank, int64_t round, int is_receive, char *text) {
    int64_t done = round * PIECE_BYTES;
    if (done >= n) return 0;
    char *at = (char *)memory + done;
    int count = (int)(n - done < PIECE_BYTES ? n - done : PIECE_BYTES);
    MPI_Request *r = &requests[n_requests++];
    if (is_receive)
        return failed(MPI_Irecv(at, count, MPI_BYTE, rank, TAG, MPI_COMM_WORLD, r), text);
    return failed(MPI_Isend(at, count, MPI_BYTE, rank, TAG, MPI_COMM_WORLD, r), text);
}

/* MPI_Waitall would wait for ever for a rank that is stopped. */
static int wait_all(int n, char *text) {
    for (int spins = 0;; spins++) {
        int is_done = 0;
        if (failed(MPI_Testall(n, requests, &is_done, MPI_STATUSES_IGNORE), text)) return 1;
        if (is_done) return 0;
        if (spins % N_SPINS != N_SPINS - 1) continue;
        if (has_ended != NULL && has_ended(ended_ctx)) return ENDED;
        sched_yield();
    }
}

/* Both sides of a message have the same pieces in the same order, so rounds need no agreement. */
static int exchange(const void *const *from, const int64_t *n_from, void *const *to,
                    const int64_t *n_to, char *text) {
    for (int64_t round = 0;; round++) {
        n_requests = 0;
        for (int i = 1; i < n_ranks; i++) {
            int r = (own_rank + n_ranks - i) % n_ranks;
            if (enqueue(to[r], n_to[r], r, round, 1, text)) return 1;
        }
        for (int i = 1; i < n_ranks; i++) {
            int r = (own_rank + i) % n_ranks;
            if (enqueue((void *)from[r], n_from[r], r, round, 0, text)) return 1;
        }
        if (n_requests == 0) return 0;
        int code = wait_all(n_requests, text);
        if (code != 0) return code;
    }
}

static int barrier(char *text) {
    if (failed(MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]), text)) return 1;
    return wait_all(1, text);
}

static void end(void) {
    MPI_Finalize();
}

static const char *library(void) {
    int n;
    if (library_text[0] == '\0' && MPI_Get_library_version(library_text, &n) != MPI_SUCCESS)
        snprintf(library_text, sizeof library_text, "unknown");
    library_text[strcspn(library_text, ",\n")] = '\0';
    return library_text;
}

extern const mpi_plugin hstu_mpi_plugin;
const mpi_plugin hstu_mpi_plugin = {.version = MPI_PLUGIN_VERSION,
                                    .begin = begin,
                                    .exchange = exchange,
                                    .barrier = barrier,
                                    .set_ended = set_ended,
                                    .end = end,
                                    .library = library};
