#!/usr/bin/env bash
# ./run setup where dnf installs: a dnf of our own writes down what it is asked for, on a PATH without apt-get and
# without compilers.  Run by hand and by tools/test.sh:  tests/setup_dnf.sh
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
for tool in bash sh env cat grep sed id mktemp rm printf head ldconfig uname dirname; do
    path=$(command -v $tool) && ln -s "$path" "$place/$tool"
done
cat >"$place/dnf" <<'D'
#!/bin/sh
case "$*" in *repolist*) echo "crb  CentOS Stream 9 - CRB" ;; *) echo "$@" >>"$DNF_LOG" ;; esac
D
chmod +x "$place/dnf"
fail() { echo "setup_dnf: $*" >&2; exit 1; }
out=$(cd "$root" && DNF_LOG=$place/log PATH=$place HSTU_INSTALL=1 bash -c '
    title() { :; }; note() { :; }; step() { shift; "$@"; }; bold= plain=
    . tools/setup.sh; setup test' 2>&1) && fail "a dnf that installs nothing is taken for success: $out"
asked=$(head -n 1 "$place/log")
for package in gcc make libarchive-devel libcurl-devel libmicrohttpd-devel sqlite-devel snappy-devel libzstd-devel zlib-devel compiler-rt \
    clang-tools-extra openmpi-devel xz; do
    case " $asked " in *" $package "*) ;; *) fail "dnf was not asked for $package: $asked" ;; esac
done
case "$asked" in *-dev\ * | *libxgboost* | *zlib1g*) fail "dnf was asked for packages of Debian: $asked" ;; esac
case "$asked" in *--enablerepo=crb*install*) ;; *) fail "CRB is not enabled: $asked" ;; esac
case "$out" in *"dnf install -y gcc"*) ;; *) fail "it does not say what to type: $out" ;; esac
echo ok
