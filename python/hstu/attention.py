"""HSTU attention on torch tensors, with the signature of NVIDIA's hstu_attn_varlen_func.

CUDA tensors (float32, bfloat16, float16) run on the current stream; CPU tensors are computed in float32.  The
functions are torch custom operators: they work in eager mode, under torch.compile and in autograd.  torch is
imported here alone."""
import inspect
from ctypes import c_void_p
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _library as _l
from .dlpack import AttnArgs as _Args, handle_of, set_integers

__all__ = ["hstu_attn_qkvpacked_func", "hstu_attn_varlen_func", "hstu_softmax_attn_varlen_func"]

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _handle(device, create="hstu_attn_create", *args):
    index = -1 if device.type == "cpu" else device.index if device.index is not None else torch.cuda.current_device()
    return handle_of(index, create, *args)


def _address(tensor):
    return None if tensor is None else tensor.data_ptr()


def _rows(tensor):
    """A tensor whose rows (heads, dim) are contiguous; distances between rows stay."""
    heads, dim = tensor.shape[1:]
    fits = tensor.stride(2) == 1 and (heads == 1 or tensor.stride(1) == dim) and tensor.stride(0) >= heads * dim
    return tensor if fits else tensor.contiguous()


def _int32(tensor, name="func"):
    """Offsets and counts as the library reads them.  Values are looked at on the CPU only, where nobody waits for it."""
    if tensor is None:
        return None
    if tensor.dtype not in (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8):
        raise _l.UsageError(f"{name}: integers, not {tensor.dtype}")
    result = tensor.to(torch.int32).contiguous()
    if tensor.dtype == torch.int64 and tensor.device.type == "cpu" and not torch.compiler.is_compiling() and \
            not torch.equal(result.long(), tensor):
        raise _l.UsageError(f"{name}: a number does not fit 32 bits")
    return result


def _check_types(function, q, k, v):
    """The CPU computes in float32, whatever the floating point type."""
    if not q.dtype == k.dtype == v.dtype or not (q.dtype in _DTYPES or q.dtype == torch.float64 and not q.is_cuda):
        raise _l.UsageError(f"{function}: q, k and v are of one type, float32, bfloat16 or float16, not {q.dtype}, {k.dtype} and "
                            f"{v.dtype}")
    if not q.device == k.device == v.device:
        raise _l.UsageError(f"{function}: q, k and v are on {q.device}, {k.device} and {v.device}; they must be on one device")


def _fill(q, k, v, cu_q, cu_k, contexts, targets, rab, func, max_q, max_k, scaling, group, left, right, alpha):
    a = _Args()
    _l.lib.hstu_attn_varlen_defaults(_l.reference(a))
    a.dtype, a.batch_size, a.num_heads = _DTYPES[q.dtype], cu_q.numel() - 1, q.shape[1]
    a.dim_qk, a.dim_v, a.total_q, a.total_k = q.shape[2], v.shape[2], q.shape[0], k.shape[0]
    a.cu_seqlens_q, a.cu_seqlens_k = _address(cu_q), _address(cu_k)
    a.q, a.k, a.v = _address(q), _address(k), _address(v)
    a.stride_q, a.stride_k, a.stride_v = (t.stride(0) if t.shape[0] > 1 else 0 for t in (q, k, v))
    a.alpha, a.num_contexts, a.num_targets = alpha, _address(contexts), _address(targets)
    set_integers(a, max_seqlen_q=max_q, max_seqlen_k=max_k, scaling_seqlen=scaling, window_left=left, window_right=right,
                 target_group_size=group)
    if func is not None:
        a.func, a.n_func, a.func_stride = _address(func), func.shape[0], func.stride(0)
    if rab is not None:
        a.rab, a.rab_heads = _address(rab), rab.shape[1]
    a.is_deterministic = int(torch.are_deterministic_algorithms_enabled())
    return a


def _on(device, work):
    """work(stream) with the device of the tensors as the current one."""
    if device.type != "cuda":
        return work(None)
    with torch.cuda.device(device):
        return work(c_void_p(torch.cuda.current_stream(device).cuda_stream))


def _run(name, tensor, args):
    _on(tensor.device, lambda stream: _l.call(name, _handle(tensor.device), _l.reference(args), stream))


def _computed(tensor):
    """The CPU computes in float32."""
    return tensor.float() if tensor is not None and tensor.device.type == "cpu" else tensor


@torch.library.custom_op("hstu::attn_varlen", mutates_args=())
def _attn(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, contexts: Optional[Tensor],
          targets: Optional[Tensor], rab: Optional[Tensor], func: Optional[Tensor], max_q: int, max_k: int, scaling: int,
          group: int, left: int, right: int, alpha: float, has_drab: bool) -> Tensor:
    a, b, c = (_rows(_computed(t)) for t in (q, k, v))
    bias = None if rab is None else _computed(rab).contiguous()
    out = a.new_empty((q.shape[0], q.shape[1], v.shape[2]))
    args = _fill(a, b, c, cu_q, cu_k, contexts, targets, bias, func, max_q, max_k, scaling, group, left, right, alpha)
    args.out = _address(out)
    _run("hstu_attn_varlen_fwd", out, args)
    return out.to(q.dtype)


@_attn.register_fake
def _(q, k, v, cu_q, cu_k, contexts, targets, rab, func, max_q, max_k, scaling, group, left, right, alpha, has_drab):
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


@torch.library.custom_op("hstu::attn_varlen_backward", mutates_args=())
def _attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, contexts: Optional[Tensor],
                   targets: Optional[Tensor], rab: Optional[Tensor], func: Optional[Tensor], max_q: int, max_k: int,
                   scaling: int, group: int, left: int, right: int, alpha: float,
                   has_drab: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, c, d = (_computed(t).contiguous() for t in (q, k, v, dout))
    bias = None if rab is None else _computed(rab).contiguous()
    dq, dk, dv = torch.empty_like(a), torch.empty_like(b), torch.empty_like(c)
    drab = torch.zeros(rab.shape if has_drab and rab is not None else (0,), dtype=torch.float32, device=q.device)
    args = _fill(a, b, c, cu_q, cu_k, contexts, targets, bias, func, max_q, max_k, scaling, group, left, right, alpha)
    args.dout, args.dq, args.dk, args.dv = _address(d), _address(dq), _address(dk), _address(dv)
    args.drab = _address(drab) if drab.numel() > 0 else None
    _run("hstu_attn_varlen_bwd", dq, args)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), drab.to(q.dtype)


@_attn_backward.register_fake
def _(dout, q, k, v, cu_q, cu_k, contexts, targets, rab, func, max_q, max_k, scaling, group, left, right, alpha,
      has_drab):
    drab = q.new_empty(rab.shape if has_drab and rab is not None else (0,))
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), drab


def _save(ctx, inputs, output):
    tensors, ctx.rest = inputs[:9], inputs[9:]
    ctx.save_for_backward(*tensors)


def _backward(ctx, dout):
    tensors = ctx.saved_tensors
    dq, dk, dv, drab = torch.ops.hstu.attn_varlen_backward(dout, *tensors, *ctx.rest)
    return (dq, dk, dv, None, None, None, None, drab if ctx.rest[-1] else None, None) + (None,) * len(ctx.rest)


_attn.register_autograd(_backward, setup_context=_save)


def _refuse(**given):
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == -1):
            raise _l.UnsupportedError(f"hstu_attn_varlen_func: {name} is not supported")


def _join_pages(k, v, cu_q, cu_k, targets, kv_cache, page_offsets, page_ids, last_page_lens):
    """Keys and values of each sequence in one piece: those in its pages of the cache, then those of its targets, which are
    the last rows of k and v.  Waits for the GPU once."""
    if page_offsets is None or page_ids is None or last_page_lens is None:
        raise _l.UsageError("hstu_attn_varlen_func: kv_cache needs page_offsets, page_ids and last_page_lens")
    if kv_cache.dim() != 5 or kv_cache.shape[1] != 2 or kv_cache.shape[3:] != k.shape[1:]:
        raise _l.UsageError(f"hstu_attn_varlen_func: kv_cache {tuple(kv_cache.shape)} is not (pages, 2, page size, heads, "
                            "dim)")
    size, batch, lengths = kv_cache.shape[2], cu_k.numel() - 1, cu_k[1:] - cu_k[:-1]
    if targets is None:
        targets = torch.zeros_like(lengths)
    n_pages = page_offsets[1:] - page_offsets[:-1]
    cached = torch.where(n_pages > 0, (n_pages - 1) * size + last_page_lens, 0)
    total, wrong = torch.stack([cu_k[-1].long(), (lengths != cached + targets).sum()]).tolist()
    if wrong:
        raise _l.UsageError(f"hstu_attn_varlen_func: the lengths of {wrong} of {batch} sequences in cu_seqlens_k are not "
                            "those of their pages and targets")
    of = torch.repeat_interleave(torch.arange(batch, device=k.device), lengths, output_size=total)
    at = torch.arange(total, device=k.device) - cu_k[of]
    is_cached = at < cached[of]
    page = page_ids[torch.where(is_cached, page_offsets[of] + at // size, 0)] if page_ids.numel() else torch.zeros_like(of)
    row = torch.where(is_cached, 0, cu_q[of + 1] - targets[of] + at - cached[of])

    def joined(which, new):
        if kv_cache.shape[0] == 0:
            return new[row]
        return torch.where(is_cached[:, None, None], kv_cache[page.long(), which, at % size], new[row])
    return joined(0, k), joined(1, v)


def hstu_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *args: Any,
                          **given: Any) -> Tensor:
    """silu(alpha (q k + rab)) v / scaling_seqlen over jagged sequences, under the mask of the arguments.

    q: (total_q, heads, dim), k and v: (total_k, heads, dim); cu_seqlens_*: (batch + 1) int32; rab: (batch, heads or 1,
    max_seqlen_k, max_seqlen_k); func: (odd, total_q or more) int32, or (1, odd, ...).  kv_cache: (pages, 2, page size, heads,
    dim) with the keys and values of the history, page_ids[page_offsets[b]:page_offsets[b + 1]] those of sequence b; then k and
    v have a row for each query, and of these the targets' are read.  Not supported, with an exception: seqused_* and quant_mode.

    Arguments by position may come in the order of FBGEMM (seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, scaling_seqlen,
    num_contexts, ...) or of NVIDIA's own wheels (max_seqlen_q, max_seqlen_k, num_contexts, ...): a number in the sixth
    place tells them apart."""
    names = _WHEEL if args and isinstance(args[0], int) else _FBGEMM
    if len(args) > len(names):
        raise TypeError(f"hstu_attn_varlen_func: {5 + len(args)} arguments by position; at most {5 + len(names)} can be")
    for name in names[:len(args)]:
        if name in given:
            raise TypeError(f"hstu_attn_varlen_func: {name} is given twice")
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **dict(zip(names, args)), **given)


def _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
            scaling_seqlen=-1, num_contexts=None, num_targets=None, target_group_size=1, window_size=(-1, -1), alpha=1.0,
            rab=None, has_drab=False, kv_cache=None, page_offsets=None, page_ids=None, last_page_lens=None, func=None,
            quant_mode=-1, cu_seqlens_t=None):
    _refuse(seqused_q=seqused_q, seqused_k=seqused_k, quant_mode=quant_mode)
    if has_drab and rab is None:
        raise _l.UsageError("hstu_attn_varlen_func: has_drab without rab")
    if max_seqlen_q is None or max_seqlen_k is None:
        raise _l.UsageError("hstu_attn_varlen_func: max_seqlen_q and max_seqlen_k are needed")
    _check_types("hstu_attn_varlen_func", q, k, v)
    if q.dim() != 3 or k.dim() != 3 or v.dim() != 3 or k.shape[:2] != v.shape[:2] or q.shape[1:] != k.shape[1:]:
        raise _l.UsageError(f"hstu_attn_varlen_func: shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; q, k "
                            "and v are (tokens, heads, dim)")
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise _l.UsageError(f"hstu_attn_varlen_func: cu_seqlens of shapes {tuple(cu_seqlens_q.shape)} and "
                            f"{tuple(cu_seqlens_k.shape)}; they are (batch + 1) each")
    if rab is not None and (rab.dim() != 4 or rab.shape[0] != cu_seqlens_k.numel() - 1 or
                            rab.shape[1] not in (1, q.shape[1]) or rab.shape[2:] != (max_seqlen_k, max_seqlen_k)):
        raise _l.UsageError(f"hstu_attn_varlen_func: rab {tuple(rab.shape)} is not (batch, heads or 1, max_seqlen_k, "
                            "max_seqlen_k)")
    if func is not None and func.dim() == 3 and func.shape[0] == 1:  # NVIDIA's has a dimension for heads, which is 1
        func = func[0]
    if func is not None and (func.dim() != 2 or func.shape[1] < q.shape[0]):
        raise _l.UsageError(f"hstu_attn_varlen_func: func {tuple(func.shape)} is not (odd, total_q)")
    for name, counts in (("num_contexts", num_contexts), ("num_targets", num_targets)):
        if counts is not None and counts.numel() != cu_seqlens_q.numel() - 1:
            raise _l.UsageError(f"hstu_attn_varlen_func: {name} is not one a sequence")
    if rab is not None:
        rab = rab.to(q.dtype)
    if kv_cache is not None:
        k, v = _join_pages(k, v, cu_seqlens_q, cu_seqlens_k, num_targets, kv_cache, page_offsets, page_ids, last_page_lens)
    left, right = (int(w) for w in window_size)
    cu_q, cu_k = _int32(cu_seqlens_q, "cu_seqlens_q"), _int32(cu_seqlens_k, "cu_seqlens_k")
    return _attn(q, k, v, cu_q, cu_k, _int32(num_contexts, "num_contexts"), _int32(num_targets, "num_targets"), rab, _int32(func),
                 int(max_seqlen_q), int(max_seqlen_k), int(scaling_seqlen), int(target_group_size), left,
                 right, float(alpha), bool(has_drab))


_FBGEMM = tuple(inspect.signature(_varlen).parameters)[5:-1]
_WHEEL = ("max_seqlen_q", "max_seqlen_k", "num_contexts", "num_targets", "target_group_size", "window_size", "alpha", "rab",
          "has_drab")
hstu_attn_varlen_func.__signature__ = inspect.signature(_varlen)


def hstu_attn_qkvpacked_func(qkv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *args: Any, **given: Any) -> Tensor:
    """hstu_attn_varlen_func with q, k and v in one tensor, (tokens, 3, heads, dim), which is not copied."""
    return hstu_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens_q, cu_seqlens_k, *args, **given)


from .softmax_attention import hstu_softmax_attn_varlen_func  # noqa: E402  (it needs the names above)
