#!/bin/bash
# hstu export --format onnx in ONNX Runtime, and the examples of docs/interop.md with it, faiss and hnswlib.  Ends with 77
# where Python's packages cannot be had.
# Run by ./run test, from the repository's root:  tests/onnx.sh [PROGRAM]
set -eu
program=$(realpath "${1:-build/release/hstu}")
python=$PWD/build/python/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="-m pip install -q --timeout 15 --retries 1"
has() { "$python" -c "import $1" 2>/dev/null; }
has onnx,onnxruntime,numpy || {
    [ "${HSTU_INSTALL:-1}" != 0 ] && { [ -x "$python" ] || python3 -m venv "$PWD/build/python"; } &&
        timeout 300 "$python" $pip --only-binary :all: onnx onnxruntime numpy
} >"$work/pip" 2>&1 || { echo "Python's packages onnx and onnxruntime cannot be had here"; exit 77; }
for package in faiss-cpu hnswlib; do # hnswlib is built from source
    has "${package%-cpu}" || [ "${HSTU_INSTALL:-1}" = 0 ] || timeout 300 "$python" $pip $package >>"$work/pip" 2>&1 || true
done
"$python" tests/python/check_onnx.py "$program" "$work"
