# Packages of Debian 12 for any architecture, unpacked without root and without what this machine has installed.  Sourced by
# tools/image.sh and tests/python.sh.
#
# debian_unpack PLACE ROOT ARCHITECTURE PACKAGE...: from the archive into ROOT; lists and files are kept in PLACE, and PLACE/log
# says why it failed.  What ROOT has is noted in its /var/lib/dpkg/status.d, where scanners of images look.
debian_unpack() {
    local at=$1 root=$2 package
    local apt=(apt-get -q -o Dir::Etc::sourcelist="$at/list" -o Dir::Etc::sourceparts=- -o Dir::State="$at" -o Dir::State::status="$at/status"
        -o Dir::Cache="$at/cache" -o APT::Architecture="$3" -o APT::Architectures::="$3" -o APT::Sandbox::User=root)
    mkdir -p "$at/lists/partial" "$at/cache/archives/partial" "$root/var/lib/dpkg/status.d"
    rm -f "$at"/*.deb
    : >"$at/status"
    printf 'deb %s main\n' "${DEBIAN:-http://deb.debian.org/debian} bookworm" \
        "${DEBIAN_SECURITY:-http://deb.debian.org/debian-security} bookworm-security" >"$at/list"
    (cd "$at" && command -v dpkg-deb && timeout 60 "${apt[@]}" update && timeout 120 "${apt[@]}" download "${@:4}") >"$at/log" 2>&1 || return 1
    for package in "$at"/*.deb; do
        dpkg-deb -x "$package" "$root" && dpkg-deb -f "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$package" Package)" || return 1
    done
}
