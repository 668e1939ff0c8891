/* cuBLASLt, found when the first GPU is opened: linked, it would cost a tenth of a second at every
 * start of the program, even of one that needs no GPU. */
#ifndef HSTU_CUDA_GEMM_CUBLAS_LT_CUH
#define HSTU_CUDA_GEMM_CUBLAS_LT_CUH

#include <cublasLt.h>

#include "base/status.h"

#define CUBLAS_LT_CALLS(CALL)                                                                      \
    CALL(Create)                                                                                   \
    CALL(Destroy)                                                                                  \
    CALL(GetStatusString)                                                                          \
    CALL(Matmul)                                                                                   \
    CALL(MatmulAlgoCheck)                                                                          \
    CALL(MatmulAlgoGetHeuristic)                                                                   \
    CALL(MatmulDescInit_internal)                                                                  \
    CALL(MatmulDescSetAttribute)                                                                   \
    CALL(MatmulPreferenceInit_internal)                                                            \
    CALL(MatmulPreferenceSetAttribute)                                                             \
    CALL(MatrixLayoutInit_internal)

/* lt.Matmul is cublasLtMatmul, and so on; valid after cublas_lt_open. */
typedef struct cublas_lt {
#define CALL(name) decltype(&cublasLt##name) name;
    CUBLAS_LT_CALLS(CALL)
#undef CALL
} cublas_lt;
extern cublas_lt lt;

/* May be called by several threads.  The library stays open to the end. */
status cublas_lt_open(void);

#endif
