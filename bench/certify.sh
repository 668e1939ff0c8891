#!/bin/sh
# How far recommendations hold on ML-1M: the tables of docs/certify.md, results in bench/results/cpu/certify.csv.
#
#   bench/certify.sh ML-1M-FOLDER [USERS] > certify.csv
#
# USERS (25): of a sample of 40, for the rows in which all events move: up to a minute of a core
# each.  Prints percents of users: best item and list unchanged, changed, unknown; where one event is left out, changed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ml1m=$1 users=${2:-25} hstu=${HSTU:-$here/hstu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$hstu prep ml-1m --input "$ml1m" --out "$work/data" >&2
$hstu train --device cpu --gin-config-file "$here/configs/ml-1m/hstu-sampled-softmax-n128-final.gin" --data "$work/data" \
    --out "$work/run" --epochs 7 >&2

# certify MOVED OPTION...: rows of its tables.
certify() {
    moved=$1
    shift
    $hstu certify "$work/run" "$@" | awk -v OFS=, -v moved="$moved" '
        / users?, lists of / { users = $1 }
        $1 ~ /^[0-9.e-]+$/ && $3 == "%" { print moved, users, $1, $2, $4, $6, $8, $10, $12 }
        $1 == "the" && $2 == "newest" { print "\"left out, " $4 " after it\"", users, "", "", $5, "", "", $7, "" }'
}

echo moved,users,eps,best_unchanged,best_changed,best_unknown,list_unchanged,list_changed,list_unknown
certify "the newest" --sample 200 --items 1 --eps 1e-5,3e-5,1e-4,3e-4,1e-3,3e-3
$hstu certify "$work/run" --sample 40 --items 1 --eps 1e-9 --json | sed 's/^{"user":"*\([^",]*\).*/\1/' | head -n "$users" \
    >"$work/users.txt"
certify all --users "$work/users.txt" --items all --eps 1e-6,3e-6,1e-5,1e-4,1e-3
certify none --sample 200 --items 32 --eps 1e-9 --left-out | grep "^.left"
