#!/bin/sh
# reuse.sh FROM TO STEM: copies the object FROM/STEM.o to TO/STEM.o if the source and none of the headers it was compiled
# with mention an optional library (HSTU_HAS_...), so that it is the same in a build without one.  For the Makefile's
# REUSE; exit status 1: it must be compiled.
object=$1/$3.o list=$1/$3.d
[ -f "$object" ] && [ -f "$list" ] || exit 1
needs=$(sed -n '1,/[^\\]$/p' "$list" | sed 's/^[^ ]*: //' | tr -d '\\')
for file in $needs; do
    [ -f "$file" ] && [ ! "$file" -nt "$object" ] || exit 1
done
! grep -q HSTU_HAS_ $needs || exit 1
cp "$object" "$2/$3.o" && sed "s|^$1/|$2/|" "$list" >"$2/$3.d"
