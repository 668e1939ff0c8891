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
from ctypes import POINTER, c_char_p, c_int32, c_void_p, create_string_buffer
from struct import Struct
from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _library as _l
from .attention import _DTYPES, _address, _int32

__all__ = ["Graph", "gat", "graph_attn", "sddmm", "spmm"]

_WEIGHTS = ("softmax", "silu", "sigmoid", "identity")
_SUMS = ("sum", "mean", "max")

for _name, _types in {"hstu_graph_attn_create": [POINTER(c_void_p), c_int32, c_int32, c_int32, c_void_p, c_void_p],
                      "hstu_graph_attn_fwd": [c_void_p, c_char_p, c_void_p],
                      "hstu_graph_attn_bwd": [c_void_p, c_char_p, c_void_p]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
_l.lib.hstu_graph_attn_defaults.argtypes, _l.lib.hstu_graph_attn_defaults.restype = [c_char_p], None
_l.lib.hstu_graph_attn_destroy.argtypes, _l.lib.hstu_graph_attn_destroy.restype = [c_void_p], None

# hstu_graph_attn_args: six sizes and choices; q, k, v, out; their strides; alpha, slope; left, right, bias; bias_heads;
# row_sum, weights, best, dout, dweights and six gradients.  Packed at once: a ctypes.Structure takes ten times as long.
_ARGS = Struct("@6i4P4q2f3Pi11P")
_defaults = create_string_buffer(_ARGS.size + 256)
_l.lib.hstu_graph_attn_defaults(_defaults)
_LATER = _defaults.raw[_ARGS.size:]  # fields of later versions

_NO_GRADIENTS = (0,) * 8
_MAX_PLANS = 256  # of a graph; beyond, shapes change all the time
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
        begin, columns = (torch.as_tensor(t).detach().to("cpu", copy=True) for t in (indptr, indices))  # the caller's may change
        if begin.dim() != 1 or columns.dim() != 1 or begin.numel() < 1:
            raise _l.UsageError("Graph: indptr (rows + 1) and indices (edges) have one dimension")
        self.indptr, self.indices = _int32(begin, "indptr"), _int32(columns, "indices")
        self.n_rows, self.n_edges = begin.numel() - 1, columns.numel()
        self.n_columns = _l.integer(c_int32, n_columns, "n_columns")
        if int(self.indptr[-1]) != self.n_edges:
            raise _l.UsageError(f"Graph: indptr ends with {int(self.indptr[-1])}, but there are {self.n_edges} indices")
        self.number = next(_numbers)
        self._handles: dict = {}
        self._plans: dict = {}
        self.handle(-1)  # refuses a graph that is wrong where it is made
        weakref.finalize(self, _destroy, self._handles)
        _graphs[self.number] = self

    def __reduce__(self):  # a copy has handles of its own, also in another process
        return type(self), (self.indptr, self.indices, self.n_columns)

    def handle(self, device):
        key = (os.getpid(), device)
        if key not in self._handles:
            made = c_void_p()
            _l.call("hstu_graph_attn_create", _l.reference(made), device, self.n_rows, self.n_columns, _address(self.indptr),
                    _address(self.indices))
            self._handles[key] = made
        return self._handles[key]


def _choice(name, value, choices):
    if value not in choices:
        raise _l.UsageError(f"graph_attn: {name} is {value!r}; it is one of {', '.join(choices)}")
    return choices.index(value)


def _tail(given):
    """(heads,), or () where the tensors have no dimension of heads: there is one head."""
    q, _, v, left, right, bias = given
    act, term = q if q is not None else v, left if left is not None else right if right is not None else bias
    return tuple(act.shape[1:-1] if act is not None else term.shape[1:])


def _check(graph, given):
    """Refuses tensors that do not fit the graph or each other; None in a shape stands for any number."""
    q, k, v, left, right, bias = given
    there = [t for t in given if t is not None]
    if (q is None) != (k is None) or not there:
        raise _l.UsageError("graph_attn: q and k go together, and some tensor must be given")
    row, column = (graph.n_rows, *_tail(given)), (graph.n_columns, *_tail(given))
    edge = (graph.n_edges, None) if bias is not None and bias.dim() > 1 else (graph.n_edges,)
    for name, tensor, shape in zip("q k v left right bias".split(), given,
                                   ((*row, None), (*column, None), (*column, None), row, column, edge)):
        if tensor is not None and (tensor.dim() != len(shape) or any(s not in (None, t) for s, t in zip(shape, tensor.shape))):
            raise _l.UsageError(f"graph_attn: {name} {tuple(tensor.shape)} is not "
                                f"({', '.join('?' if s is None else str(s) for s in shape)})")
    if len({t.dtype for t in (q, k, v) if t is not None}) > 1 or len({t.device for t in there}) > 1:
        raise _l.UsageError("graph_attn: q, k and v are of one type, and all tensors on one device")
    if q is not None and q.shape[-1] != k.shape[-1]:
        raise _l.UsageError(f"graph_attn: dimension {q.shape[-1]} of q and {k.shape[-1]} of k")


def _results(graph, given, weight, total, wants_weights):
    """(shape, type) of out, row_sum, weights and best; None: there is none."""
    q, _, v, *_ = given
    act, tail = q if q is not None else v, _tail(given)
    width = None if v is None else (graph.n_rows, *tail, v.shape[-1])
    return (width and (width, act.dtype), ((graph.n_rows, *tail), torch.float32) if weight == 0 else None,
            ((graph.n_edges, *tail), torch.float32) if wants_weights else None,
            (width, torch.int32) if width and total == 2 else None)


def _is_loose(t, n_tail):
    """Whether rows have gaps within; distances between rows stay."""
    if t.is_contiguous():
        return False
    size = t.shape[-1]
    inner = t.stride(-1) == 1 and (n_tail == 0 or t.shape[1] == 1 or t.stride(1) == size)
    return not inner or t.stride(0) < t[0].numel()


class _Plan:
    """What a call with such tensors needs besides addresses: made, with all checks, by the first of them."""
    __slots__ = ("kept", "brief", "device", "index", "sizes", "strides", "scales", "bias_heads", "loose", "is_empty")

    def __init__(self, graph, given, weight, total, alpha, slope, wants_weights):
        _check(graph, given)
        q, _, v, _, _, bias = given
        act, there, tail = q if q is not None else v, [t for t in given if t is not None], _tail(given)
        dtype, self.device = torch.float32 if act is None else act.dtype, there[0].device
        if dtype not in _DTYPES:
            raise _l.UsageError(f"graph_attn: float32, bfloat16 or float16, not {dtype}")
        self.index = self.device.index if self.device.type == "cuda" else -1
        self.kept = _results(graph, given, weight, total, wants_weights)
        self.brief = (self.kept[0], None, self.kept[2], None)  # without what only the backward pass reads
        self.sizes = (_DTYPES[dtype], tail[0] if tail else 1, 0 if q is None else q.shape[-1], 0 if v is None else v.shape[-1],
                      weight, total)
        self.loose = tuple(i for i, t in enumerate(given) if t is not None and
                           (_is_loose(t, len(tail)) if i < 3 else not t.is_contiguous()))
        self.strides = tuple(t.stride(0) if t is not None and i not in self.loose and t.shape[0] > 1 else 0
                             for i, t in enumerate(given[:3])) + (0,)
        self.scales, self.bias_heads = (alpha, slope), bias.shape[1] if bias is not None and bias.dim() > 1 else 1
        self.is_empty = graph.n_edges == 0


def _plan_of(graph, given, weight, total, alpha, slope, wants_weights):
    key = (weight, total, alpha, slope, wants_weights,
           *[None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in given])
    plan = graph._plans.get(key)
    if plan is None:
        if len(graph._plans) >= _MAX_PLANS:
            graph._plans.clear()
        plan = graph._plans[key] = _Plan(graph, given, weight, total, alpha, slope, wants_weights)
    return plan


def _call(function, graph, plan, args):
    """Runs on the current stream, with the device of the tensors as the current one."""
    if plan.index < 0:
        status = function(graph.handle(-1), args, None)
    elif plan.index == torch._C._cuda_getDevice():
        status = function(graph.handle(plan.index), args, torch._C._cuda_getCurrentRawStream(plan.index))
    else:
        with torch.cuda.device(plan.index):
            return _call(function, graph, plan, args)
    if status != 0:
        _l.refuse(status)


def _pointers(tensors):
    return [0 if t is None else t.data_ptr() for t in tensors]


def _forward(graph, plan, given, wanted):
    """out, row_sum, weights and best: those of plan.kept or plan.brief."""
    if plan.loose:
        given = [t.contiguous() if i in plan.loose else t for i, t in enumerate(given)]
    make = torch.zeros if plan.is_empty else torch.empty
    results = [make(like[0], dtype=like[1], device=plan.device) if like else None for like in wanted]
    if not plan.is_empty:
        q, k, v, *terms = _pointers(given)
        out, *others = _pointers(results)
        _call(_l.lib.hstu_graph_attn_fwd, graph, plan,
              _ARGS.pack(*plan.sizes, q, k, v, out, *plan.strides, *plan.scales, *terms, plan.bias_heads, *others,
                         *_NO_GRADIENTS) + _LATER)
    return results


def _gradients(graph, plan, given, results, dout, dweights, wanted):
    """Of those tensors that are wanted; None: of no other."""
    out = results[0]
    if out is not None:
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
    dweights = None if dweights is None else dweights.contiguous()
    given = [None if t is None else t.contiguous() for t in given]
    make = torch.zeros_like if plan.is_empty else torch.empty_like
    gradients = [make(t) if want else None for t, want in zip(given, wanted)]
    if not plan.is_empty:
        q, k, v, *terms = _pointers(given)
        at, *others = _pointers(results)
        _call(_l.lib.hstu_graph_attn_bwd, graph, plan,
              _ARGS.pack(*plan.sizes, q, k, v, at, 0, 0, 0, 0, *plan.scales, *terms, plan.bias_heads, *others,
                         *_pointers((dout, dweights, *gradients))) + _LATER)
    return gradients


class _Attention(torch.autograd.Function):
    """The eager call: the operators below cost several times as long."""

    @staticmethod
    def forward(ctx, graph, rest, plan, *given):
        results = _forward(graph, plan, given, plan.kept)
        ctx.graph, ctx.rest, ctx.plan = graph, rest, plan
        ctx.save_for_backward(*given, *results)
        ctx.set_materialize_grads(False)
        return results[0], results[2]

    @staticmethod
    def backward(ctx, dout, dweights):
        given, results, wanted = ctx.saved_tensors[:6], ctx.saved_tensors[6:], ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # to be differentiated again: the operator says that it cannot be
            gradients = _backward_by_op(ctx.graph, ctx.rest, given, [_or_none(t, given) for t in results], dout, dweights, wanted)
        else:
            gradients = _gradients(ctx.graph, ctx.plan, given, results, dout, dweights, wanted)
        return (None, None, None, *gradients)


def _or_none(tensor, given):
    """Operators return tensors: an empty one for none."""
    return torch.empty(0, device=next(t.device for t in given if t is not None)) if tensor is None else tensor


@torch.library.custom_op("hstu::graph_attn", mutates_args=())
def _attn(q: Optional[Tensor], k: Optional[Tensor], v: Optional[Tensor], left: Optional[Tensor], right: Optional[Tensor],
          bias: Optional[Tensor], graph: int, weight: int, total: int, alpha: float, slope: float,
          wants_weights: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    g, given = _graphs[graph], (q, k, v, left, right, bias)
    plan = _plan_of(g, given, weight, total, alpha, slope, wants_weights)
    out, row_sum, weights, best = (_or_none(t, given) for t in _forward(g, plan, given, plan.kept))
    return out, row_sum, weights, best


@_attn.register_fake
def _(q, k, v, left, right, bias, graph, weight, total, alpha, slope, wants_weights):
    given = (q, k, v, left, right, bias)
    none = _or_none(None, given)
    return tuple(none.new_empty(like[0], dtype=like[1]) if like else torch.empty_like(none)
                 for like in _results(_graphs[graph], given, weight, total, wants_weights))


@torch.library.custom_op("hstu::graph_attn_backward", mutates_args=())
def _attn_backward(dout: Optional[Tensor], dweights: Optional[Tensor], q: Optional[Tensor], k: Optional[Tensor],
                   v: Optional[Tensor], left: Optional[Tensor], right: Optional[Tensor], bias: Optional[Tensor], out: Tensor,
                   row_sum: Tensor, weights: Tensor, best: Tensor, graph: int, weight: int, total: int, alpha: float,
                   slope: float, wants_weights: bool, wanted: int) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    g, given = _graphs[graph], (q, k, v, left, right, bias)
    plan = _plan_of(g, given, weight, total, alpha, slope, wants_weights)
    results = [t if like else None for t, like in zip((out, row_sum, weights, best), plan.kept)]
    gradients = _gradients(g, plan, given, results, dout, dweights if wants_weights else None,
                           [wanted >> i & 1 for i in range(6)])
    dq, dk, dv, dleft, dright, dbias = (_or_none(t, given) for t in gradients)
    return dq, dk, dv, dleft, dright, dbias


@_attn_backward.register_fake
def _(dout, dweights, q, k, v, left, right, bias, out, row_sum, weights, best, graph, weight, total, alpha, slope, wants_weights,
      wanted):
    given = (q, k, v, left, right, bias)
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) if t is not None and wanted >> i & 1 else _or_none(None, given)
                 for i, t in enumerate(given))


def _backward_by_op(graph, rest, given, results, dout, dweights, wanted):
    bits = sum(1 << i for i, (t, want) in enumerate(zip(given, wanted)) if t is not None and want)
    gradients = torch.ops.hstu.graph_attn_backward(dout, dweights, *given, *results, graph.number, *rest, bits)
    return [t if bits >> i & 1 else None for i, t in enumerate(gradients)]


def _save(ctx, inputs, output):
    ctx.graph, ctx.rest = _graphs[inputs[6]], inputs[7:]  # the graph lives until its backward pass
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.mark_non_differentiable(output[1], output[3])


def _backward(ctx, dout, _, dweights, __):
    given, results, wants_weights = ctx.saved_tensors[:6], ctx.saved_tensors[6:], ctx.rest[-1]
    return (*_backward_by_op(ctx.graph, ctx.rest, given, results, dout if given[2] is not None else None,
                             dweights if wants_weights else None, ctx.needs_input_grad[:6]), *[None] * 6)


_attn.register_autograd(_backward, setup_context=_save)


def _is_eager(given):
    """Whether nobody but autograd looks on: no compiler, tracer, subclass or mode."""
    return not (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state()) and all(
        t is None or type(t) is Tensor or type(t) is torch.nn.Parameter for t in given)


def _attend(graph, given, rest):
    """out and weights, either of them None, of tensors in the types of the library."""
    if not _is_eager(given):
        _check(graph, given)
        out, _, weights, _ = _attn(*given, graph.number, *rest)
        return out if given[2] is not None else None, weights if rest[-1] else None
    plan = _plan_of(graph, given, *rest)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        return _Attention.apply(graph, rest, plan, *given)
    results = _forward(graph, plan, given, plan.brief)
    return results[0], results[2]


def _widened(given):
    """The CPU computes in float32, whatever the floating point type, and terms are float32; what is no such type is refused."""
    return tuple(t.float() if t is not None and t.dtype != torch.float32 and
                 (i > 2 or t.device.type == "cpu" and t.is_floating_point()) else t for i, t in enumerate(given))


def graph_attn(graph: Graph, q: Optional[Tensor] = None, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
               left: Optional[Tensor] = None, right: Optional[Tensor] = None, bias: Optional[Tensor] = None,
               weight: str = "softmax", reduce: str = "sum", alpha: Optional[float] = None, slope: float = 1.0,
               needs_weights: bool = False) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Attention along the edges of a graph.  q: (rows, heads, dim), k: (columns, heads, dim), v: (columns, heads, dim_v);
    left: (rows, heads), right: (columns, heads); bias: (edges,), shared by heads, or (edges, heads).  With one head the
    dimension of heads may be left out of all.  What is None is left out; without any term the scores are 1.  weight: softmax,
    silu, sigmoid or identity; reduce: sum, mean or max; alpha: 1 / sqrt(dim).  With needs_weights also the weights, (edges,
    heads); without v these alone."""
    kind, total = _choice("weight", weight, _WEIGHTS), _choice("reduce", reduce, _SUMS)
    if alpha is None:
        alpha = 1.0 if q is None else q.shape[-1] ** -0.5
    act = q if q is not None else v
    out, weights = _attend(graph, _widened((q, k, v, left, right, bias)),
                           (kind, total, float(alpha), float(slope), needs_weights or v is None))
    if v is None:
        return weights
    out = out if out.dtype == act.dtype else out.to(act.dtype)
    return (out, weights) if needs_weights else out


def gat(graph: Graph, left: Tensor, right: Tensor, h: Tensor, slope: float = 0.2, bias: Optional[Tensor] = None) -> Tensor:
    """GAT: the softmax of LeakyReLU(left_i + right_j + bias_ij) over the edges of a row, times h: (columns, heads, dim)."""
    return graph_attn(graph, v=h, left=left, right=right, bias=bias, slope=slope)


def spmm(graph: Graph, x: Tensor, values: Optional[Tensor] = None, reduce: str = "sum") -> Tensor:
    """The graph's matrix times x: (columns, dim <= 256) or (columns, heads, dim); values: (edges,), ones if None."""
    return graph_attn(graph, v=x, bias=values, weight="identity", reduce=reduce)


def sddmm(graph: Graph, q: Tensor, k: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha q_i . k_j for each edge: (edges,) of (rows, dim) and (columns, dim); with heads (edges, heads)."""
    return graph_attn(graph, q, k, weight="identity", alpha=alpha)
