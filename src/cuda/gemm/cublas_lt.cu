#include "cuda/gemm/cublas_lt.cuh"

#include <dlfcn.h>
#include <pthread.h>

#include "base/machine.h"

#define LT_TEXT_OF(x) #x
#define LT_TEXT(x)    LT_TEXT_OF(x)
#define LT_FILE       "libcublasLt.so." LT_TEXT(CUBLAS_VER_MAJOR)

cublas_lt lt;

static status look_up_lt(void *library) {
#define CALL(name)                                                                                 \
    *(void **)&lt.name = dlsym(library, "cublasLt" #name);                                         \
    if (lt.name == NULL)                                                                           \
        return fail(ERR_UNSUPPORTED, LT_FILE " has no cublasLt" #name ": install that of CUDA %d", \
                    CUBLAS_VER_MAJOR);
    CUBLAS_LT_CALLS(CALL)
#undef CALL
    return OK;
}

static status find_lt(void) {
    void *library = library_find(LT_FILE, "nvidia/*/lib/" LT_FILE);
    if (library == NULL)
        return fail(ERR_UNSUPPORTED,
                    "products on a GPU need cuBLASLt, and %s was not found: install NVIDIA's CUDA "
                    "toolkit or 'pip install nvidia-cublas', or add its folder to LD_LIBRARY_PATH",
                    LT_FILE);
    status st = look_up_lt(library);
    if (st != OK) dlclose(library);
    return st;
}

status cublas_lt_open(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_open;
    pthread_mutex_lock(&lock);
    status st = is_open ? OK : find_lt();
    is_open = st == OK;
    pthread_mutex_unlock(&lock);
    return st;
}
