#!/usr/bin/env python3
"""hstu.dlpack on arrays of CuPy and JAX, on a GPU, against the formula in float64; numpy alone is needed otherwise.

usage: check_arrays.py [LIBRARY...]     cupy and jax where they are installed

Values and gradients of jagged sequences in each type that the library has, within the rounding of that type; the
result is of the same library, on the same device.  Without any of them the exit code is 77.  The last line is "ok"."""
import sys

import numpy

import hstu
import hstu.dlpack


def formula(q, k, v, dout, cu, alpha, scaling):
    """Causal HSTU attention and the gradients of sum(out * dout), in float64."""
    out, dq, dk, dv = (numpy.zeros(x.shape) for x in (q, q, k, v))
    for a, b in zip(cu[:-1], cu[1:]):
        tri = numpy.tri(b - a)
        s = alpha * numpy.einsum("ihd,jhd->hij", q[a:b], k[a:b])
        sigmoid = 1 / (1 + numpy.exp(-s))
        p = s * sigmoid / scaling * tri
        out[a:b] = numpy.einsum("hij,jhd->ihd", p, v[a:b])
        dv[a:b] = numpy.einsum("hij,ihd->jhd", p, dout[a:b])
        ds = numpy.einsum("ihd,jhd->hij", dout[a:b], v[a:b]) * sigmoid * (1 + s * (1 - sigmoid)) / scaling * tri * alpha
        dq[a:b] = numpy.einsum("hij,jhd->ihd", ds, k[a:b])
        dk[a:b] = numpy.einsum("hij,ihd->jhd", ds, q[a:b])
    return out, dq, dk, dv


def check(library, kind, make, read):
    g = numpy.random.default_rng(7)
    lengths = [1, 33, 70, 128]
    cu = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
    given = [make((g.standard_normal((cu[-1], 2, 64)) * 0.5).astype(numpy.float32), kind) for _ in range(4)]
    exact = formula(*(read(x) for x in given), cu, 0.125, 128)
    offsets = make(cu, "int32")
    rest = dict(max_seqlen_q=128, max_seqlen_k=128, window_size=(-1, 0), alpha=0.125)
    out = hstu.dlpack.attn_varlen(*given[:3], offsets, offsets, **rest)
    got = [out, *hstu.dlpack.attn_varlen_backward(given[3], *given[:3], offsets, offsets, **rest)]
    for name, mine, want in zip(("out", "dq", "dk", "dv"), got, exact):
        if type(mine) is not type(given[0]) or mine.dtype != given[0].dtype:
            sys.exit(f"check_arrays.py: {library}: {name} is a {type(mine)} of {mine.dtype}")
        error = numpy.abs(read(mine) - want).max() / numpy.abs(want).max()
        limit = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}[kind]
        if not error < limit:
            sys.exit(f"check_arrays.py: {library}, {kind}: {name} is off by {error}, limit {limit}")


def of_cupy():
    import cupy
    for kind in ("float32", "float16"):
        check("cupy", kind, lambda x, kind: cupy.asarray(x.astype(kind)), lambda x: cupy.asnumpy(x).astype(float))
    x, cu = cupy.zeros((4, 1, 8), dtype="float32"), cupy.asarray([0, 4], dtype="int32")
    with cupy.cuda.Stream(non_blocking=True):  # what is written on another stream is waited for
        y = cupy.ones((4, 1, 8), dtype="float32") * cupy.ones(1 << 24, dtype="float32")[:1].sum()
        out = hstu.dlpack.attn_varlen(y, y, y, cu, cu, max_seqlen_q=4, max_seqlen_k=4)
    if not abs(float(out[0, 0, 0]) - 8 / (1 + numpy.exp(-8.0))) < 1e-5:
        sys.exit(f"check_arrays.py: cupy: another stream was not waited for: {out[0, 0, 0]}")
    try:
        hstu.dlpack.attn_varlen(x, x, x, cu.get(), cu, max_seqlen_q=4, max_seqlen_k=4)
        sys.exit("check_arrays.py: cupy: arrays of two devices are taken")
    except hstu.UsageError as e:
        if "is on the host, q is not" not in str(e):
            sys.exit(f"check_arrays.py: cupy: says '{e}'")
    return cupy.__version__


def of_jax():
    import jax
    if jax.devices()[0].platform != "gpu":
        return None
    for kind in ("float32", "float16", "bfloat16"):
        check("jax", kind, lambda x, kind: jax.numpy.asarray(x).astype(kind),
              lambda x: numpy.asarray(x.astype("float32")).astype(float))
    return jax.__version__


done = []
for library, run in (("cupy", of_cupy), ("jax", of_jax)):
    if len(sys.argv) > 1 and library not in sys.argv[1:]:
        continue
    try:
        version = run()
    except ImportError:
        continue
    if version:
        done.append(f"{library} {version}")
if not done:
    print("neither CuPy nor JAX for a GPU is installed")
    sys.exit(77)
print(f"HSTU attention on arrays of {' and '.join(done)}")
print("ok")
