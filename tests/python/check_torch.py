#!/usr/bin/env python3
"""The attention functions, also on graphs, against their formulas in torch, values and gradients, on the CPU or a GPU.

usage: check_torch.py [DEVICE [TYPE]]     cpu or cuda; float32, bfloat16 or float16 alone

The rule: the error against float64 is at most twice that of the naive formula in the same type.  The last line
printed is "ok"."""
import copy
import pickle
import sys

import torch
import torch.nn.functional as F

import hstu
from hstu.attention import hstu_attn_qkvpacked_func, hstu_attn_varlen_func, hstu_softmax_attn_varlen_func
from hstu.graph_attention import Graph, gat, graph_attn, sddmm, spmm

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
TYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16, torch.float16]
if len(sys.argv) > 2:
    TYPES = [t for t in TYPES if str(t) == "torch." + sys.argv[2]]


def sees(lq, lk, left, right, contexts, targets, group):
    """(lq, lk): whether a query sees a key."""
    i, j = torch.arange(lk - lq, lk)[:, None], torch.arange(lk)[None, :]
    seen = torch.ones(lq, lk, dtype=torch.bool)
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    history = lk - targets
    seen |= (i < contexts) & (j < history)
    if targets > 0:
        seen &= ~((i >= history) & (j >= history) & ((j - history) // group < (i - history) // group))
    return seen


def naive(q, k, v, cu_q, cu_k, masks, alpha, scaling, rab):
    out = []
    for b, mask in enumerate(masks):
        a, c = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        lq, lk = q[a].shape[0], k[c].shape[0]
        s = torch.einsum("ihd,jhd->hij", q[a], k[c])
        if rab is not None:
            s = s + rab[b, :, lk - lq:lk, :lk]
        p = F.silu(alpha * s) / scaling * mask.to(q.device)
        out.append(torch.einsum("hij,jhd->ihd", p, v[c]))
    return torch.cat(out)


def draw(g, low, high):
    return int(torch.randint(low, high + 1, (1,), generator=g))


def one_case(seed, dtype):
    g = torch.Generator().manual_seed(seed)
    users, heads, dim = draw(g, 1, 4), draw(g, 1, 3), [8, 25, 32, 64][draw(g, 0, 3)]
    lengths = [draw(g, 1, 40) for _ in range(users)]
    is_delta = draw(g, 0, 3) == 0
    lq = [draw(g, 1, n) if is_delta else n for n in lengths]
    kind = draw(g, 0, 3)
    left, right = [(-1, -1), (-1, 0), (5, 2), (-1, 0)][kind]
    contexts = targets = None
    group = 1
    if kind == 3 and not is_delta:
        targets = [draw(g, 0, min(6, n)) for n in lengths]
        contexts = [draw(g, 0, min(3, n - t)) for n, t in zip(lengths, targets)]
        group = draw(g, 1, 3)
    cu_q, cu_k = ([0] + torch.tensor(x).cumsum(0).tolist() for x in (lq, lengths))
    top = max(lengths)
    rab = None
    if draw(g, 0, 2) == 0:
        rab = torch.randn(users, [1, heads][draw(g, 0, 1)], top, top, generator=g) * 0.5
    base = [torch.randn(n, heads, dim, generator=g) * 0.7 for n in (cu_q[-1], cu_k[-1], cu_k[-1])]
    dout = torch.randn(cu_q[-1], heads, dim, generator=g)
    masks = [sees(a, n, left, right, contexts[b] if contexts else 0, targets[b] if targets else 0, group)
             for b, (a, n) in enumerate(zip(lq, lengths))]
    alpha, scaling = 1 / dim**0.5, top

    def leaves(to):
        tensors = [t.to(dtype).to(to).to(DEVICE).requires_grad_() for t in base]
        return tensors, None if rab is None else rab.to(dtype).to(to).to(DEVICE).requires_grad_()

    def counts(x):
        return None if x is None else torch.tensor(x, dtype=torch.int32, device=DEVICE)

    results = []
    for which in ("exact", "naive", "ours"):
        (q, k, v), bias = leaves(torch.float64 if which == "exact" else dtype)
        if which == "ours":
            out = hstu_attn_varlen_func(q, k, v, counts(cu_q), counts(cu_k), None, None, max(lq), top, scaling,
                                        counts(contexts), counts(targets), group, (left, right), alpha, bias,
                                        bias is not None)
        else:
            out = naive(q, k, v, cu_q, cu_k, masks, alpha, scaling, bias)
        out.backward(dout.to(dtype).to(out.dtype).to(DEVICE))
        results.append([out.detach()] + [t.grad for t in ([q, k, v] if bias is None else [q, k, v, bias])])
    for name, exact, plain, got in zip(("out", "dq", "dk", "dv", "drab"), *results):
        limit = 2 * (plain.double() - exact).abs().max() + 1e-6 * exact.abs().max() + 1e-7
        error = (got.double() - exact).abs().max()
        if not error <= limit:
            sys.exit(f"check_torch.py: case {seed}, {dtype}: {name} is off by {error}, limit {limit}")


def packed_and_compiled():
    g = torch.Generator().manual_seed(7)
    qkv = (torch.randn(30, 3, 2, 32, generator=g) * 0.5).to(DEVICE).requires_grad_()
    cu = torch.tensor([0, 10, 30], dtype=torch.int32, device=DEVICE)
    rest = dict(max_seqlen_q=20, max_seqlen_k=20, window_size=(-1, 0), alpha=0.2)
    out = hstu_attn_qkvpacked_func(qkv, cu, cu, **rest)
    apart = hstu_attn_varlen_func(*(qkv[:, i].contiguous() for i in range(3)), cu, cu, **rest)
    if not torch.equal(out, apart):
        sys.exit("check_torch.py: packed and separate tensors differ")
    out.sum().backward()
    if qkv.grad is None or not torch.isfinite(qkv.grad).all():
        sys.exit("check_torch.py: no gradient of the packed tensor")
    q, k, v = (qkv.detach()[:, i].contiguous().requires_grad_() for i in range(3))
    if hasattr(torch.library, "opcheck"):
        torch.library.opcheck(torch.ops.hstu.attn_varlen.default,
                              (q, k, v, cu, cu, None, None, None, None, 20, 20, -1, 1, -1, 0, 0.2, False))
    refusals = {
        "seqused_k is not supported": lambda: hstu_attn_varlen_func(q, k, v, cu, cu, seqused_k=cu, **rest),
        "q, k and v are (tokens, heads, dim)": lambda: hstu_attn_varlen_func(q, k[:, :1], v, cu, cu, **rest),
        "has_drab without rab": lambda: hstu_attn_varlen_func(q, k, v, cu, cu, has_drab=True, **rest),
        "need window_left -1 and window_right 0": lambda: hstu_attn_varlen_func(
            q, k, v, cu, cu, max_seqlen_q=20, max_seqlen_k=20, num_targets=torch.tensor([1, 1], device=DEVICE)),
    }
    if DEVICE == "cpu":  # on a GPU nobody looks at the offsets
        refusals["is not at 10 .. 31 of 30"] = lambda: hstu_attn_varlen_func(q, k, v, cu + torch.tensor(
            [0, 0, 1], dtype=torch.int32), cu, **{**rest, "max_seqlen_q": 20})
    for part, call in refusals.items():
        try:
            call()
        except hstu.Error as e:
            if part not in str(e):
                sys.exit(f"check_torch.py: says '{e}', not '{part}'")
        else:
            sys.exit(f"check_torch.py: {part}: not refused")


def func_of_three_dimensions():
    """NVIDIA's func has a dimension for heads and room at its end; causal as a func is causal."""
    g = torch.Generator().manual_seed(8)
    q, k, v = ((torch.randn(30, 2, 32, generator=g) * 0.5).to(DEVICE) for _ in range(3))
    cu = torch.tensor([0, 10, 30], dtype=torch.int32, device=DEVICE)
    func = torch.full((1, 3, 30 + 256), 10**6, dtype=torch.int32, device=DEVICE)
    func[0, 0, :30] = torch.cat([torch.arange(1, 11), torch.arange(1, 21)])
    func[0, 1:, :30] = 0
    rest = dict(max_seqlen_q=20, max_seqlen_k=20, alpha=0.2)
    if not torch.equal(hstu_attn_varlen_func(q, k, v, cu, cu, func=func, **rest),
                       hstu_attn_varlen_func(q, k, v, cu, cu, window_size=(-1, 0), **rest)):
        sys.exit("check_torch.py: a causal func is not causal")


def pages_and_orders():
    """The history in pages of a cache, in any order, with targets after it; arguments in both orders that NVIDIA has."""
    g = torch.Generator().manual_seed(10)
    size, heads, dim = 4, 2, 32
    cached, new, targets = [9, 4, 1], [3, 4, 1], [2, 0, 3]  # of the history in the cache the last ones are new
    lq = [n + t for n, t in zip(new, targets)]
    cu_q, cu_k = ([0] + torch.tensor(x).cumsum(0).tolist() for x in (lq, [c + t for c, t in zip(cached, targets)]))
    n_pages = [-(-c // size) for c in cached]
    offsets = [0] + torch.tensor(n_pages).cumsum(0).tolist()
    ids = torch.randperm(offsets[-1] + 2, generator=g)[:offsets[-1]]
    cache = (torch.randn(offsets[-1] + 2, 2, size, heads, dim, generator=g) * 0.5).to(DEVICE)
    q, k, v = ((torch.randn(cu_q[-1], heads, dim, generator=g) * 0.5).to(DEVICE) for _ in range(3))
    whole = []
    for which, own in enumerate((k, v)):
        parts = []
        for b, c in enumerate(cached):
            pages = cache[ids[offsets[b]:offsets[b + 1]].to(DEVICE), which].flatten(0, 1)
            parts += [pages[:c], own[cu_q[b + 1] - targets[b]:cu_q[b + 1]]]
        whole.append(torch.cat(parts))
    ints = {name: torch.tensor(x, dtype=torch.int32, device=DEVICE) for name, x in
            dict(q=cu_q, k=cu_k, targets=targets, offsets=offsets, ids=ids.tolist(),
                 last=[(c - 1) % size + 1 for c in cached]).items()}
    rest = dict(num_targets=ints["targets"], window_size=(-1, 0), alpha=0.3, scaling_seqlen=20)
    plain = hstu_attn_varlen_func(q, *whole, ints["q"], ints["k"], None, None, max(lq), 11, **rest)
    masks = [sees(a, c + t, -1, 0, 0, t, 1) for a, c, t in zip(lq, cached, targets)]
    exact = naive(q.double(), *(t.double() for t in whole), cu_q, cu_k, masks, 0.3, 20, None)
    if not (plain.double() - exact).abs().max() < 1e-5:
        sys.exit("check_torch.py: fewer queries than keys with targets are wrong")
    pages = dict(kv_cache=cache, page_offsets=ints["offsets"], page_ids=ints["ids"], last_page_lens=ints["last"])
    got = hstu_attn_varlen_func(q, k, v, ints["q"], ints["k"], max(lq), 11, **rest, **pages)
    if not torch.equal(got, plain):
        sys.exit("check_torch.py: keys in pages and in one piece differ")
    wheel = hstu_attn_varlen_func(q, *whole, ints["q"], ints["k"], max(lq), 11, None, ints["targets"], 1, (-1, 0), 0.3,
                                  scaling_seqlen=20)
    if not torch.equal(wheel, plain):
        sys.exit("check_torch.py: the order of NVIDIA's wheels gives something else")
    refusals = {"are not those of their pages": dict(pages, last_page_lens=ints["last"] - 1),
                "needs page_offsets": dict(pages, page_ids=None), "is not (pages, 2": dict(pages, kv_cache=cache[:, 0])}
    for part, wrong in refusals.items():
        try:
            hstu_attn_varlen_func(q, k, v, ints["q"], ints["k"], max(lq), 11, **rest, **wrong)
        except hstu.Error as e:
            if part not in str(e):
                sys.exit(f"check_torch.py: says '{e}', not '{part}'")
        else:
            sys.exit(f"check_torch.py: pages that do not fit are taken: {part}")


def softmax_case(seed, dtype):
    """Softmax attention, and in every fourth case SiLU's, under masks by FlashAttention's arguments and by text, values and
    gradients."""
    g = torch.Generator().manual_seed(seed)
    lengths = [draw(g, 1, 70) for _ in range(draw(g, 1, 4))]
    heads, dim = draw(g, 1, 3), [8, 25, 64, 128][draw(g, 0, 3)]
    w = draw(g, 1, 9)
    kind, given = [("none", {}), ("causal", dict(causal=True)), ("sliding", dict(window_size=(w, w))),
                   ("sliding causal", dict(window_size=(w, 0))), ("longformer", dict(mask=f"longformer,window={w},global=2")),
                   ("dilated", dict(mask=f"dilated,window={w},dilation=1"))][seed % 6]
    silu_scale = 1 / 32 if seed // 6 % 4 == 3 else 0.0
    cu = [0] + torch.tensor(lengths).cumsum(0).tolist()
    base = [torch.randn(cu[-1], heads, dim, generator=g) for _ in range(3)]
    dout = torch.randn(cu[-1], heads, dim, generator=g)

    def sees(n):
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        near = (i - j).abs() <= w
        if kind == "longformer":
            h = n // 2
            def is_global(x):
                return (x < 2) | ((x >= h) & (x < h + 2))
            return near | is_global(i) | is_global(j)
        return {"none": near | True, "causal": j <= i, "sliding": near, "sliding causal": near & (j <= i),
                "dilated": (j <= i) & (i - j <= 2 * w) & ((i - j) % 2 == 0)}[kind]

    def formula(q, k, v):
        out = []
        for b, n in enumerate(lengths):
            at = slice(cu[b], cu[b + 1])
            s = torch.einsum("ihd,jhd->hij", q[at], k[at]) / dim**0.5
            seen = sees(n).to(q.device)
            p = F.silu(s) * silu_scale * seen if silu_scale else torch.softmax(s.masked_fill(~seen, float("-inf")), -1)
            out.append(torch.einsum("hij,jhd->ihd", p, v[at]))
        return torch.cat(out)

    results = []
    offsets = torch.tensor(cu, dtype=torch.int32, device=DEVICE)
    for which in ("exact", "naive", "ours"):
        to = torch.float64 if which == "exact" else dtype
        leaves = [t.to(dtype).to(to).to(DEVICE).requires_grad_() for t in base]
        out = (hstu_softmax_attn_varlen_func(*leaves, offsets, offsets, max(lengths), max(lengths), silu_scale=silu_scale,
                                             **given)
               if which == "ours" else formula(*leaves))
        out.backward(dout.to(dtype).to(out.dtype).to(DEVICE))
        results.append([out.detach()] + [t.grad for t in leaves])
    for name, exact, plain, got in zip(("out", "dq", "dk", "dv"), *results):
        limit = 2 * (plain.double() - exact).abs().max() + 1e-5 * exact.abs().max() + 1e-6
        error = (got.double() - exact).abs().max()
        if not error <= limit:
            sys.exit(f"check_torch.py: softmax {kind}, silu_scale {silu_scale}, case {seed}, {dtype}: {name} is off by {error}, limit {limit}")


def numeric_gradients():
    """torch's own checkers: schema, fake tensors, autograd registration, and gradients by differences (of float32: large
    steps, a tolerance to fit)."""
    g = torch.Generator().manual_seed(9)
    cu = torch.tensor([0, 3, 9], dtype=torch.int32, device=DEVICE)
    q, k, v = ((torch.randn(9, 2, 8, generator=g) * 0.5).to(DEVICE).requires_grad_() for _ in range(3))
    rab = torch.randn(2, 2, 6, 6, generator=g).to(DEVICE).requires_grad_()
    near = dict(eps=1e-2, atol=2e-3, rtol=2e-2, nondet_tol=1e-6)
    torch.autograd.gradcheck(lambda q, k, v, r: hstu_attn_varlen_func(
        q, k, v, cu, cu, max_seqlen_q=6, max_seqlen_k=6, window_size=(-1, 0), alpha=0.5, rab=r, has_drab=True), (q, k, v, rab), **near)
    torch.autograd.gradcheck(lambda q, k, v: hstu_softmax_attn_varlen_func(q, k, v, cu, cu, 6, 6, causal=True), (q, k, v), **near)
    if hasattr(torch.library, "opcheck"):
        torch.library.opcheck(torch.ops.hstu.attn_varlen.default,
                              (q, k, v, cu, cu, None, None, rab, None, 6, 6, -1, 1, -1, 0, 0.5, True))
        torch.library.opcheck(torch.ops.hstu.softmax_attn_varlen.default, (q, k, v, cu, 6, 0.0, 0.0, "causal"))


def refusals():
    """What would be read as something else: integers as numbers of a head, offsets cut to 32 bits, rows that no sequence has."""
    q = torch.zeros(9, 2, 8, device=DEVICE)
    cu = torch.tensor([0, 3, 9], dtype=torch.int32, device=DEVICE)
    cases = [("of one type", [q.to(t)] * 3, cu, cu) for t in (torch.int32, torch.int64, torch.bool)]
    cases += [("integers, not torch.float32", [q] * 3, cu.float(), cu), ("(batch + 1) each", [q] * 3, cu, cu[:2]),
              ("(batch + 1) each", [q] * 3, cu[None], cu[None])]
    if DEVICE == "cpu":
        cases += [("does not fit 32 bits", [q] * 3, cu.long() + 2**32, cu.long() + 2**32),
                  ("must cover all 9 rows", [q] * 3, cu - torch.tensor([0, 0, 1], dtype=torch.int32), cu)]
    for part, qkv, cu_q, cu_k in cases:
        for attend in (hstu_attn_varlen_func, hstu_softmax_attn_varlen_func):
            if attend is hstu_softmax_attn_varlen_func and (cu_k is not cu_q or cu_q.dim() == 2):
                cu_k = cu_q
                if part == "(batch + 1) each":
                    continue
            try:
                attend(*qkv, cu_q, cu_k, max_seqlen_q=6, max_seqlen_k=6)
            except hstu.UsageError as e:
                if part not in str(e):
                    sys.exit(f"check_torch.py: says '{e}', not '{part}'")
            else:
                sys.exit(f"check_torch.py: not refused: {part}")


def softmax_refusals():
    q = torch.zeros(9, 2, 8, device=DEVICE)
    cu = torch.tensor([0, 3, 9], dtype=torch.int32, device=DEVICE)
    for part, kind, given in [("window is the same on both", NotImplementedError, dict(window_size=(3, 1))),
                              ("a mask, or causal", ValueError, dict(causal=True, mask="none")),
                              ("dropout", NotImplementedError, dict(dropout_p=0.1)),
                              ("silu_scale is -1", ValueError, dict(silu_scale=-1)),
                              ("nonsense", ValueError, dict(mask="nonsense"))]:
        try:
            hstu_softmax_attn_varlen_func(q, q, q, cu, cu, 6, 6, **given)
        except kind as e:
            if part not in str(e):
                sys.exit(f"check_torch.py: says '{e}', not '{part}'")
        else:
            sys.exit(f"check_torch.py: {given}: not refused")


def graph_case(seed, dtype):
    """Attention on a random graph with an empty row, of every weight function and reduction, values and gradients."""
    g = torch.Generator().manual_seed(seed)
    n, m, heads, dim = 17, 13, 1 + seed % 3, 8
    dense = torch.rand(n, m, generator=g) < 0.3
    dense[3] = False
    row, col = dense.nonzero(as_tuple=True)
    degree = dense.sum(1)
    graph = Graph(torch.cat([torch.zeros(1, dtype=torch.long), degree.cumsum(0)]), col, m)
    weight, reduce = (("softmax", "sum"), ("softmax", "mean"), ("silu", "sum"), ("silu", "max"), ("sigmoid", "mean"),
                      ("identity", "sum"), ("identity", "max"))[seed % 7]
    given = [(name, torch.randn(shape, generator=g).to(dtype if name in "qkv" else torch.float32))
             for name, shape in (("q", (n, heads, dim)), ("k", (m, heads, dim)), ("v", (m, heads, dim)), ("left", (n, heads)),
                                 ("right", (m, heads)), ("bias", (len(col), heads) if seed % 2 else (len(col),)))
             if name == "v" or seed >> (0 if name in "qk" else 1 + ("left", "right", "bias").index(name)) & 1]
    dout, dweights = torch.randn(n, heads, dim, generator=g).to(dtype), torch.randn(len(col), heads, generator=g)

    def formula(t):
        x = torch.zeros(len(col), heads, dtype=t["v"].dtype) + (len(t) == 1)
        x = x + (0.4 * (t["q"][row] * t["k"][col]).sum(-1) if "q" in t else 0)
        x = x + (t["left"][row] if "left" in t else 0) + (t["right"][col] if "right" in t else 0)
        x = x + (t["bias"].reshape(len(col), -1) if "bias" in t else 0)
        x = torch.where(x < 0, 0.2 * x, x)
        if weight == "softmax":
            w = x.exp() / torch.zeros(n, heads, dtype=x.dtype).index_add(0, row, x.exp())[row]
        else:
            w = {"silu": F.silu, "sigmoid": torch.sigmoid, "identity": lambda y: y}[weight](x)
        terms, out = w[..., None] * t["v"][col], torch.zeros(n, heads, dim, dtype=x.dtype)
        if reduce == "max":
            return out.scatter_reduce(0, row[:, None, None].expand_as(terms), terms, "amax", include_self=False), w
        out = out.index_add(0, row, terms)
        return out / degree.clamp(min=1)[:, None, None] if reduce == "mean" else out, w

    ours = {name: x.detach().clone().to(DEVICE).requires_grad_() for name, x in given}
    exact = {name: x.detach().double().clone().requires_grad_() for name, x in given}
    results = []
    for leaves, (out, w) in ((ours, graph_attn(graph, **ours, weight=weight, reduce=reduce, alpha=0.4, slope=0.2, needs_weights=True)),
                             (exact, formula(exact))):
        loss = (out.double().cpu() * dout.double()).sum() + (w.double().cpu() * dweights.double()).sum()
        loss.backward()
        results.append({"out": out, "weights": w, **{"d" + name: x.grad for name, x in leaves.items()}})
    limit = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for name, want in results[1].items():
        error = ((results[0][name].double().cpu() - want).abs().max() / (1 + want.abs().max())).item()
        if not error < limit:
            sys.exit(f"check_torch.py: graph {weight} {reduce}, case {seed}, {dtype}: {name} is off by {error}, limit {limit}")


def graph_operators():
    """torch's checkers, torch.compile, the short forms, and what is refused."""
    graph = Graph([0, 2, 2, 5], [0, 2, 0, 1, 3], 4)
    q, k, v = (torch.randn(size, 2, 8, device=DEVICE).requires_grad_() for size in (3, 4, 4))
    if hasattr(torch.library, "opcheck"):  # (not the eager call, which is compared with it below)
        torch.library.opcheck(torch.ops.hstu.graph_attn.default, (q, k, v, None, None, None, graph.number, 0, 0, 0.3, 1.0, True))
    compiled = torch.compile(lambda q, k, v: graph_attn(graph, q, k, v), backend="aot_eager")(q, k, v)
    if not torch.equal(compiled, graph_attn(graph, q, k, v)):
        sys.exit("check_torch.py: graph_attn compiled is another")
    out, weights = graph_attn(graph, q, k, v, needs_weights=True)
    loss, exact = (o.sum() + w.sum(0).square().sum() for o, w in ((out, weights), torch.ops.hstu.graph_attn(
        q, k, v, None, None, None, graph.number, 0, 0, 8**-0.5, 1.0, True)[::2]))
    if not all(torch.equal(*pair) for pair in zip(torch.autograd.grad(loss, (q, k, v)), torch.autograd.grad(exact, (q, k, v)))):
        sys.exit("check_torch.py: gradients of the eager call are not the operator's")
    with torch.no_grad():
        if not torch.equal(graph_attn(graph, q, k, v), out):
            sys.exit("check_torch.py: graph_attn without gradients is another")
    if not torch.equal(graph_attn(graph, q.mT.contiguous().mT, k, torch.cat([v, v], 2)[:, :, :8]), out):
        sys.exit("check_torch.py: rows with gaps are read wrong")
    empty = graph_attn(Graph([0, 0, 0], torch.zeros(0, dtype=torch.long), 0), v=torch.ones(0, 2, 8, device=DEVICE, requires_grad=True))
    if empty.shape != (2, 2, 8) or empty.any() or empty.sum().backward():
        sys.exit("check_torch.py: a graph without edges has a result")
    values = sddmm(graph, q[:, 0], k[:, 0])
    product = torch.sparse_csr_tensor(graph.indptr, graph.indices, values.detach().cpu(), (3, 4)) @ v[:, 0].detach().cpu()
    if not torch.allclose(spmm(graph, v[:, 0], values).detach().cpu(), product, atol=1e-4):
        sys.exit("check_torch.py: spmm is not the product")
    ones = graph_attn(graph, v=v, left=torch.zeros(3, 2, device=DEVICE), weight="softmax")
    if not torch.equal(gat(graph, *(torch.zeros(size, 2, device=DEVICE) for size in (3, 4)), v), ones):
        sys.exit("check_torch.py: gat is not graph_attn")
    begin = torch.tensor([0, 2, 3], dtype=torch.int32)
    kept = Graph(begin, [0, 1, 1], 2)
    begin[2] = 1000000000  # is nobody's business any more
    if kept.indptr.tolist() != [0, 2, 3]:
        sys.exit("check_torch.py: a graph changes with the tensor that it was made of")
    for twin in (copy.copy(kept), copy.deepcopy({"graph": kept})["graph"], pickle.loads(pickle.dumps(kept))):
        if twin.handle(-1).value == kept.handle(-1).value or not torch.equal(spmm(twin, v[:2, 0]), spmm(kept, v[:2, 0])):
            sys.exit("check_torch.py: a copy of a graph is another, or the same")
    for part, wrong in (("column 1 twice", lambda: Graph([0, 2], [1, 1], 3)),
                        ("indptr must ascend", lambda: Graph([0, 5, 3, 4], [0, 1, 2, 3], 4)),
                        ("has column -1", lambda: Graph([0, 1], [-1], 3)), ("has column 3", lambda: Graph([0, 1], [3], 3)),
                        ("does not fit 32 bits", lambda: Graph([0, 2**32 + 1], [0], 3)),
                        ("n_columns 4294967299 is out of range", lambda: Graph([0, 1], [0], 2**32 + 3)), ("q and k go together", lambda: graph_attn(graph, q=q)),
                        ("(4, 2, ?)", lambda: graph_attn(graph, v=v[:3], bias=torch.zeros(5, 2, device=DEVICE))),
                        ("indptr ends with 3", lambda: Graph([0, 3], [1], 3)),
                        ("no autograd formula", lambda: torch.autograd.grad(torch.autograd.grad(
                            graph_attn(graph, q, k, v).square().sum(), v, create_graph=True)[0].sum(), v)),
                        ("not torch.int64", lambda: graph_attn(graph, q.long(), k.long(), v.long())),
                        ("not torch.int32", lambda: spmm(graph, torch.ones(4, 8, dtype=torch.int32, device=DEVICE), reduce="mean")),
                        ("weight is 'soft'", lambda: graph_attn(graph, v=v, weight="soft"))):
        try:
            wrong()
        except (hstu.UsageError, RuntimeError) as e:
            if part not in str(e):
                sys.exit(f"check_torch.py: says '{e}', not '{part}'")
        else:
            sys.exit(f"check_torch.py: not refused: {part}")


for dtype in TYPES:
    for seed in range(50):
        one_case(seed, dtype)
        softmax_case(seed, dtype)
        graph_case(seed, dtype)
packed_and_compiled()
func_of_three_dimensions()
pages_and_orders()
refusals()
softmax_refusals()
graph_operators()
numeric_gradients()
print(f"50 cases of {', '.join(str(t) for t in TYPES)} on {DEVICE}, torch {torch.__version__}")
print("ok")
