"""The row-wise tasks, each as honest candidates compute them: in eager PyTorch, by other library calls, in C++.

``setup`` makes the weights as the task's constructor does, ``weights`` names them; in ``eager`` and ``library`` they
are ``w[0]``, ``w[1]``, in ``body`` ``w0``, ``w1``. ``body`` computes one row ``a`` of ``n`` values into ``b``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowTask:
    """The ways to compute a row."""

    eager: str
    library: str
    body: str
    setup: str = ""
    weights: tuple[str, ...] = ()
    single: bool = False  # one value for each row
    integer: bool = False


ROW_TASKS = {
    "rms": RowTask(
        eager="x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[0]",
        library="F.rms_norm(x, x.shape[-1:], w[0], 1e-5)",
        body="float s = 0; for (int i = 0; i < n; ++i) s += a[i] * a[i];"
        " const float f = 1.0f / sqrtf(s / n + 1e-5f); for (int i = 0; i < n; ++i) b[i] = a[i] * f * w0[i];",
        setup="self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(features))",
        weights=("weight",),
    ),
    "layer_norm": RowTask(
        eager="(x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * w[0] + w[1]",
        library="F.layer_norm(x, x.shape[-1:], w[0], w[1])",
        body="double s = 0; for (int i = 0; i < n; ++i) s += a[i]; const float m = s / n;"
        " double q = 0; for (int i = 0; i < n; ++i) q += (a[i] - m) * (a[i] - m);"
        " const float f = 1.0f / sqrtf(q / n + 1e-5f);"
        " for (int i = 0; i < n; ++i) b[i] = (a[i] - m) * f * w0[i] + w1[i];",
        setup="self.norm = nn.LayerNorm(features)",
        weights=("norm.weight", "norm.bias"),
    ),
    "affine": RowTask(
        eager="torch.clamp(x * w[0] + w[1], -1.0, 1.0)",
        library="F.hardtanh(torch.addcmul(w[1], x, w[0]))",
        body="for (int i = 0; i < n; ++i) b[i] = fminf(fmaxf(a[i] * w0[i] + w1[i], -1.0f), 1.0f);",
        setup="self.scale = nn.Parameter(torch.ones(features)); self.shift = nn.Parameter(torch.zeros(features))",
        weights=("scale", "shift"),
    ),
    "relu": RowTask("torch.relu(x)", "x.clamp(min=0.0)", "for (int i = 0; i < n; ++i) b[i] = a[i] > 0 ? a[i] : 0;"),
    "gelu": RowTask(
        eager="0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))",
        library="F.gelu(x)",
        body="for (int i = 0; i < n; ++i) b[i] = 0.5f * a[i] * (1.0f + erff(a[i] * 0.70710678f));",
    ),
    "swish": RowTask(
        "x * torch.sigmoid(x)", "F.silu(x)", "for (int i = 0; i < n; ++i) b[i] = a[i] / (1.0f + expf(-a[i]));"
    ),
    "l2": RowTask(
        eager="x / x.norm(dim=-1, keepdim=True)",
        library="F.normalize(x, dim=-1)",
        body="double s = 0; for (int i = 0; i < n; ++i) s += a[i] * a[i];"
        " const float f = 1.0f / sqrtf(s); for (int i = 0; i < n; ++i) b[i] = a[i] * f;",
    ),
    "softmax": RowTask(
        eager="torch.exp(x - x.amax(-1, keepdim=True)) / torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True)",
        library="F.softmax(x, dim=-1)",
        body="float m = a[0]; for (int i = 1; i < n; ++i) m = fmaxf(m, a[i]); float s = 0;"
        " for (int i = 0; i < n; ++i) { b[i] = expf(a[i] - m); s += b[i]; }"
        " for (int i = 0; i < n; ++i) b[i] /= s;",
    ),
    "log_softmax": RowTask(
        eager="x - x.logsumexp(-1, keepdim=True)",
        library="F.log_softmax(x, dim=-1)",
        body="float m = a[0]; for (int i = 1; i < n; ++i) m = fmaxf(m, a[i]); double s = 0;"
        " for (int i = 0; i < n; ++i) s += expf(a[i] - m); const float f = m + logf(s);"
        " for (int i = 0; i < n; ++i) b[i] = a[i] - f;",
    ),
    "cumsum": RowTask(
        eager="torch.cumsum(x, -1)",
        library="x.cumsum(dim=1)",
        body="double s = 0; for (int i = 0; i < n; ++i) { s += a[i]; b[i] = s; }",
    ),
    "squares": RowTask(
        eager="(x * x).sum(-1)",
        library="torch.linalg.vector_norm(x, dim=-1).square()",
        body="double s = 0; for (int i = 0; i < n; ++i) s += a[i] * a[i]; b[0] = s;",
        single=True,
    ),
    "argmax": RowTask(
        eager="x.argmax(-1)",
        library="x.max(-1).indices",
        body="int best = 0; for (int i = 1; i < n; ++i) if (a[i] > a[best]) best = i; b[0] = best;",
        single=True,
        integer=True,
    ),
}
