#!/usr/bin/env bash
# The programs of examples/learn (docs/learn.md): all compile, and each ends as the course says: with 0 on a GPU, with
# 77 and a sentence where there is none.  The course names every program, and no other.  Exit code 77: nvcc is not
# here, so nothing was compiled.
set -eu
cd "$(dirname "$0")/.."

named=$(grep -o 'examples/learn/[0-9a-z_]*\.cu' docs/learn.md | sort -u)
there=$(ls examples/learn/*.cu)
if [ "$named" != "$there" ]; then
    echo "docs/learn.md and examples/learn differ:"
    diff <(echo "$named") <(echo "$there") | grep '^[<>]'
    exit 1
fi
command -v "${NVCC:-nvcc}" >/dev/null || { echo "nvcc is not here: examples/learn was not compiled" && exit 77; }

# Real machine code for one card, to keep it quick; unoptimised device code would not be what a reader gets.
jobs=$(nproc)
place=build/learn
log=$place/make.log
mkdir -p $place
if ! make -s -j$((jobs < 4 ? jobs : 4)) B=$place CUDA_SM=90 learn >$log 2>&1 || grep -q 'warning' $log; then
    grep -E 'warning|error' $log || tail -n 5 $log
    exit 1
fi
gpu=0
nvidia-smi -L >/dev/null 2>&1 && gpu=1
for source in $there; do
    name=$(basename "$source" .cu) code=0
    "$place/learn/$name" >"$place/$name.log" 2>&1 </dev/null || code=$?
    case $gpu$code in
    10) ;;
    077) grep -q 'no GPU that CUDA can use' "$place/$name.log" || { echo "$name does not say that there is no GPU" && exit 1; } ;;
    *) echo "$name ended with $code:" && tail -n 5 "$place/$name.log" && exit 1 ;;
    esac
done
code=0
python3 examples/learn/09_torch.py $place/learn/09_torch.so >"$place/torch.log" 2>&1 </dev/null || code=$?
case $code in
0 | 77) ;; # 77: no torch, or no GPU
*) echo "09_torch.py ended with $code:" && tail -n 5 "$place/torch.log" && exit 1 ;;
esac
echo "$(echo "$there" | wc -l) programs compiled, $([ $gpu = 1 ] && echo "all right on the GPU" || echo "each says that there is no GPU")"
