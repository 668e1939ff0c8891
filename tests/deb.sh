#!/bin/bash
# `make deb`: lintian has nothing to say, and the packages install, work and leave again in a fresh root of Debian, which
# mmdebstrap makes.  It takes minutes, so ./run test does it with --all.  Ends with 77 where a tool is missing.
# Run from the repository's root:  tests/deb.sh
set -eu
fail() { echo "deb: $*" >&2; exit 1; }
for tool in dpkg-buildpackage dh lintian mmdebstrap; do
    command -v $tool >/dev/null || { echo "$tool is not here (packages dpkg-dev debhelper lintian mmdebstrap)"; exit 77; }
done
[ "$(id -u)" = 0 ] && grep -q '^VERSION_ID="12"' /etc/os-release || { echo "a root of the packages needs root and Debian 12"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
make -s deb >"$work/log" 2>&1 || { tail -n 20 "$work/log"; fail "make deb"; }
grep -q 'lintian: nothing to say' "$work/log" || fail "lintian did not run"
timeout 300 mmdebstrap --variant=apt --skip=cleanup/apt/lists --quiet bookworm "$work/root" "${DEBIAN:-http://deb.debian.org/debian}" >"$work/log" 2>&1 ||
    { tail -n 2 "$work/log"; exit 77; }
cp build/deb/*.deb "$work/root/tmp" && rm "$work"/root/tmp/*dbgsym* && cp /etc/resolv.conf "$work/root/etc"
inside() {
    unshare --mount sh -c 'mount --bind /proc "$0/proc" && exec chroot "$0" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' \
        "$work/root" "$@" >"$work/log" 2>&1
}
before=$(find "$work/root/usr" | grep -c hstu || true)
inside sh -c 'apt-get install -y -q --no-install-recommends /tmp/*.deb' || { tail -n 20 "$work/log"; fail "apt-get install"; }
inside sh -c 'cd /root && hstu synth --out data --users 100 --items 50 --mean-len 10 --seed 1 &&
    hstu train --gin-config-file configs/demo.gin --data data --out run --epochs 1 --device cpu && hstu recommend run --data data --user 7' ||
    { cat "$work/log"; fail "the program does not work"; }
inside sh -c 'apt-get purge -y -q hstu libhstu0 libhstu-dev' || { cat "$work/log"; fail "apt-get purge"; }
[ "$(find "$work/root/usr" | grep -c hstu || true)" = "$before" ] || { find "$work/root/usr" | grep hstu; fail "purge leaves files"; }
echo "deb: lintian, install, train, purge in a fresh root of Debian 12"
