#!/bin/sh
# Reads ptxas's reports on our kernels (the Makefile writes them to X.cu.ptxas beside the object).  No kernel
# may spill registers: that adds memory accesses to loops whose every instruction counts.  wgmma products that
# ptxas serialises lose half their speed, which nothing shows at run time.
#   tools/spills.sh spills [DIR]      kernels that spill and are not excused below: none should
#   tools/spills.sh losses [DIR]      products that were serialised, register counts that were ignored
#   tools/spills.sh worst [DIR]       the most registers a kernel has, and which, in one line
# DIR defaults to build/release/src/cuda.  Exit status 3: no source has a report.
cd "$(dirname "$0")/.." || exit 1
what=$1
dir=${2:-build/release/src/cuda}
case $what in
spills | losses | worst) ;;
*)
    sed -n '2,/^cd/s/^# \{0,1\}//p' "tools/$(basename "$0")"
    exit 2
    ;;
esac

# Kernels that may spill, and why.
excused='
attn_bwd_dq_f32_kernel<256, true>      head dimensions 129 to 256 in true float32, which no config has: with half the tile all scores would be computed twice
softmax_attn_bwd_dq_f32_kernel<256>    the same in softmax attention
linear_large_sm90_kernel<__nv_bfloat16, large_tile<256, 3,  one register, written and read once after the products of a tile
mol_pairs_bwd_any_kernel<float, 8, 4>  a warp has the logits, gates and two gradients of its tile; with them in memory a step took twice as long and more
mol_pairs_bwd_any_kernel<__half, 8, 2>   the same
mol_pairs_bwd_any_kernel<__half, 4, 4>   the same
mol_pairs_bwd_any_kernel<__half, 4, 2>   the same
mol_pairs_fwd_any_kernel<__half, 4, 4>   the same, some numbers a tile
mol_pairs_fwd_any_kernel<__half, 4, 2>   the same
'

# A report older than its source is out of date.
reports=
for report in $(find "$dir" -name '*.cu.ptxas' 2>/dev/null | sort); do
    source=src/cuda/${report#"$dir"/}
    source=${source%.ptxas}
    case $source in # a unit is made of several sources
    src/cuda/unit_*) source=$(sed -n 's/#include "\(.*\)"/src\/\1/p' "${report%.ptxas}") ;;
    esac
    is_new=1
    for part in $source; do [ -e "$part" ] && [ ! "$part" -nt "$report" ] || is_new=0; done
    [ -n "$source" ] && [ $is_new = 1 ] && reports="$reports $report"
done
[ -n "$reports" ] || exit 3

demangle() {
    if command -v c++filt >/dev/null; then c++filt; elif command -v cu++filt >/dev/null; then cu++filt; else cat; fi
}

# "file|sm|registers|bytes spilt|kernel<...>", a line for each kernel and architecture.
kernels() {
    awk '
        FNR == 1 { n = split(FILENAME, part, "/"); file = part[n]; sub(/\.ptxas$/, "", file) }
        /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2]; sm = quoted[4] }
        /spill stores/ { for (i = 1; i < NF; i++) if ($(i + 2) == "spill") { spilt += $i } }
        /Used [0-9]+ registers/ {
            for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
            if (kernel != "") print file "|" sm "|" registers "|" spilt "|" kernel
            kernel = ""; spilt = 0
        }' $reports | demangle | sed -e 's/|void /|/' -e 's/([^|]*$//'
}

case $what in
spills)
    kernels | awk -F'|' -v excused="$excused" '
        BEGIN {
            n = split(excused, line, "\n")
            for (i = 1; i <= n; i++) if (split(line[i], word, " ") > 1) name[++m] = line[i]
        }
        $4 > 0 {
            for (i = 1; i <= m; i++) if (index(name[i], $5 " ") == 1) next
            print $1 ": " $5 " on " $2 ": " $4 " bytes spilt and read back, " $3 " registers"
        }'
    ;;
losses)
    grep -HE '\(C75[0-9]+\)' $reports | grep -E 'serialized|setmaxnreg' | demangle |
        sed 's|^.*/\(.*\)\.ptxas:ptxas info *: |\1: |' | sort -u
    ;;
worst)
    kernels | sort -t'|' -k3,3nr -k1,1 | head -n 1 | awk -F'|' '{ print $3 " in " $5 ", " $1 }'
    ;;
esac
exit 0
