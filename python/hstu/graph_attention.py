"""Attention on a graph for torch tensors: fused scores, weights and sums along the edges of a CSR graph, with autograd.

    graph = hstu.graph_attention.Graph(indptr, indices, n_columns)
    out = hstu.graph_attention.graph_attn(graph, q=q, k=k, v=v, bias=edge_features)
    out = hstu.graph_attention.gat(graph, (h * a_l).sum(-1), (h * a_r).sum(-1), h)

For each edge (i, j) and head x = alpha q_i . k_j + left_i + right_j + bias_ij, w = f(x), of negative x f(slope x), and out_i
is the sum (or mean, or maximum) over j of w v_j.  CUDA tensors run on the current stream in float32, bfloat16 or float16;
CPU tensors are computed in float32.  Terms and weights are float32."""
import itertools
import os
import weakref
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_uint8, c_void_p
from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _library as _l
from .attention import _DTYPES, _address, _int32, _on, _rows

__all__ = ["Graph", "gat", "graph_attn", "sddmm", "spmm"]

_WEIGHTS = ("softmax", "silu", "sigmoid", "identity")
_SUMS = ("sum", "mean", "max")


class _Args(Structure):
    _fields_ = [("dtype", c_int32), ("num_heads", c_int32), ("dim_qk", c_int32), ("dim_v", c_int32), ("weight", c_int32),
                ("sum", c_int32), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("out", c_void_p), ("stride_q", c_int64),
                ("stride_k", c_int64), ("stride_v", c_int64), ("stride_out", c_int64), ("alpha", c_float), ("slope", c_float),
                ("left", c_void_p), ("right", c_void_p), ("bias", c_void_p), ("bias_heads", c_int32), ("row_sum", c_void_p),
                ("weights", c_void_p), ("best", c_void_p), ("dout", c_void_p), ("dweights", c_void_p), ("dq", c_void_p),
                ("dk", c_void_p), ("dv", c_void_p), ("dleft", c_void_p), ("dright", c_void_p), ("dbias", c_void_p),
                ("later", c_uint8 * 256)]  # fields of later versions


for _name, _types in {"hstu_graph_attn_create": [POINTER(c_void_p), c_int32, c_int32, c_int32, c_void_p, c_void_p],
                      "hstu_graph_attn_fwd": [c_void_p, POINTER(_Args), c_void_p],
                      "hstu_graph_attn_bwd": [c_void_p, POINTER(_Args), c_void_p]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
_l.lib.hstu_graph_attn_defaults.argtypes, _l.lib.hstu_graph_attn_defaults.restype = [POINTER(_Args)], None
_l.lib.hstu_graph_attn_destroy.argtypes, _l.lib.hstu_graph_attn_destroy.restype = [c_void_p], None

_numbers = itertools.count(1)
_graphs: "weakref.WeakValueDictionary[int, Graph]" = weakref.WeakValueDictionary()


def _destroy(handles):
    for (pid, _), handle in handles.items():
        if pid == os.getpid():
            _l.lib.hstu_graph_attn_destroy(handle)


class Graph:
    """A bipartite graph in CSR: row i has the edges indptr[i] .. indptr[i + 1] - 1, which lead to columns `indices`, ascending
    in a row and without repetitions.  It is checked and laid out once for each device that uses it."""

    def __init__(self, indptr: Any, indices: Any, n_columns: int):
        begin, columns = (torch.as_tensor(t).detach().to("cpu") for t in (indptr, indices))
        if begin.dim() != 1 or columns.dim() != 1 or begin.numel() < 1:
            raise _l.UsageError("Graph: indptr (rows + 1) and indices (edges) have one dimension")
        self.indptr, self.indices = _int32(begin, "indptr"), _int32(columns, "indices")
        self.n_rows, self.n_columns, self.n_edges = begin.numel() - 1, int(n_columns), columns.numel()
        if int(self.indptr[-1]) != self.n_edges:
            raise _l.UsageError(f"Graph: indptr ends with {int(self.indptr[-1])}, but there are {self.n_edges} indices")
        self.number = next(_numbers)
        self._handles: dict = {}
        self.handle(-1)  # refuses a graph that is wrong where it is made
        weakref.finalize(self, _destroy, self._handles)
        _graphs[self.number] = self

    def handle(self, device):
        key = (os.getpid(), device)
        if key not in self._handles:
            made = c_void_p()
            _l.call("hstu_graph_attn_create", _l.reference(made), device, self.n_rows, self.n_columns, _address(self.indptr),
                    _address(self.indices))
            self._handles[key] = made
        return self._handles[key]


def _fill(graph, q, k, v, left, right, bias, weight, total, alpha, slope):
    a, heads = _Args(), _heads(q, v, left, right, bias)
    _l.lib.hstu_graph_attn_defaults(_l.reference(a))
    acts = v if v is not None else q
    a.dtype, a.num_heads = _DTYPES[acts.dtype] if acts is not None else 0, heads
    a.weight, a.sum, a.alpha, a.slope = weight, total, alpha, slope
    a.dim_qk, a.dim_v = 0 if q is None else q.shape[2], 0 if v is None else v.shape[2]
    a.q, a.k, a.v, a.left, a.right, a.bias = (_address(t) for t in (q, k, v, left, right, bias))
    a.stride_q, a.stride_k, a.stride_v = (t.stride(0) if t is not None and t.shape[0] > 1 else 0 for t in (q, k, v))
    a.bias_heads = 1 if bias is None else bias.shape[1]
    return a


def _heads(q, v, left, right, bias):
    return next((t.shape[1] for t in (q, v, left, right, bias) if t is not None), 1)


def _run(name, graph, device, args):
    index = -1 if device.type == "cpu" else device.index if device.index is not None else torch.cuda.current_device()
    _on(device, lambda stream: _l.call(name, graph.handle(index), _l.reference(args), stream))


def _device(*tensors):
    return next(t.device for t in tensors if t is not None)


def _results(graph, q, v, left, right, bias, weight, total, wants_weights, device):
    heads, none = _heads(q, v, left, right, bias), (0,)
    like = dict(device=device, dtype=torch.float32)
    width = () if v is None else (graph.n_rows, heads, v.shape[2])
    out = torch.empty(width or none, device=device, dtype=torch.float32 if v is None else v.dtype)
    return (out, torch.empty((graph.n_rows, heads) if weight == 0 else none, **like),
            torch.empty((graph.n_edges, heads) if wants_weights else none, **like),
            torch.empty(width if total == 2 and width else none, device=device, dtype=torch.int32))


def _given(tensor):
    return _address(tensor) if tensor.numel() else None


@torch.library.custom_op("hstu::graph_attn", mutates_args=())
def _attn(q: Optional[Tensor], k: Optional[Tensor], v: Optional[Tensor], left: Optional[Tensor], right: Optional[Tensor],
          bias: Optional[Tensor], graph: int, weight: int, total: int, alpha: float, slope: float,
          wants_weights: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (None if t is None else _rows(t) for t in (q, k, v))
    left, right, bias = (None if t is None else t.contiguous() for t in (left, right, bias))
    device, g = _device(q, v, left, right, bias), _graphs[graph]
    out, row_sum, weights, best = _results(g, q, v, left, right, bias, weight, total, wants_weights, device)
    args = _fill(g, q, k, v, left, right, bias, weight, total, alpha, slope)
    args.out, args.row_sum, args.weights, args.best = (_given(t) for t in (out, row_sum, weights, best))
    _run("hstu_graph_attn_fwd", g, device, args)
    return out, row_sum, weights, best


@_attn.register_fake
def _(q, k, v, left, right, bias, graph, weight, total, alpha, slope, wants_weights):
    device = _device(q, v, left, right, bias)
    return _results(_graphs[graph], q, v, left, right, bias, weight, total, wants_weights, device)


@torch.library.custom_op("hstu::graph_attn_backward", mutates_args=())
def _attn_backward(dout: Optional[Tensor], dweights: Optional[Tensor], q: Optional[Tensor], k: Optional[Tensor],
                   v: Optional[Tensor], left: Optional[Tensor], right: Optional[Tensor], bias: Optional[Tensor], out: Tensor,
                   row_sum: Tensor, weights: Tensor, best: Tensor, graph: int, weight: int, total: int, alpha: float,
                   slope: float, wanted: int) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = [None if t is None else t.contiguous() for t in (q, k, v, left, right, bias)]
    g, device = _graphs[graph], _device(*inputs)
    if dout is None and v is not None:
        dout = torch.zeros_like(out)
    dout, dweights = (None if t is None else t.contiguous() for t in (dout, dweights))
    gradients = [torch.empty_like(t) if t is not None and wanted >> i & 1 else torch.empty(0, device=device)
                 for i, t in enumerate(inputs)]
    args = _fill(g, *inputs, weight, total, alpha, slope)
    args.out, args.row_sum, args.weights, args.best = (_given(t) for t in (out, row_sum, weights, best))
    args.dout, args.dweights = _address(dout), _address(dweights)
    args.dq, args.dk, args.dv, args.dleft, args.dright, args.dbias = (_given(t) for t in gradients)
    _run("hstu_graph_attn_bwd", g, device, args)
    return tuple(gradients)


@_attn_backward.register_fake
def _(dout, dweights, q, k, v, left, right, bias, out, row_sum, weights, best, graph, weight, total, alpha, slope, wanted):
    inputs = (q, k, v, left, right, bias)
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) if t is not None and wanted >> i & 1 else
                 torch.empty(0, device=out.device) for i, t in enumerate(inputs))


def _save(ctx, inputs, output):
    ctx.graph, ctx.rest = _graphs[inputs[6]], inputs[6:11]  # the graph lives until its backward pass
    ctx.has_v = inputs[2] is not None
    ctx.save_for_backward(*(t for t in inputs[:6] if t is not None), *output)
    ctx.given = tuple(t is not None for t in inputs[:6])
    ctx.mark_non_differentiable(output[1], output[3])


def _backward(ctx, dout, _, dweights, __):
    saved = list(ctx.saved_tensors)
    inputs = [saved.pop(0) if given else None for given in ctx.given]
    wanted = sum(1 << i for i in range(6) if ctx.given[i] and ctx.needs_input_grad[i])
    weights = saved[2]
    gradients = torch.ops.hstu.graph_attn_backward(dout if ctx.has_v else None, dweights if weights.numel() else None, *inputs,
                                                   *saved, *ctx.rest, wanted)
    return (*(g if wanted >> i & 1 else None for i, g in enumerate(gradients)), *[None] * 6)


_attn.register_autograd(_backward, setup_context=_save)


def _checked(name, tensor, *shape):
    """Refuses another shape; None stands for any number."""
    if tensor is not None and (tensor.dim() != len(shape) or any(s not in (None, t) for s, t in zip(shape, tensor.shape))):
        raise _l.UsageError(f"graph_attn: {name} {tuple(tensor.shape)} is not ({', '.join('?' if s is None else str(s) for s in shape)})")


def _choice(name, value, choices):
    if value not in choices:
        raise _l.UsageError(f"graph_attn: {name} is {value!r}; it is one of {', '.join(choices)}")
    return choices.index(value)


def graph_attn(graph: Graph, q: Optional[Tensor] = None, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
               left: Optional[Tensor] = None, right: Optional[Tensor] = None, bias: Optional[Tensor] = None,
               weight: str = "softmax", reduce: str = "sum", alpha: Optional[float] = None, slope: float = 1.0,
               needs_weights: bool = False) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Attention along the edges of a graph.  q: (rows, heads, dim), k: (columns, heads, dim), v: (columns, heads, dim_v);
    left: (rows, heads), right: (columns, heads); bias: (edges,), shared by heads, or (edges, heads).  What is None is left out;
    without any term the scores are 1.  weight: softmax, silu, sigmoid or identity; reduce: sum, mean or max; alpha:
    1 / sqrt(dim).  With needs_weights also the weights, (edges, heads); without v these alone."""
    kind, total = _choice("weight", weight, _WEIGHTS), _choice("reduce", reduce, _SUMS)
    if bias is not None and bias.dim() == 1:
        bias = bias[:, None]
    if (q is None) != (k is None) or all(t is None for t in (q, v, left, right, bias)):
        raise _l.UsageError("graph_attn: q and k go together, and some tensor must be given")
    heads = max(_heads(q, v, left, right, None), 1 if bias is None else bias.shape[1])
    for name, tensor, *shape in (("q", q, graph.n_rows, heads, None), ("k", k, graph.n_columns, heads, None),
                                 ("v", v, graph.n_columns, heads, None), ("left", left, graph.n_rows, heads),
                                 ("right", right, graph.n_columns, heads), ("bias", bias, graph.n_edges, None)):
        _checked(name, tensor, *shape)
    acts = [t for t in (q, k, v) if t is not None]
    if len({t.dtype for t in acts}) > 1 or len({t.device for t in (*acts, left, right, bias) if t is not None}) > 1:
        raise _l.UsageError("graph_attn: q, k and v are of one type, and all tensors on one device")
    if q is not None and q.shape[2] != k.shape[2]:
        raise _l.UsageError(f"graph_attn: dimension {q.shape[2]} of q and {k.shape[2]} of k")
    is_cpu, dtype = _device(*acts, left, right, bias).type == "cpu", acts[0].dtype if acts else torch.float32
    q, k, v = (t.float() if t is not None and is_cpu else t for t in (q, k, v))
    left, right, bias = (None if t is None else t.float() for t in (left, right, bias))
    if alpha is None:
        alpha = 1.0 if q is None else q.shape[2] ** -0.5
    out, _, weights, _ = _attn(q, k, v, left, right, bias, graph.number, kind, total, float(alpha), float(slope),
                               needs_weights or v is None)
    if v is None:
        return weights
    return (out.to(dtype), weights) if needs_weights else out.to(dtype)


def gat(graph: Graph, left: Tensor, right: Tensor, h: Tensor, slope: float = 0.2, bias: Optional[Tensor] = None) -> Tensor:
    """GAT: the softmax of LeakyReLU(left_i + right_j + bias_ij) over the edges of a row, times h: (columns, heads, dim)."""
    return graph_attn(graph, v=h, left=left, right=right, bias=bias, slope=slope)


def spmm(graph: Graph, x: Tensor, values: Optional[Tensor] = None, reduce: str = "sum") -> Tensor:
    """The graph's matrix times x: (columns, dim <= 256) or (columns, heads, dim); values: (edges,), ones if None."""
    out = graph_attn(graph, v=x if x.dim() == 3 else x[:, None], bias=values, weight="identity", reduce=reduce)
    return out if x.dim() == 3 else out[:, 0]


def sddmm(graph: Graph, q: Tensor, k: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha q_i . k_j for each edge: (edges,) of (rows, dim) and (columns, dim); with heads (edges, heads)."""
    out = graph_attn(graph, q if q.dim() == 3 else q[:, None], k if k.dim() == 3 else k[:, None], weight="identity", alpha=alpha)
    return out if q.dim() == 3 else out[:, 0]
