#!/bin/sh
# Which libraries this machine has, as compiler flags.  A library counts when a program that uses
# it compiles and links; nothing here needs pkg-config.  CC, CUDA, NVCC, MINIMAL and PROBE_FLAGS (the
# user's CFLAGS and LDFLAGS) come from make; MINIMAL=1 finds no optional library, for
# tests; MINIMAL=cuda none but CUDA, for the wheel.
CC=${CC:-cc}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# links CODE FLAGS...: does this program build?
links() {
    code=$1
    shift
    printf '%s\n' "$code" >"$dir/probe.c"
    $CC -o "$dir/probe" "$dir/probe.c" $PROBE_FLAGS "$@" >/dev/null 2>&1
}

if ! links '#include <stdio.h>
int main(void) { return puts("") == EOF; }'; then
    echo "HSTU_NO_COMPILER"
    exit 0
fi
# Products on ARM with vectors of 256 bits (src/cpu/product_sve.c).
links '#include <arm_sve.h>
#if __ARM_FEATURE_SVE_BITS != 256
#error "no fixed length"
#endif
int main(void) { return svcntw() != 8; }' -march=armv8.2-a+sve -msve-vector-bits=256 && echo "-DHSTU_HAS_SVE"
[ "$MINIMAL" = 1 ] && exit 0
optional_libraries() {
    links '#include <archive.h>
int main(void) { return archive_version_number() == 0; }' -larchive && echo "-DHSTU_HAS_ARCHIVE -larchive"
    links '#include <sqlite3.h>
#if SQLITE_VERSION_NUMBER < 3027000
#error "too old"
#endif
int main(void) { return sqlite3_libversion_number() == 0; }' -lsqlite3 && echo "-DHSTU_HAS_SQLITE -lsqlite3"
    links '#include <curl/curl.h>
int main(void) { return curl_version() == 0; }' -lcurl && echo "-DHSTU_HAS_CURL -lcurl"
    links '#include <microhttpd.h>
static enum MHD_Result no(void) { return MHD_NO; }
int main(void) { return MHD_get_version() == 0 && no(); }' -lmicrohttpd && echo "-DHSTU_HAS_MICROHTTPD -lmicrohttpd"
    # Compression of Parquet columns.
    links '#include <snappy-c.h>
int main(void) { return snappy_max_compressed_length(1) == 0; }' -lsnappy && echo "-DHSTU_HAS_SNAPPY -lsnappy"
    links '#include <zstd.h>
int main(void) { return ZSTD_versionNumber() == 0; }' -lzstd && echo "-DHSTU_HAS_ZSTD -lzstd"
    links '#include <zlib.h>
int main(void) { return zlibVersion() == 0; }' -lz && echo "-DHSTU_HAS_ZLIB -lz"
}
[ "$MINIMAL" = cuda ] || optional_libraries
# nvcc counts if the host compiler it calls, its run-time library and cuBLASLt are there.  cuBLASLt is opened when
# the program first uses a GPU (src/cuda/gemm/matmul.cu), and looked for in the folder found here, too.
if [ "$CUDA" = 1 ] && [ -n "$NVCC" ] && command -v "${NVCC_CCBIN:-g++}" >/dev/null 2>&1; then
    root=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
    cpu=$(uname -m)
    runtime='' blas=''
    for lib in "$root/lib64" "$root/lib" "$root/targets/$cpu-linux/lib" "$root/targets/sbsa-linux/lib" \
        "/usr/lib/$cpu-linux-gnu"; do
        [ -z "$runtime" ] && [ -e "$lib/libcudart_static.a" ] && runtime=$lib
        [ -z "$blas" ] && [ -e "$lib/libcublasLt.so" ] && blas=$lib
    done
    if [ -n "$runtime" ] && [ -n "$blas" ]; then
        has_cuda=1
        for include in "$root/include" "$root/targets/$cpu-linux/include" "$root/targets/sbsa-linux/include"; do
            [ -e "$include/cuda_runtime_api.h" ] && echo "-I$include" && break
        done
        echo "-DHSTU_HAS_CUDA -L$runtime -Wl,-rpath,$blas -lcudart_static -lstdc++ -ldl -lrt"
    fi
fi
# CUPTI counts when its header does (CUDA 12.0 or newer); its library is only looked for when the
# program runs, in the usual places and in the folder found here.
if [ "$has_cuda" = 1 ]; then
    for include in "$root/include" "$root/targets/$cpu-linux/include" "$root/targets/sbsa-linux/include" \
        "$root/extras/CUPTI/include" /usr/include; do
        [ -e "$include/cupti.h" ] || continue
        links '#include <cupti.h>
#if CUPTI_API_VERSION < 19
#error "too old"
#endif
int main(void) { return CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL == 0; }' "-I$include" "-I$root/include" || continue
        [ "$include" = "$root/include" ] || include="$include -I$root/include"
        echo "-DHSTU_HAS_CUPTI -I$include"
        for lib in "$root/lib64" "$root/extras/CUPTI/lib64" "$root/targets/$cpu-linux/lib" \
            "$root/targets/sbsa-linux/lib" "/usr/lib/$cpu-linux-gnu"; do
            [ -e "$lib/libcupti.so" ] || continue
            printf '%s\n' "-DHSTU_CUPTI_DIR=\\\"$lib\\\""
            break
        done
        break
    done
fi
exit 0
