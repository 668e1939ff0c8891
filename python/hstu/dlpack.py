"""HSTU attention on arrays of any library that speaks DLPack: numpy, CuPy, JAX, torch.

    out = hstu.dlpack.attn_varlen(q, k, v, cu_seqlens, cu_seqlens, max_seqlen_q=512, max_seqlen_k=512, window_size=(-1, 0))
    dq, dk, dv = hstu.dlpack.attn_varlen_backward(dout, q, k, v, cu_seqlens, cu_seqlens, ...)

Results are arrays of the library that q is from.  Nothing is copied: rows may be apart, as of parts of one array, but the
numbers of a row follow each other.  Memory of a GPU is float32, bfloat16 or float16, memory of the host float32; the work is
done when a call returns.  hstu.attention has the same for torch with autograd."""
import os
import sys
import threading
from ctypes import (POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, cast,
                    py_object, pythonapi)
from typing import Any, NamedTuple, Tuple

from . import _library as _l

__all__ = ["attn_varlen", "attn_varlen_backward"]


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class AttnArgs(Structure):
    """hstu_attn_varlen_args."""
    _fields_ = [("dtype", c_int32), ("batch_size", c_int32), ("num_heads", c_int32), ("dim_qk", c_int32),
                ("dim_v", c_int32), ("total_q", c_int64), ("total_k", c_int64), ("max_seqlen_q", c_int32),
                ("max_seqlen_k", c_int32), ("cu_seqlens_q", c_void_p), ("cu_seqlens_k", c_void_p), ("q", c_void_p),
                ("k", c_void_p), ("v", c_void_p), ("out", c_void_p), ("stride_q", c_int64), ("stride_k", c_int64),
                ("stride_v", c_int64), ("stride_out", c_int64), ("alpha", c_float), ("scaling_seqlen", c_int32),
                ("window_left", c_int32), ("window_right", c_int32), ("num_contexts", c_void_p),
                ("num_targets", c_void_p), ("target_group_size", c_int32), ("func", c_void_p), ("n_func", c_int32),
                ("func_stride", c_int64), ("rab", c_void_p), ("rab_heads", c_int32), ("dout", c_void_p),
                ("dq", c_void_p), ("dk", c_void_p), ("dv", c_void_p), ("drab", c_void_p),
                ("is_deterministic", c_int32), ("later", c_uint8 * 256)]  # fields of later versions


for _name, _types in {"hstu_attn_create": [POINTER(c_void_p), c_int32], "hstu_attn_wait": [c_void_p, c_void_p],
                      "hstu_attn_varlen_fwd": [c_void_p, POINTER(AttnArgs), c_void_p],
                      "hstu_attn_varlen_bwd": [c_void_p, POINTER(AttnArgs), c_void_p]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
_l.lib.hstu_attn_varlen_defaults.argtypes, _l.lib.hstu_attn_varlen_defaults.restype = [POINTER(AttnArgs)], None
pythonapi.PyCapsule_GetPointer.argtypes, pythonapi.PyCapsule_GetPointer.restype = [py_object, c_char_p], c_void_p

_CPU, _HOST_OF_CUDA, _CUDA, _MANAGED = 1, 3, 2, 13
_TYPES = {(2, 32): 0, (4, 16): 1, (2, 16): 2}  # (code, bits): hstu_dtype
_INT32 = (0, 32)


class _View(NamedTuple):
    """An array: where it is and how it lies.  It lives as long as `owner`, the capsule that its library gave."""
    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    kind: Tuple[int, int]
    device: int  # -1: the host
    owner: object


def _view(name, array):
    if not hasattr(array, "__dlpack__"):
        raise _l.UsageError(f"{name}: a {type(array).__name__} is not an array that speaks DLPack")
    where = array.__dlpack_device__()[0]
    # 1 is CUDA's legacy default stream, on which we compute: the library makes it wait for its own.
    capsule = array.__dlpack__(stream=1) if where in (_CUDA, _MANAGED) else array.__dlpack__()
    t = cast(pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"), POINTER(_DLTensor)).contents
    if t.device_type not in (_CPU, _HOST_OF_CUDA, _CUDA, _MANAGED):
        raise _l.UnsupportedError(f"{name}: memory of a device of DLPack's type {t.device_type}; the host and CUDA are supported")
    shape = tuple(t.shape[:t.ndim])
    strides = list(t.strides[:t.ndim]) if t.strides else [0] * t.ndim
    if not t.strides:
        step = 1
        for i in range(t.ndim - 1, -1, -1):
            strides[i], step = step, step * shape[i]
    device = t.device_id if t.device_type in (_CUDA, _MANAGED) else -1
    return _View((t.data or 0) + t.byte_offset, shape, tuple(strides), (t.code, t.bits) if t.lanes == 1 else (-1, 0), device, capsule)


def _rows(name, array, device=None, kind=None):
    """A view of (tokens, heads, dim) whose rows are contiguous."""
    v = _view(name, array)
    if len(v.shape) != 3:
        raise _l.UsageError(f"{name}: shape {v.shape} is not (tokens, heads, dim)")
    if v.kind not in _TYPES or (kind is not None and v.kind != kind):
        raise _l.UsageError(f"{name}: q, k and v are of one type, float32, bfloat16 or float16")
    heads, dim = v.shape[1:]
    if v.shape[0] > 0 and ((dim > 1 and v.strides[2] != 1) or (heads > 1 and v.strides[1] != dim) or
                           (v.shape[0] > 1 and v.strides[0] < heads * dim)):
        raise _l.UsageError(f"{name}: the numbers of a row must follow each other (strides {v.strides})")
    return _there(name, v, device)


def _there(name, view, device):
    if device is not None and view.device != device:
        raise _l.UsageError(f"{name} is on {'the host' if view.device < 0 else f'GPU {view.device}'}, q is not")
    return view


def _counts(name, array, device, n=None):
    if array is None:
        return None
    v = _view(name, array)
    if v.kind != _INT32 or len(v.shape) != 1 or (v.shape[0] > 1 and v.strides[0] != 1) or (n is not None and v.shape[0] != n):
        raise _l.UsageError(f"{name}: int32 numbers of one dimension{'' if n is None else f', {n} of them'}, without gaps")
    return _there(name, v, device)


def _empty(like, shape):
    """An array of the library of `like`, of its type and on its device."""
    library = type(like).__module__.split(".")[0]
    if library == "jaxlib" or library == "jax":  # a new array that nobody else has seen: its memory may be written
        import jax
        with jax.default_device(next(iter(like.devices()))):
            return jax.numpy.zeros(shape, like.dtype).block_until_ready()
    module = sys.modules[library]
    if library == "torch":
        return module.empty(shape, dtype=like.dtype, device=like.device)
    if not hasattr(module, "empty"):
        raise _l.UnsupportedError(f"results for arrays of {library} cannot be made; give arrays of numpy, CuPy, JAX or torch")
    return module.empty(shape, dtype=like.dtype)


_handles = {}


def handle_of(device, create="hstu_attn_create", *args):
    """What the library keeps for a device (and a mask): one a thread, because its calls share scratch memory, made at its first
    call and, in a child of fork(), once more.  No lock: the key is this thread's own."""
    key = (os.getpid(), threading.get_ident(), create, device, *args)
    if key not in _handles:
        handle = c_void_p()
        _l.call(create, _l.reference(handle), device, *args)
        _handles[key] = handle
    return _handles[key]


def set_integers(args, **values):
    for name, value in values.items():
        setattr(args, name, _l.integer(c_int32, value, name))


def _fill(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scaling_seqlen=-1, num_contexts=None, num_targets=None,
          target_group_size=1, window_size=(-1, -1), alpha=1.0, deterministic=False):
    """The arguments, and the views that must live until the call is done."""
    q = _rows("q", q)
    k, v = _rows("k", k, q.device, q.kind), _rows("v", v, q.device, q.kind)
    if q.shape[1:] != k.shape[1:] or k.shape[:2] != v.shape[:2]:
        raise _l.UsageError(f"attn_varlen: shapes {q.shape}, {k.shape} and {v.shape}; q, k and v are (tokens, heads, dim)")
    cu_q = _counts("cu_seqlens_q", cu_seqlens_q, q.device)
    n = cu_q.shape[0] - 1
    if n < 0:
        raise _l.UsageError("cu_seqlens_q is empty; it has a number more than there are sequences")
    cu_k = _counts("cu_seqlens_k", cu_seqlens_k, q.device, n + 1)
    contexts, targets = _counts("num_contexts", num_contexts, q.device, n), _counts("num_targets", num_targets, q.device, n)
    a = AttnArgs()
    _l.lib.hstu_attn_varlen_defaults(_l.reference(a))
    a.dtype, a.batch_size, a.num_heads, a.dim_qk, a.dim_v = _TYPES[q.kind], n, q.shape[1], q.shape[2], v.shape[2]
    a.total_q, a.total_k = q.shape[0], k.shape[0]
    a.cu_seqlens_q, a.cu_seqlens_k, a.q, a.k, a.v = cu_q.address, cu_k.address, q.address, k.address, v.address
    a.stride_q, a.stride_k, a.stride_v = (t.strides[0] if t.shape[0] > 1 else 0 for t in (q, k, v))
    a.alpha, a.is_deterministic = alpha, int(bool(deterministic))
    set_integers(a, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scaling_seqlen=scaling_seqlen,
                 target_group_size=target_group_size, window_left=window_size[0], window_right=window_size[1])
    a.num_contexts, a.num_targets = contexts and contexts.address, targets and targets.address
    return a, q.device, (q, k, v, cu_q, cu_k, contexts, targets)


def _run(name, device, args, views):
    handle = handle_of(device)
    _l.call(name, handle, _l.reference(args), None)
    _l.call("hstu_attn_wait", handle, None)
    del views


def attn_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **rest: Any) -> Any:
    """(total_q, heads, dim of v); the other arguments are those of hstu_attn_varlen_func."""
    args, device, views = _fill(q, k, v, cu_seqlens_q, cu_seqlens_k, **rest)
    out = _empty(q, (q.shape[0], q.shape[1], v.shape[2]))
    at = _rows("out", out, device)
    args.out = at.address
    _run("hstu_attn_varlen_fwd", device, args, (views, at))
    return out


def attn_varlen_backward(dout: Any, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **rest: Any) -> Tuple[Any, ...]:
    """The gradients of q, k and v, each with the shape of its array and without gaps between rows."""
    args, device, views = _fill(q, k, v, cu_seqlens_q, cu_seqlens_k, **rest)
    for name, stride, array in (("q", args.stride_q, q), ("k", args.stride_k, k), ("v", args.stride_v, v)):
        if stride not in (0, array.shape[1] * array.shape[2]):
            raise _l.UsageError(f"attn_varlen_backward: the rows of {name} have gaps; its gradient would, too: make it contiguous")
    kind = views[0].kind
    d = _rows("dout", dout, device, kind)
    if d.shape != (q.shape[0], q.shape[1], v.shape[2]):
        raise _l.UsageError(f"attn_varlen_backward: dout {d.shape} is not (total_q, heads, dim of v)")
    args.stride_out = d.strides[0] if d.shape[0] > 1 else 0
    gradients = [_empty(x, tuple(x.shape)) for x in (q, k, v)]
    at = [_rows(name, x, device, kind) for name, x in zip(("dq", "dk", "dv"), gradients)]
    args.dout, args.dq, args.dk, args.dv = d.address, at[0].address, at[1].address, at[2].address
    _run("hstu_attn_varlen_bwd", device, args, (views, d, at))
    return tuple(gradients)
