"""Scalar C++ for one operation: exact, or polynomials that a compiler can vectorise."""

from __future__ import annotations

from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import TRANSCENDENTAL

_PLAIN = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "alias": "{0}",
    "max2": "std::max<float>({0}, {1})",
    "min2": "std::min<float>({0}, {1})",
    "abs": "std::fabs({0})",
    "sqrt": "std::sqrt({0})",
    "rsqrt": "1.0f / std::sqrt({0})",
    "exp": "std::exp({0})",
    "log": "std::log({0})",
    "erf": "std::erf({0})",
    "tanh": "std::tanh({0})",
    "sigmoid": "1.0f / (1.0f + std::exp(-{0}))",
    "sin": "std::sin({0})",
    "cos": "std::cos({0})",
}
_POLYNOMIAL = {
    "exp": "fast_exp({0})",
    "log": "fast_log({0})",
    "erf": "fast_erf({0})",
    "tanh": "fast_tanh({0})",
    "sigmoid": "1.0f / (1.0f + fast_exp(-{0}))",
}

# 2**n is built from its bits; the rest of the exponent is at most half a power of two.
_EXP = """
static inline float fast_exp(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    const float n = __builtin_rintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p = %s;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}
"""
_FULL = (
    "1.0f + r * (1.0f + r * (0.5f + r * (0.166666657f + r * (4.16657962e-2f"
    " + r * (8.33345205e-3f + r * 1.39819994e-3f)))))"
)
_SHORT = "0.99992807f + r * (1.0f + r * (0.50502354f + r * 0.16793406f))"

# Split into a power of two and a mantissa near 1, then a series in (m - 1) / (m + 1), which converges fast.
_LOG = """
static inline float fast_log(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const int32_t n = (bits - 0x3f3504f3) >> 23;
    bits -= n << 23;
    float m;
    std::memcpy(&m, &bits, sizeof m);
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const float series = 2.0f + z * (0.666666667f + z * (0.4f + z * (0.285714286f + z * 0.222222222f)));
    return s * series + float(n) * 0.69314718f;
}
"""

# Series near zero, where a difference to 1 loses all its digits.
_TANH = """
static inline float fast_tanh(float x) {
    const float z = x * x;
    const float near = x + x * z * (-0.333333333f + z * (0.133333333f + z * (-5.39682540e-2f + z * 2.18694885e-2f)));
    const float far = 1.0f - 2.0f / (1.0f + fast_exp(2.0f * x));
    return std::fabs(x) < 0.35f ? near : far;
}
"""

# Elsewhere Abramowitz and Stegun 7.1.26: an absolute error of at most 1.5e-7.
_ERF = """
static inline float fast_erf(float x) {
    const float a = std::fabs(x), t = 1.0f / (1.0f + 0.3275911f * a), z = x * x;
    const float near = x * (1.12837917f + z * (-0.376126389f + z * (0.112837917f
                       + z * (-2.68661706e-2f + z * 5.22397762e-3f))));
    const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f
                    + t * (-1.453152027f + t * 1.061405429f))));
    return a < 0.4f ? near : std::copysign(1.0f - p * fast_exp(-a * a), x);
}
"""


def function_source(op: str, args: list[str], moves: Moves) -> str:
    """The C++ expression of one operation."""
    table = _PLAIN | _POLYNOMIAL if "polynomial" in moves else _PLAIN
    return table[op].format(*args)


def inline_functions(kernels: list[Kernel], moves: Moves) -> str:
    """The functions that the kernels' expressions call."""
    used = {op for kernel in kernels for op in TRANSCENDENTAL if kernel.has(op)}
    if "polynomial" not in moves:
        return ""
    text = _EXP % (_SHORT if "short" in moves else _FULL) if used & {"exp", "tanh", "sigmoid", "erf"} else ""
    functions = {"log": _LOG, "erf": _ERF, "tanh": _TANH}
    return text + "".join(source for op, source in functions.items() if op in used)
