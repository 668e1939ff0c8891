#!/usr/bin/env bash
# make deb: Debian packages of this tree in build/deb (hstu, libhstu0, libhstu-dev), and what lintian says of them.
#
#   tools/deb.sh [VERSION]    VERSION must be that of packaging/deb/changelog
#
# The files that git knows are copied to build/deb/hstu-VERSION, with packaging/deb as their debian/.
set -eu
cd "$(dirname "$0")/.."
for tool in dpkg-buildpackage dh; do
    command -v $tool >/dev/null || { echo "make deb: $tool is missing; sudo apt-get install dpkg-dev debhelper lintian" >&2; exit 1; }
done
version=$(sed -n 's/^hstu (\([^)]*\)).*/\1/p' packaging/deb/changelog | head -n 1)
if [ -n "${1:-}" ] && [ "$1" != "$version" ]; then
    echo "make deb: include/hstu.h says $1, packaging/deb/changelog $version; they must be the same" >&2
    exit 1
fi
place=build/deb/hstu-$version
rm -rf build/deb
mkdir -p "$place"
git ls-files -z | grep -zv -e '^tests/fuzz/corpus/' -e '^bench/results/' | xargs -0 cp --parents -t "$place"
cp -r packaging/deb "$place/debian"
(cd "$place" && dpkg-buildpackage -b -us -uc "${DPKG_OPTIONS:--j$(nproc)}")
rm -rf "$place"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning build/deb/*.changes
    echo "lintian: nothing to say"
else
    echo "lintian is not here: the packages were not checked"
fi
ls -l build/deb/*.deb
