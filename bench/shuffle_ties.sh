#!/bin/sh
# Rewrites ML-1M's ratings.dat with events of the same user and second in random order, as an unstable sort leaves them:
#
#   xz -dc ratings.dat.xz | bench/shuffle_ties.sh [SEED] > ties/ratings.dat
#   ./hstu prep ml-1m --input ties --out data/ml-1m-ties
#
# and says on stderr how many events, and how many users' last events, share their second with the one before.
# What that order is worth: bench/results/ml-1m.
export LC_ALL=C
awk -F:: -v seed="${1:-5}" 'BEGIN { srand(seed) } { printf "%d %d %.9f %s\n", $1, $4, rand(), $0 }' |
    sort -k1,1n -k2,2n -k3,3 |
    awk '{ tied = NR > 1 && $1 == user && $2 == time; n_tied += tied
           if (NR > 1 && $1 != user) { users++; last_tied += was_tied }
           user = $1; time = $2; was_tied = tied; print $4 }
         END { users++; last_tied += was_tied
               printf "%.1f %% of the events and %.1f %% of the last ones share their second with the one before\n", 100 * n_tied / NR, 100 * last_tied / users > "/dev/stderr" }'
