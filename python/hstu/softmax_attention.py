"""Softmax attention under any mask on torch tensors: hstu_softmax_attn_varlen_func of hstu.attention."""
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_uint8, c_void_p
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _library as _l
from .attention import _DTYPES, _address, _check_types, _computed, _handle, _int32, _on, _rows
from .dlpack import set_integers


class _Args(Structure):
    _fields_ = [("dtype", c_int32), ("batch_size", c_int32), ("num_heads", c_int32), ("dim", c_int32),
                ("total", c_int64), ("max_seqlen", c_int32), ("cu_seqlens", c_void_p), ("q", c_void_p), ("k", c_void_p),
                ("v", c_void_p), ("out", c_void_p), ("stride_q", c_int64), ("stride_k", c_int64), ("stride_v", c_int64),
                ("stride_out", c_int64), ("alpha", c_float), ("log_sum", c_void_p), ("dout", c_void_p), ("dq", c_void_p),
                ("dk", c_void_p), ("dv", c_void_p), ("silu_scale", c_float), ("later", c_uint8 * 252)]  # fields of later versions


for _name, _types in {"hstu_softmax_attn_create": [POINTER(c_void_p), c_int32, _l.c_char_p],
                      "hstu_softmax_attn_set_lengths": [c_void_p, c_int64, c_void_p, c_int32, c_void_p],
                      "hstu_softmax_attn_varlen_fwd": [c_void_p, POINTER(_Args), c_void_p],
                      "hstu_softmax_attn_varlen_bwd": [c_void_p, POINTER(_Args), c_void_p]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
_l.lib.hstu_softmax_attn_varlen_defaults.argtypes = [POINTER(_Args)]
_l.lib.hstu_softmax_attn_varlen_defaults.restype = None


def _fill(q, k, v, out, log_sum, cu, max_len, alpha, silu_scale):
    a = _Args()
    _l.lib.hstu_softmax_attn_varlen_defaults(_l.reference(a))
    a.dtype, a.batch_size, a.num_heads, a.dim = _DTYPES[q.dtype], cu.numel() - 1, q.shape[1], q.shape[2]
    a.total, a.cu_seqlens, a.alpha = q.shape[0], _address(cu), alpha
    set_integers(a, max_seqlen=max_len)
    a.silu_scale = silu_scale
    a.q, a.k, a.v, a.out, a.log_sum = (_address(t) for t in (q, k, v, out, log_sum))
    a.stride_q, a.stride_k, a.stride_v = (t.stride(0) if t.shape[0] > 1 else 0 for t in (q, k, v))
    return a


def _run(name, tensor, args, cu, mask):
    kind = mask.split(",")[0]

    def work(stream):
        handle = _handle(tensor.device, "hstu_softmax_attn_create", _l.text_bytes(mask, "mask"))
        if kind not in ("none", "causal", "sliding"):  # the bits of other masks are made by length
            lengths = cu.diff().to("cpu")
            _l.call("hstu_softmax_attn_set_lengths", handle, 0, _address(lengths), lengths.numel(), stream)
        _l.call(name, handle, _l.reference(args), stream)

    _on(tensor.device, work)


@torch.library.custom_op("hstu::softmax_attn_varlen", mutates_args=())
def _attn(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, max_len: int, alpha: float, silu_scale: float,
          mask: str) -> Tuple[Tensor, Tensor]:
    a, b, c = (_rows(_computed(t)) for t in (q, k, v))
    out, log_sum = a.new_empty(a.shape), a.new_zeros(a.shape[:2], dtype=torch.float32)  # SiLU has no sums: zeros
    _run("hstu_softmax_attn_varlen_fwd", out, _fill(a, b, c, out, log_sum, cu, max_len, alpha, silu_scale), cu, mask)
    return out.to(q.dtype), log_sum


@_attn.register_fake
def _(q, k, v, cu, max_len, alpha, silu_scale, mask):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("hstu::softmax_attn_varlen_backward", mutates_args=())
def _attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, cu: Tensor, max_len: int,
                   alpha: float, silu_scale: float, mask: str) -> Tuple[Tensor, Tensor, Tensor]:
    a, b, c, o, d = (_computed(t).contiguous() for t in (q, k, v, out, dout))
    dq, dk, dv = torch.empty_like(a), torch.empty_like(b), torch.empty_like(c)
    args = _fill(a, b, c, o, log_sum, cu, max_len, alpha, silu_scale)
    args.dout, args.dq, args.dk, args.dv = _address(d), _address(dq), _address(dk), _address(dv)
    _run("hstu_softmax_attn_varlen_bwd", dq, args, cu, mask)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@_attn_backward.register_fake
def _(dout, q, k, v, out, log_sum, cu, max_len, alpha, silu_scale, mask):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output):
    q, k, v, cu, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, cu)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dout, _):
    gradients = torch.ops.hstu.softmax_attn_varlen_backward(dout, *ctx.saved_tensors, *ctx.rest)
    return (*gradients, *[None] * 5)


_attn.register_autograd(_backward, setup_context=_save)


def _mask_of(causal, window_size):
    """The mask's text for FlashAttention's arguments."""
    left, right = (int(w) for w in window_size)
    if causal:
        right = 0
    if left < 0 and right < 0:
        return "none"
    if left < 0 and right == 0:
        return "causal"
    if left == right:
        return f"sliding,window={left}"
    if right == 0:
        return f"sliding,window={left},causal"
    raise _l.UnsupportedError(f"hstu_softmax_attn_varlen_func: window_size {tuple(window_size)}; a window is the same on both "
                              "sides, or causal; other masks are given by a file, mask='bits:FILE'")


def _same(a, b):
    """Whether two tensors of offsets are the same; values are compared on the CPU only, where nobody waits for it."""
    return a is b or (a.shape == b.shape and (a.device.type != "cpu" or torch.compiler.is_compiling() or torch.equal(a, b)))


def hstu_softmax_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                                  max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                  causal: bool = False, window_size: Tuple[int, int] = (-1, -1), mask: Optional[str] = None,
                                  silu_scale: float = 0.0) -> Tensor:
    """softmax(softmax_scale q k) v over jagged sequences, with the arguments of flash_attn_varlen_func.

    q, k, v: (total, heads, dim); cu_seqlens_q and cu_seqlens_k: the same (batch + 1).  mask: a text as 'hstu mask show' takes
    it ("longformer,window=32,global=32", "bits:FILE"), instead of causal and window_size.  A row that sees no key is zero.
    Masks other than none, causal and sliding read the lengths on the host at each call.  silu_scale above 0: the weights are
    silu_scale silu(softmax_scale q k), as HSTU has them, instead of the softmax."""
    name = "hstu_softmax_attn_varlen_func"
    if dropout_p:
        raise _l.UnsupportedError(f"{name}: dropout is not supported")
    if q.dim() != 3 or q.shape != k.shape or q.shape != v.shape:
        raise _l.UsageError(f"{name}: shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; q, k and v are of one "
                            "shape, (tokens, heads, dim)")
    _check_types(name, q, k, v)
    if softmax_scale == 0:
        raise _l.UsageError(f"{name}: softmax_scale is 0")
    if not silu_scale >= 0:
        raise _l.UsageError(f"{name}: silu_scale is {silu_scale}; it is above 0, or 0 for the softmax")
    if max_seqlen_q != max_seqlen_k or not _same(cu_seqlens_q, cu_seqlens_k):
        raise _l.UnsupportedError(f"{name}: queries and keys are of the same sequences")
    if mask is None:
        mask = _mask_of(causal, window_size)
    elif causal or tuple(window_size) != (-1, -1):
        raise _l.UsageError(f"{name}: a mask, or causal and window_size")
    return _attn(q, k, v, _int32(cu_seqlens_q, "cu_seqlens_q"), int(max_seqlen_q), float(softmax_scale or 0), float(silu_scale), mask)[0]
