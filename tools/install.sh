#!/bin/sh
# What `make install` and `make uninstall` do.
#   tools/install.sh install BUILD TO PREFIX VERSION ABI LIBS   TO is PREFIX, or PREFIX within a package's folder
#   tools/install.sh uninstall BUILD TO
# Everything that is installed is listed in TO/share/hstu/installed, and nothing else is removed.
set -eu
umask 022
what=$1 build=$2 to=$3
list=$to/share/hstu/installed

remove() {
    [ -f "$list" ] || { echo "uninstall: $list is not there: nothing was installed under $to" >&2; exit 1; }
    while IFS= read -r file; do
        # Only what an installation can have written: no absolute names, no way up.
        case $file in
        '' | /* | ../* | */../* | */..) echo "uninstall: $list names '$file', which is left alone" >&2 ;;
        *) rm -f "$to/$file" ;;
        esac
    done <"$list"
    rm -f "$list"
    rmdir "$to/share/hstu/docs/"* "$to/share/hstu/docs" "$to/share/hstu/configs/"* "$to/share/hstu/configs" "$to/share/hstu/bench/results/peers" "$to/share/hstu/bench/results" \
        "$to/share/hstu/bench" "$to/share/hstu" 2>/dev/null || true
}

# put MODE FILE NAME: FILE goes to TO/NAME.
put() {
    install -Dm"$1" "$2" "$to/$3"
    echo "$3" >>"$new"
}

# shared_link NAME TARGET
shared_link() {
    ln -sf "$2" "$to/$1"
    echo "$1" >>"$new"
}

pages() {
    "$build/hstu" help --man $1 >"$work/page"
    put 644 "$work/page" "share/man/man1/hstu$(printf '%s' "${1:+-$1}" | tr ' ' '-').1"
}

completion() {
    "$build/hstu" help --completion "$1" >"$work/page"
    put 644 "$work/page" "$2"
}

put_all() {
    prefix=$1 version=$2 abi=$3 libs=$4
    put 755 "$build/hstu" bin/hstu
    put 644 libhstu.a lib/libhstu.a
    put 755 "$build/libhstu.so" "lib/libhstu.so.$version"
    shared_link "lib/libhstu.so.$abi" "libhstu.so.$version"
    shared_link lib/libhstu.so "libhstu.so.$abi"
    put 644 include/hstu.h include/hstu.h
    [ ! -e "$build/hstu-mpi.so" ] || put 755 "$build/hstu-mpi.so" lib/hstu/hstu-mpi.so
    put 755 "$build/hstu-inject.so" lib/hstu/hstu-inject.so
    printf 'prefix=%s\nName: hstu\nDescription: generative recommenders in C and CUDA\nVersion: %s\n' "$prefix" "$version" >"$work/pc"
    printf 'Cflags: -I${prefix}/include\nLibs: -L${prefix}/lib -lhstu\nLibs.private: %s\n' "$libs" >>"$work/pc"
    put 644 "$work/pc" lib/pkgconfig/hstu.pc
    find configs docs bench/results/peers -type f | sort | while IFS= read -r file; do put 644 "$file" "share/hstu/$file"; done
    pages ''
    # The commands are the words of the first column that `hstu --help` indents.
    for command in $("$build/hstu" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do pages "$command"; done
    for bench in $("$build/hstu" bench --help | sed -n 's/^  \([a-z]*\)  *.*/\1/p'); do pages "bench $bench"; done
    completion bash share/bash-completion/completions/hstu
    completion zsh share/zsh/site-functions/_hstu
    completion fish share/fish/vendor_completions.d/hstu.fish
}

case $what in
install)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    new=$work/list
    : >"$new"
    put_all "$4" "$5" "$6" "$7"
    install -Dm644 "$new" "$list"
    echo "installed: $(wc -l <"$list") files under $to; 'hstu doctor' says what this machine has"
    ;;
uninstall) remove ;;
*)
    echo "usage: tools/install.sh install|uninstall ... (see make install)" >&2
    exit 2
    ;;
esac
