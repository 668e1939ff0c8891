#!/bin/bash
# The program file of `make dist` for this machine: it needs nothing but glibc 2.28, trains and serves with a state.  With
# HSTU_TEST_ALL all targets are built, in two folders, and the two must have the same bytes.  Ends with 77 where zig or
# Debian's sources cannot be had.  Run by ./run test, from the repository's root:  tests/dist.sh
set -eu
[ "${HSTU_INSTALL:-1}" != 0 ] || { echo "HSTU_INSTALL=0: nothing is installed"; exit 77; }
version=$(sed -n 's/^#define HSTU_VERSION "\(.*\)"/\1/p' include/hstu.h)
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "dist: $*" >&2; exit 1; }
targets=$(uname -m)
[ -z "${HSTU_TEST_ALL:-}" ] || targets="x86_64 aarch64"
code=0
# shellcheck disable=SC2086
nice tools/dist.sh "$version" $targets >"$work/log" 2>&1 || code=$?
[ $code = 0 ] || { tail -n 5 "$work/log" | cut -c1-300; exit $code; }
program=$PWD/build/dist/hstu-$version-linux-$(uname -m)

needed=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|pthread|rt)\.so|ld-linux)' || true)
[ -z "$needed" ] || fail "it needs $needed"
newest=$(readelf -V "$program" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
[ "$(printf 'GLIBC_2.28\n%s\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || fail "it needs $newest"
(cd build/dist && sha256sum -c --quiet SHA256SUMS) || fail "the checksums are wrong"

if [ -n "${HSTU_TEST_ALL:-}" ]; then
    git ls-files -z | xargs -0 cp --parents -t "$work" 2>/dev/null || true
    mkdir -p "$work/build/dist" && cp -r build/dist/sources "$work/build/dist"
    (cd "$work" && PYTHON=$OLDPWD/build/python/bin/python ZIG_LOCAL_CACHE_DIR=$work/zig tools/dist.sh "$version" $targets) >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log" | cut -c1-300; fail "the second build"; }
    cmp build/dist/SHA256SUMS "$work/build/dist/SHA256SUMS" || fail "two builds differ"
fi
mkdir "$work/use" # beside the second build's sources, of which ./run is one
ln -s "$PWD/configs" "$work/use"
cd "$work/use"
"$program" synth --out data --users 300 --items 200 --mean-len 20 --seed 1 >out 2>&1 || fail "synth"
"$program" doctor >out 2>&1 || fail "doctor"
! grep -E '^ *(apt-get install|install NVIDIA).*then make' out || fail "doctor names packages that cannot help this file"
grep -q 'a build from source has it: apt-get install libarchive-dev, then make' out || fail "doctor says nothing of builds"
"$program" train --gin-config-file configs/demo.gin --data data --out run --epochs 1 --device cpu >out 2>&1 || fail "train"
"$program" serve run --data data --state state --port 0 --device cpu --access-log off >/dev/null 2>ready &
server=$!
for _ in $(seq 500); do grep -qs '^ready: ' ready && break; sleep 0.02; done
url=$(sed -n 's|^ready: \(http://[^ ]*[0-9]\)/.*|\1|p' ready)
curl -sf "$url/v1/recommend" -d '{"user": 7, "events": [12]}' | grep -q '"source":"model"' || { cat ready >&2; fail "it does not serve"; }
kill -TERM $server
wait $server || fail "SIGTERM: $?"
server=''
echo "$(stat -c %s "$program") bytes, $newest"
