"""Shortens names of kernels by their meaning: parameters go, and what tells one kernel from another stays. No torch."""

from __future__ import annotations

import re

MAX_CHARACTERS = 80
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\b_GLOBAL__N_\w*::")
_FUNCTOR = re.compile(r"\b(?:CUDAFunctor_(\w+)|(\w+?)(?:Functor|_kernel_cuda|_kernel_impl\w*|Ops?))(?=<|\(|::|,|>|$)")
_PLUMBING = {"gpu", "gpu_kernel", "elementwise", "Reduce", "Binary", "Unary", "BUnary", "AUnary", "func_wrapper", ""}
_LIBRARY_TAIL = re.compile(r"(_kernel__5x_\w+|_execute_kernel\w*|_warpgroupsize\w*|_align[abc]\d+\w*)$")
_TRITON_TAIL = re.compile(r"(_\d[\dcde]*)+$")  # of older versions: which arguments are constants


def short_name(kernel: str) -> str:
    """Return a demangled name without return type, parameters and unnamed namespaces, at most 80 characters long.

    A kernel of torch that computes any operator is named by that operator.
    """
    name = _UNNAMED.sub("", kernel.strip())
    name = _without_parameters(name)
    name = name.removeprefix("void ").strip()
    if name.startswith("at::native::"):
        name = _torch_name(name.removeprefix("at::native::"))
    else:
        name = _LIBRARY_TAIL.sub("", name)
        name = re.sub(r"(?<=[<, ])(?:\w+::)+(?=\w)", "", name)  # namespaces of template arguments
    return name if len(name) <= MAX_CHARACTERS else f"{name[: MAX_CHARACTERS - 1]}…"


def _without_parameters(name: str) -> str:
    """Cut off the last list in round brackets outside all others, and what follows it."""
    depth, end = 0, len(name)
    for place, letter in enumerate(name):
        if letter in "<(":
            if letter == "(" and depth == 0:
                end = place
                break
            depth += 1
        elif (letter == ">" and name[place - 1 : place] != "-") or letter == ")":
            depth -= 1
    return name[:end]


def _torch_name(name: str) -> str:
    """Return the kind of kernel and the operator that it computes."""
    kind, _, arguments = name.partition("<")
    found = [match[1] or match[2] for match in _FUNCTOR.finditer(arguments)]
    telling = [word for word in found if word not in _PLUMBING]
    if telling:
        return f"at::{kind}[{telling[-1]}]"
    return f"at::{kind}<{arguments}" if arguments else f"at::{kind}"
