#!/bin/bash
# Installs the build into a folder of its own, uses what is there as a user and a packager would, and
# uninstalls it.  Run by ./run test, from the repository's root:  tests/install.sh [MAKE OPTIONS]
set -eu
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
fail() { echo "install: $*" >&2; exit 1; }
root=$PWD
make -s install PREFIX="$to/a place" "$@" >"$to/log"
cd "$to"
place="$to/a place" hstu="$to/a place/bin/hstu"

"$hstu" --version | grep -q '^hstu [0-9]' || fail "the program does not start"
# A config is found from anywhere.
"$hstu" train --gin-config-file configs/demo.gin --print-config 2>err | grep -q '"' || fail "configs/demo.gin is not found"
grep -q 'share/hstu/configs/demo.gin' err || fail "it does not say which config it takes"

# Every command has a page that the formatter does not complain about.
n=0
for page in "$place"/share/man/man1/*.1; do
    n=$((n + 1))
    if command -v groff >/dev/null; then
        groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null | grep . && fail "$page: the formatter complains"
    fi
done
[ $n -ge 15 ] || fail "only $n man pages"
[ -e "$place/share/man/man1/hstu-bench-attention.1" ] || fail "no page of bench attention"

# Completion, as bash runs it.
completes() {
    bash -c 'compopt() { :; }; . "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hstu; echo "${COMPREPLY[@]}"' \
        - "$place/share/bash-completion/completions/hstu" "$@"
}
[ "$(completes hstu tra)" = train ] || fail "bash completes 'tra' to '$(completes hstu tra)'"
[ "$(completes hstu train --gin-)" = --gin-config-file ] || fail "bash does not complete options"
[ "$(completes hstu bench att)" = attention ] || fail "bash does not complete benches"
[ "$(completes hstu bench attention --any)" = --any-card ] || fail "bash does not complete options of benches"
[ "$(completes hstu train --device cp)" = cpu ] || fail "bash does not complete devices"
[ -z "$(completes hstu train --data tra)" ] || fail "bash offers commands for a file"
if command -v zsh >/dev/null; then zsh -n "$place/share/zsh/site-functions/_hstu" || fail "zsh cannot read its file"; fi
if command -v fish >/dev/null; then fish -n "$place/share/fish/vendor_completions.d/hstu.fish" || fail "fish cannot read its file"; fi

# Another program builds against the shared library, which shows nothing but hstu_*.
if command -v nm >/dev/null; then
    nm -D --defined-only "$place/lib/libhstu.so" | awk '{print $NF}' | grep -v '^hstu_' && fail "libhstu.so shows other names"
fi
"$hstu" synth --out data --users 20 --items 300 >/dev/null 2>&1 || fail "synth"
${CC:-cc} -I"$place/include" "$root/examples/read_data.c" -L"$place/lib" -lhstu -o read_data
LD_LIBRARY_PATH="$place/lib" ./read_data data | grep -q '^20 users' || fail "the example does not run"
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    HSTU_LIBRARY="$place/lib/libhstu.so" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 \
        python3 "$root/tests/python/check.py" "$hstu" python-run >python.log 2>&1 || fail "Python: $(tail -3 python.log)"
fi
if command -v pkg-config >/dev/null; then
    [ "$(PKG_CONFIG_PATH="$place/lib/pkgconfig" pkg-config --modversion hstu)" = "$("$hstu" --version | cut -d' ' -f2)" ] ||
        fail "pkg-config and the program disagree"
fi

cd "$root"
touch "$place/share/hstu/mine"
make -s uninstall PREFIX="$place" "$@"
left=$(cd "$place" && find . -type f -o -type l)
[ "$left" = ./share/hstu/mine ] || fail "uninstall left: $left"
make -s uninstall PREFIX="$place" "$@" 2>/dev/null && fail "nothing is installed, and uninstall does not say so"
echo "installed, used, uninstalled"
