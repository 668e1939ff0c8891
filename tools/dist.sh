#!/bin/bash
# make dist: one program file for each TARGET (default: x86_64 aarch64), which runs on every Linux with glibc 2.28 or newer, in
# build/dist, with SHA256SUMS.  The compiler is zig of Python's package index; SQLite, libmicrohttpd, zlib, zstd and snappy are
# built from Debian's sources, with its patches, and linked in.  What the program can do without is left out: libcurl
# ('hstu prep --download'), libarchive (.zip and .tar.gz data sets), CUDA.  MPI and XGBoost are found when it runs.
# Nothing in the files tells folder or time; HSTU_TEST_ALL=1 tests/dist.sh compares two builds.
# WITH_LIBRARY=1: libhstu.so, too, for `make wheel`, in build/dist/TARGET; WITH_CUDA=13: both with CUDA 13, in
# build/dist/TARGET-cuda, for `make wheel-cuda`.  Its kernels are compiled by the nvcc and g++ that are here.
# usage: tools/dist.sh VERSION [TARGET...]
set -eu
cd "$(dirname "$0")/.."
version=$1
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
root=$PWD dist=$PWD/build/dist
sources=$dist/sources
mkdir -p "$sources"
cannot() { echo "make dist: $*" >&2; exit 77; }

python=${PYTHON:-$root/build/python/bin/python}
zig_version=0.17.0
[ "$("$python" -m ziglang version 2>/dev/null)" = $zig_version ] || {
    [ -x "$python" ] || python3 -m venv build/python
    timeout 300 "$python" -m pip install -q --only-binary :all: --timeout 15 --retries 1 ziglang==$zig_version
} || cannot "zig $zig_version cannot be had from Python's package index"

# source_of NAME: the folder of a source package of Debian 12, taken with lists of our own, so that it needs no root.
source_of() {
    local apt=(apt-get -q -o Dir::Etc::sourcelist="$sources/list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$sources/lists" \
        -o Dir::Cache="$sources/cache" -o APT::Sandbox::User=root)
    if [ -z "$(ls "$sources"/"$1"_*.dsc 2>/dev/null)" ]; then
        echo "deb-src ${DEBIAN:-http://deb.debian.org/debian} bookworm main" >"$sources/list"
        mkdir -p "$sources/lists/partial" "$sources/cache/archives/partial"
        [ -n "$(ls "$sources"/lists/*Sources* 2>/dev/null)" ] || timeout 60 "${apt[@]}" update >&2 || return 1
        (cd "$sources" && timeout 120 "${apt[@]}" source --download-only "$1") >&2 || return 1
    fi
    rm -rf "$2" && mkdir -p "$2" && tar -xf "$(ls "$sources/$1"_*.orig.tar.* | grep -v asc | head -n 1)" -C "$2" --strip-components 1
    tar -xf "$(ls "$sources/$1"_*.debian.tar.*)" -C "$2" && for patch in $(grep -v lempar "$2/debian/patches/series"); do
        patch -s -p1 -d "$2" <"$2/debian/patches/$patch" >&2 || return 1 # lempar's is for a packaged lemon
    done
}

# SQLite's one file is made by its own tools once, for all targets.
amalgamate() {
    [ "$sources/sqlite/sqlite3.c" -nt "$root/tools/dist.sh" ] || { command -v tclsh >/dev/null && source_of sqlite3 "$sources/sqlite" &&
        (cd "$sources/sqlite" && ./configure --disable-tcl && make sqlite3.c) >"$sources/sqlite.log" 2>&1; }
}

# The libraries of a target, in $deps.
build_libraries() {
    local cc=$1 deps=$2 flags="-O2 -fPIC -fno-sanitize=undefined -ffile-prefix-map=$dist=."
    local file zlib=$2/zlib zstd=$2/zstd http=$2/microhttpd snappy=$2/snappy
    mkdir -p "$deps/include" "$deps/lib"
    amalgamate || cannot "SQLite's source cannot be had (it needs apt-get and tclsh)"
    source_of zlib "$zlib" && source_of libzstd "$zstd" && source_of libmicrohttpd "$http" && source_of snappy "$snappy" ||
        cannot "Debian's sources cannot be had"
    cp "$sources/sqlite/sqlite3.h" "$zlib"/z*.h "$zstd"/lib/zstd*.h "$http/src/include/microhttpd.h" "$snappy"/snappy*.h "$deps/include"
    (cd "$deps" && $cc $flags -DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -c "$sources/sqlite/sqlite3.c")
    for file in "$zlib"/{adler32,compress,crc32,deflate,inffast,inflate,inftrees,trees,uncompr,zutil}.c "$zstd"/lib/{common,decompress}/*.c; do
        (cd "$deps" && $cc $flags -DZSTD_DISABLE_ASM=1 -c "$file")
    done
    sed -E 's/\$\{HAVE_SYS_UIO_H_01\}/1/; s/\$\{PROJECT_VERSION_[A-Z]*\}/1/' "$snappy/snappy-stubs-public.h.in" >"$deps/include/snappy-stubs-public.h"
    # snappy is C++, of which its C functions need only this; a C++ library would be built for minutes.  Weak: CUDA brings one.
    cat >"$deps/new.c" <<'END'
#include <pthread.h>
#include <stdlib.h>
#define WEAK __attribute__((weak))
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
WEAK int __cxa_guard_acquire(char *is_done) {
    pthread_mutex_lock(&lock);
    if (!*is_done) return 1;
    pthread_mutex_unlock(&lock);
    return 0;
}
WEAK void __cxa_guard_release(char *is_done) {
    __atomic_store_n(is_done, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}
WEAK void *_Znwm(size_t n) {
    void *p = malloc(n);
    if (p == NULL) abort();
    return p;
}
WEAK void _ZdlPv(void *p) { free(p); }
WEAK void _ZdlPvm(void *p, size_t n) { (void)n; free(p); }
WEAK void __cxa_pure_virtual(void) { abort(); }
END
    (cd "$deps" && $cc $flags -c new.c)
    for file in "$snappy"/snappy{,-c,-sinksource,-stubs-internal}.cc; do
        (cd "$deps" && ${cc/ cc / c++ } $flags -std=c++17 -fno-exceptions -fno-rtti -ffunction-sections -fdata-sections -DNDEBUG \
            -DHAVE_BUILTIN_CTZ=1 -DHAVE_BUILTIN_EXPECT=1 -Iinclude -c "$file")
    done
    (cd "$http" && CC=$cc CFLAGS=$flags ./configure --host="$3" --disable-shared --disable-https --disable-dauth --disable-bauth \
        --disable-postprocessor --disable-doc --disable-examples --disable-curl --disable-nls && make -j"$(nproc)" -C src/microhttpd libmicrohttpd.la) \
        >"$deps/microhttpd.log" 2>&1
    cp "$http/src/microhttpd/.libs/libmicrohttpd.a" "$deps/lib"
    for file in sqlite3 z zstd snappy; do # all objects are in one archive, which each name finds
        "$python" -m ziglang ar rcsD "$deps/lib/lib$file.a" "$deps"/*.o
    done
}

for target in "$@"; do
    cc="$python -m ziglang cc -target $target-linux-gnu.2.28"
    deps=$dist/$target/deps out=$dist/hstu-$version-linux-$target place=build/dist/$target
    [ "$deps/done" -nt "$root/tools/dist.sh" ] || { rm -rf "$deps" && build_libraries "$cc" "$deps" "$target-linux-gnu" && touch "$deps/done"; }
    # zig's runtime library does not know which instructions the machine has; gcc's does.
    link="-L$deps/lib -s -Wl,--build-id=none -Wl,--gc-sections $([ "$target" != x86_64 ] || gcc -print-libgcc-file-name)"
    options=(MPICC= ARCH= CC="$cc" CFLAGS="-DHSTU_DIST -fno-sanitize=undefined -ffile-prefix-map=$root=. -I$deps/include")
    if [ -n "${WITH_CUDA:-}" ]; then # NVIDIA's libraries are looked for beside the package, not in folders of this machine
        place=$place-cuda
        for folder in ../nvidia/cu"$WITH_CUDA" ../../nvidia/cu"$WITH_CUDA" ../nvidia/nccl ../../nvidia/nccl; do
            link="$link -Wl,-rpath,\\\$\$ORIGIN/$folder/lib"
        done
        options+=(CUDA=1 LDFLAGS="$link" REUSE="build/dist/$target")
        libs=$(make -s --no-print-directory print-libs "${options[@]}" | tr ' ' '\n' | grep -v rpath | tr '\n' ' ')
        [[ $libs == *cudart* ]] || cannot "nvcc or its host compiler is missing"
        options+=(LIBS="$libs")
    else
        options+=(CUDA=0 LDFLAGS="$link")
    fi
    [ "$place/hstu" -nt "$deps/done" ] || rm -f "$place"/{hstu,libhstu.so} # make does not know that libraries are new
    make "${options[@]}" B="$place" "$place/hstu" ${WITH_LIBRARY:+"$place/libhstu.so"}
    [ -n "${WITH_CUDA:-}" ] || { cp "$place/hstu" "$out" && echo "$out"; }
done
[ -n "${WITH_CUDA:-}" ] || (cd "$dist" && sha256sum hstu-"$version"-linux-* >SHA256SUMS && cat SHA256SUMS)
