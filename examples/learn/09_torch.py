"""Program 9 from torch: python3 examples/learn/09_torch.py build/release/learn/09_torch.so

A tensor is a pointer with a shape, and a stream is a pointer: ctypes is enough, without torch's headers.  The gradient is
written in torch's own operations, which is how to begin; it is checked by torch.autograd.gradcheck's idea in float32."""
import ctypes
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    print("no GPU that CUDA can use here")
    sys.exit(77)

lib = ctypes.CDLL(sys.argv[1])
lib.learn_gate_rows.argtypes = [ctypes.c_int, ctypes.c_int] + 4 * [ctypes.c_void_p]
lib.learn_error_text.restype = ctypes.c_char_p


def gate_rows(x, w):
    """The kernel sees memory, not tensors: type, device and layout are checked here."""
    if x.dtype != torch.float32 or w.dtype != torch.float32 or not x.is_cuda or x.device != w.device:
        raise ValueError("gate_rows takes float32 tensors of one GPU")
    if x.dim() != 2 or w.shape != x.shape[1:]:
        raise ValueError("gate_rows takes x (n, dim) and w (dim)")
    x, w = x.contiguous(), w.contiguous()
    y = torch.empty_like(x)
    with torch.cuda.device(x.device):  # the stream of the caller, so that the work is in order with torch's own
        stream = torch.cuda.current_stream().cuda_stream
        error = lib.learn_gate_rows(x.shape[0], x.shape[1], x.data_ptr(), w.data_ptr(), y.data_ptr(), stream)
    if error:
        raise RuntimeError(lib.learn_error_text(error).decode())
    return y


class GateRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return gate_rows(x, w)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        score = x @ w
        s = torch.sigmoid(score)
        dscore = (dy * x).sum(1) * s * (1 + score * (1 - s))
        return dy * (score * s)[:, None] + dscore[:, None] * w, dscore @ x


def plain(x, w):
    return x * torch.nn.functional.silu(x @ w)[:, None]


torch.manual_seed(0)
for n, dim in ((1, 1), (7, 33), (512, 4096), (3, 20000)):
    x, w = torch.randn(n, dim, device="cuda"), torch.randn(dim, device="cuda") / dim**0.5
    dy = torch.randn(n, dim, device="cuda")
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    c, d = x.double().requires_grad_(), w.double().requires_grad_()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        y = GateRows.apply(a, b)
        y.backward(dy)
    torch.cuda.synchronize()
    want = plain(c, d)
    want.backward(dy.double())
    for name, got, right in (("y", y, want), ("dx", a.grad, c.grad), ("dw", b.grad, d.grad)):
        error = ((got.double() - right).abs().max() / right.abs().max().clamp_min(1e-30)).item()
        assert error < 1e-4, f"{n} x {dim}, {name}: error {error}"
print("9. From torch: 4 shapes on a stream of their own, y, dx and dw as torch's own in float64")
