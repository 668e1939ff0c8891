/* Everything the environment may say: the only place that calls getenv.
 *
 * HSTU_LOG      debug | info | warn | quiet
 * HSTU_THREADS  threads of the CPU backend and of prep; default: the cores this process may use
 * NO_COLOR      any value: no colours
 * CC            the C compiler of generated kernels
 * HSTU_XGBOOST  the path of libxgboost.so, where it is not found by itself
 * HSTU_CUPTI    the path of libcupti.so, where it is not found by itself
 * HSTU_CUDA_SM  a compute capability: run the kernels of an older card (80), to compare them
 * HSTU_PROFILE_RECORDS, HSTU_PROFILE_SIGNAL, HSTU_PROFILE_UNIFIED
 *               set by 'hstu profile' for the programs it starts
 * XDG_CACHE_HOME, HOME  where compiled kernels are kept
 * HSTU_NCCL_NODES  1: ranks that share a GPU talk as if each had its own machine (for tests)
 * HSTU_STALL_SECONDS  the job ends when all ranks have only waited for this long
 * HSTU_NCCL_OVERLAP  0: gradients are summed after the backward pass (for comparison)
 * TZDIR         the folder of the system's time zones, where it is another one
 * VIRTUAL_ENV, CONDA_PREFIX, HOME  where Python's packages may hold NCCL
 * CUDA_VISIBLE_DEVICES  tells ranks on one GPU from ranks on several */
#pragma once

#include "base/status.h"

/* Applies HSTU_LOG to the log; ERR_USAGE if its value is not a level. */
status env_apply_log_level(void);

/* The cores this process may run on, 1..256; not more than the quota of its container. */
int env_cores(void);

/* The number of threads to use, 1..256: HSTU_THREADS, or env_cores.
 * ERR_USAGE if the value is not a number in that range. */
status env_threads(int *out);

/* CC, or NULL where it is not set or empty. */
const char *env_compiler(void);

/* HSTU_XGBOOST, or NULL where it is not set or empty. */
const char *env_xgboost(void);

/* HSTU_CUPTI, or NULL where it is not set or empty. */
const char *env_cupti(void);

/* HSTU_CUDA_SM: the compute capability whose kernels run, such as 80, on a card that has a higher
 * one; INT_MAX without it.  ERR_USAGE if it is none. */
status env_cuda_sm(int *sm);

/* What the library that records in another program is told. */
typedef struct injection {
    const char *folder;  /* for its records; NULL: it records nothing */
    const char *step;    /* the NVTX range that is a step (nvtx.h); "": there are no steps */
    int64_t schedule[4]; /* of steps: wait, warmup, active, repeat */
    int signal;          /* switches recording on and off; 0: none */
    int has_unified, has_counters; /* unified memory too; hardware counters instead */
} injection;

/* For a program that is to be profiled, before it is started: CUDA loads this library. */
status env_set_injection(const char *library, const injection *i);

/* The same, in that program. */
injection env_injection(void);

/* The folder of the system's time zones. */
const char *env_zone_folder(void);

/* From now on local times of the C library are those of this file of a zone. */
status env_set_zone(const char *file);

/* The folders of PATH, separated by colons, or NULL. */
const char *env_path(void);

/* Writes the folder of the user's cache, $XDG_CACHE_HOME/hstu/NAME or ~/.cache/hstu/NAME; ERR_IO
 * where neither variable is an absolute path. */
status env_cache_folder(char *text, size_t n, const char *name);

/* The same for one of n processes that share this machine: the cores are divided among them;
 * HSTU_THREADS is for each. */
status env_threads_of(int n_processes, int *out);

/* The program that started this process as one of several ranks, by the variables it sets: MPI's
 * mpirun, or srun with PMIx; torchrun, or what sets the same variables. */
typedef enum { LAUNCHER_NONE, LAUNCHER_MPI, LAUNCHER_TORCHRUN } env_launcher;
env_launcher env_launched_by(void);

/* The folder of the Python environment that is active, or NULL; HOME; the GPUs that CUDA shows. */
const char *env_python_folder(void);
const char *env_home(void);

/* HSTU_JOB_SECRET: what ranks that find each other by TCP must all know; "": nothing. */
const char *env_job_secret(void);
const char *env_visible_gpus(void);

/* Tells NCCL that this rank shares its GPU with others, before it starts: by its own setting, or
 * by the name of a machine of its own for each rank.  Its kernels wait on the GPU for those of the
 * other ranks, a multiprocessor for each block: all n ranks of a GPU together must leave some for
 * the rank they wait for.  What the user has set stays. */
void env_share_gpu(int rank, int n, bool has_setting);

/* HSTU_STALL_SECONDS, 0 (never) to 86400, or `otherwise` where it is not set. */
status env_stall_seconds(int otherwise, int *out);

/* Whether NCCL sums gradients during the backward pass: unless HSTU_NCCL_OVERLAP is 0. */
bool env_sums_early(void);

/* What torchrun tells a rank: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE (-1: not set),
 * MASTER_ADDR, MASTER_PORT (29500 where it is not set; the next one where torchrun itself listens
 * there, TORCHELASTIC_USE_AGENT_STORE).  ERR_USAGE names the variable that makes no sense. */
typedef struct env_torchrun {
    int rank, size, local_rank, local_size, port;
    const char *address;
} env_torchrun;
status env_read_torchrun(env_torchrun *out);

/* Colours are wanted on this file descriptor: it is a terminal, TERM is not dumb, NO_COLOR unset.
 */
bool env_wants_colour(int fd);

/* Columns of the terminal on this file descriptor (from COLUMNS, or from the terminal itself); 80
 * if it is not a terminal. */
int env_columns(int fd);
