#!/usr/bin/env bash
# pip install ./python into a fresh virtual environment: without numpy, then with it, pandas and polars; the examples of the
# docstrings; mypy --strict of a user's file; what twine says of the wheel.
# Where torch is in build/python, its operators are checked, too.  Exit code 77: pip or its packages cannot be had here.
#
#   tests/python.sh          the library of build/release, as `make build/release/libhstu.so` makes it
#   tests/python.sh --wheel  the library that the wheel builds itself (a whole build; CUDA=0 leaves the GPU out) and its tag
#   tests/python.sh --manylinux   the wheel of `make wheel`: what auditwheel says of it, its installation without a compiler in
#                                 less than 20 s, and the checks with its own program
#   tests/python.sh --aarch64     that of WHEEL_ARCH=aarch64, in Debian's Python under qemu, which are unpacked in build/tools
#   tests/python.sh --cuda        that of `make wheel-cuda`, with NVIDIA's packages, which it must find; a GPU is not needed
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
program=$root/build/release/hstu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
pip="-m pip install -q --timeout 15 --retries 1 --disable-pip-version-check"

# make_wheel TARGET ARCHITECTURE OPTION...: its path in $wheel, if auditwheel calls it manylinux_2_28.
make_wheel() {
    local code=0
    [ "${HSTU_INSTALL:-1}" != 0 ] || { echo "HSTU_INSTALL=0: nothing is installed" && exit 77; }
    make "$1" "${@:3}" >"$place/wheel.log" 2>&1 || code=$?
    ! grep -E '^make (dist|wheel): .* cannot be had' "$place/wheel.log" || exit 77
    [ $code = 0 ] || { tail -n 20 "$place/wheel.log" && exit 1; }
    tr '\n' ' ' <"$place/wheel.log" | grep -q "consistent with the following platform tag: \"manylinux_2_28_$2\"" ||
        { echo "auditwheel does not call it manylinux_2_28" && exit 1; }
    wheel=$(sed -n 's/^Successfully built \(.*whl\)$/\1/p' "$place/wheel.log")
    wheel=$root/build/dist/${wheel:-nothing}
}

manylinux() {
    local begin seconds
    make_wheel wheel "$(uname -m)"
    python3 -m venv "$place/fresh"
    begin=$(date +%s%N)
    PATH=/nothing "$place/fresh/bin/python" $pip --no-index "$wheel"
    seconds=$(((($(date +%s%N) - begin)) / 1000000000))
    [ $seconds -lt 20 ] || { echo "pip took $seconds s" && return 1; }
    "$place/fresh/bin/hstu" doctor | grep -q 'snappy *yes' || { echo "the wheel's program has no snappy" && return 1; }
    (cd "$place" && "$place/fresh/bin/python" "$root/tests/python/check.py" "$place/fresh/bin/hstu" "$place/run")
    echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes, installed in $seconds s"
}

# The program is a script there, because this machine's kernel cannot start the other one's programs by itself.
aarch64() {
    local here=$root/build/tools arm=$root/build/tools/arm64 qemu
    . tools/debian.sh
    qemu=$(command -v qemu-aarch64-static) || {
        qemu=$here/qemu/usr/bin/qemu-aarch64-static
        [ -e "$qemu" ] || debian_unpack "$here/apt-qemu" "$here/qemu" "$(dpkg --print-architecture)" qemu-user-static
    } || { echo "qemu-user-static cannot be had here" && exit 77; }
    [ -e "$arm/done" ] || { debian_unpack "$here/apt-arm64" "$arm" arm64 libc6 libgcc-s1 zlib1g libffi8 libexpat1 \
        python3.11-minimal libpython3.11-minimal libpython3.11-stdlib && touch "$arm/done"; } || { echo "Debian's packages cannot be had here" && exit 77; }
    make_wheel wheel aarch64 WHEEL_ARCH=aarch64
    (cd "$place" && python3 -m zipfile -e "$wheel" packages && cp -r "$root/configs" .)
    printf '#!/bin/sh\nexec %s -L %s %s/packages/hstu/bin/hstu "$@"\n' "$qemu" "$arm" "$place" >"$place/hstu"
    chmod +x "$place/hstu" "$place/packages/hstu/bin/hstu"
    (cd "$place" && ./hstu synth --out data --users 100 --items 60 --mean-len 10 --seed 1 >out 2>&1 && PYTHONHOME=$arm/usr PYTHONPATH=$place/packages \
        HSTU_PROGRAM=$place/hstu "$qemu" -L "$arm" "$arm/usr/bin/python3.11" - >out 2>&1 <<'END') || { cat "$place/out" && exit 1; }
import hstu, platform
assert platform.machine() == "aarch64" and hstu.library_version() == hstu.__version__
run = hstu.train("configs/demo.gin", data="data", out="run", epochs=1, device="cpu")
(items,) = hstu.Model(run, data="data", device="cpu").recommend([7], k=5)
assert len(items) == 5, items
with hstu.serve(run, data="data", device="cpu") as server:
    assert len(server.request("/v1/recommend", {"user": 7, "top_k": 5})["items"]) == 5
END
    echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes; Python, training and the server under qemu"
}

cuda() {
    local library file folder found
    make_wheel wheel-cuda "$(uname -m)"
    python3 -m venv "$place/fresh"
    "$place/fresh/bin/python" $pip "$wheel" || { echo "NVIDIA's packages cannot be had here" && exit 77; }
    ! unzip -l "$wheel" | grep -iE 'lib(cu|nv|nccl)' || { echo "the wheel has NVIDIA's libraries inside" && exit 1; }
    # Where the loader looks for what each of them opens by name; and NVIDIA's libraries can be loaded themselves.
    for file in hstu/libhstu.so hstu/bin/hstu; do
        file=$(echo "$place"/fresh/lib/python3*/site-packages/$file)
        for library in libcublasLt.so.13 libnvrtc.so.13 libcupti.so.13 libnccl.so.2; do
            found=
            for folder in $(readelf -d "$file" | sed -n 's/.*(RUNPATH).*\[\(.*\)\]/\1/p' | tr ':' ' '); do
                folder=$(dirname "$file")/${folder#\$ORIGIN/}
                [ ! -e "$folder/$library" ] || found=$folder/$library
            done
            [ -n "$found" ] && python3 -c "import ctypes; ctypes.CDLL('$found')" || { echo "$(basename "$file") does not find $library" && exit 1; }
        done
    done
    (cd "$place" && fresh/bin/hstu doctor >doctor) || true
    grep -q '^  ok  NCCL' "$place/doctor" && grep -q '^  ok  NVRTC  *13' "$place/doctor" ||
        { cat "$place/doctor" && echo "the program does not open NCCL and NVRTC of Python's packages" && exit 1; }
    (cd "$place" && fresh/bin/python "$root/tests/python/check.py" "$place/fresh/bin/hstu" "$place/run")
    [ -e /dev/nvidia0 ] || (cd "$place" && fresh/bin/python - <<'END')
import hstu
try:
    hstu.Table(8, device="cuda")
    raise SystemExit("a GPU was found where there is none")
except hstu.Error as e:
    print(f"without a GPU: {e}")
END
    echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes; it finds cuBLASLt, NVRTC, CUPTI and NCCL of Python's packages"
}
case ${1:-} in
--manylinux | --aarch64 | --cuda)
    "${1#--}"
    exit ;;
esac
if [ "${1:-}" != --wheel ]; then
    [ -e build/release/libhstu.so ] || make -s build/release/libhstu.so >/dev/null
    export HSTU_LIBRARY=$root/build/release/libhstu.so
fi
python3 -m venv "$place/plain" || { echo "python3 -m venv does not work here" && exit 77; }
if ! "$place/plain/bin/python" $pip build twine >"$place/log" 2>&1; then
    echo "the Python index cannot be reached" && exit 77
fi
cp -r python "$place/source" # builds leave files beside their source; setup.py finds the repository by HSTU_ROOT
export HSTU_ROOT=$root
"$place/plain/bin/python" -m build -q --wheel --outdir "$place/wheel" "$place/source"
unset HSTU_LIBRARY
"$place/plain/bin/python" -m twine check --strict "$place"/wheel/*.whl

# The tag of a wheel that built its library is this machine's glibc, and the library asks for nothing newer, nor for
# any library but the C library's; with CUDA inside, that of C++.  cuBLASLt is looked for when a GPU is used.
check_tag() {
    local libc newest needed name
    libc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
    name=$(basename "$place"/wheel/*.whl)
    case $name in
    *-py3-none-manylinux_${libc/./_}_"$(uname -m)".whl) ;;
    *) echo "$name is not tagged for glibc $libc" && return 1 ;;
    esac
    (cd "$place" && "$place/plain/bin/python" -m zipfile -e "wheel/$name" unpacked)
    newest=$(objdump -T "$place/unpacked/hstu/libhstu.so" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
    if [ "$(printf '%s\n' "$newest" "$libc" | sort -V | tail -n 1)" != "$libc" ]; then
        echo "libhstu.so asks for glibc $newest; $name says $libc" && return 1
    fi
    needed=$(objdump -p "$place/unpacked/hstu/libhstu.so" | awk '$1 == "NEEDED" { print $2 }')
    if objdump -h "$place/unpacked/hstu/libhstu.so" | grep nv_fatbin >/dev/null; then
        name="$name, with CUDA" needed=$(echo "$needed" | grep -vE '^(libstdc\+\+|libgcc_s|librt)\.so')
    elif [ "${CUDA:-1}" != 0 ] && command -v nvcc >/dev/null; then
        echo "nvcc is here, but the wheel is without CUDA" && return 1
    fi
    needed=$(echo "$needed" | grep -vE '^(libc|libm|libpthread|libdl|ld-linux.*)\.so' || true)
    [ -z "$needed" ] || { echo "libhstu.so of the wheel needs $needed" && return 1; }
    echo "$name: asks for glibc $newest"
}
[ "${1:-}" != --wheel ] || check_tag
python3 -m venv "$place/fresh"
"$place/fresh/bin/python" $pip "$place"/wheel/*.whl
for kind in bare numpy; do
    if [ $kind = numpy ]; then
        "$place/fresh/bin/python" $pip numpy || { echo "numpy cannot be had here" && exit 77; }
        "$place/fresh/bin/python" $pip --only-binary :all: pandas polars mypy || echo "skipped: pandas, polars and mypy cannot be had here"
    fi
    (cd "$place" && "$place/fresh/bin/python" "$root/tests/python/check.py" "$program" "$place/run-$kind")
done
has() { "$place/fresh/bin/python" -c "import $1" 2>/dev/null; }
if has pandas; then (cd "$place" && "$place/fresh/bin/python" "$root/tests/python/check_docs.py" "$place/docs"); fi
if has mypy; then
    (cd "$place" && "$place/fresh/bin/python" -m mypy --strict --cache-dir "$place/mypy" "$root/tests/python/typed_user.py")
    if has pandas; then (cd "$place" && "$place/fresh/bin/python" "$root/tests/python/typed_user.py" "$place/docs/data" "$place"); fi
fi
if has pandas; then
    if "$place/fresh/bin/python" $pip --only-binary :all: nbclient ipykernel matplotlib; then
        "$place/fresh/bin/python" tests/python/check_notebooks.py "$place/notebooks"
    else
        echo "skipped: the notebooks, as nbclient, ipykernel and matplotlib cannot be had here"
    fi
fi
# A slice of the campaign with threads, forks, closed objects and Ctrl-C, of seconds; with the address sanitizer where a library
# of it was built (make VARIANT=asan build/asan/libhstu.so).
stress() {
    (cd "$place" && timeout 60 "$place/fresh/bin/python" "$root/tools/python_stress.py" "$program" "$place/$1" --seconds 25)
}
stress plain
if [ -e "$root/build/asan/libhstu.so" ]; then
    HSTU_LIBRARY=$root/build/asan/libhstu.so ASAN_OPTIONS=detect_leaks=0 \
        LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" stress asan
fi
# On arrays of CuPy and JAX, where the machine's own Python has them and there is a GPU (exit code 77 otherwise).
if python3 -c 'import numpy' 2>/dev/null; then
    "$place/plain/bin/python" $pip --no-deps --target "$place/arrays" "$place"/wheel/*.whl
    code=0
    (cd "$place" && PYTHONPATH=$place/arrays python3 "$root/tests/python/check_arrays.py") || code=$?
    [ $code = 0 ] || [ $code = 77 ] || exit $code
fi
if "$root/build/python/bin/python" -c 'import torch' 2>/dev/null; then
    "$root/build/python/bin/python" $pip --force-reinstall --no-deps --target "$place/torch" "$place"/wheel/*.whl
    (cd "$place" && PYTHONPATH=$place/torch "$root/build/python/bin/python" "$root/tests/python/check_torch.py" &&
        PYTHONPATH=$place/torch "$root/build/python/bin/python" "$root/tests/python/check_bags.py")
fi
