"""Knowledge of torch's operators: which compute products and how many, and which make a count doubtful."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import flop_counter


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_NOTHING = _names(
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_zeros new_ones new_full"
    " new_empty_strided bernoulli_ uniform_ normal_ exponential_ random_ zero_ fill_ empty zeros ones full arange rand"
    " randn randint randperm empty_strided scalar_tensor eye linspace logspace tril_indices triu_indices"
)
CONTROLS = _names("_local_scalar_dense equal is_nonzero nonzero masked_select unique_dim _unique2")
GATHERS = _names(
    "index _unsafe_index index_select gather embedding _embedding_bag _embedding_bag_forward_only take take_along_dim"
    " grid_sampler_2d grid_sampler_3d cudnn_grid_sampler"
)
MASKS = _names("masked_fill masked_scatter tril triu")
SUMS = _names("sum mean cumsum avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d")
LINEAR = _names("add sub rsub neg clone _to_copy copy cat stack lift_fresh constant_pad_nd repeat flip")
LINEAR_WITH_NUMBERS = _names("mul div")
CHEAP = (
    _names(  # beyond those that torch tags as pointwise or as reductions: a pass or two over the data
        "_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit"
        " _native_batch_norm_legit_no_training cudnn_batch_norm batch_norm_with_update _batch_norm_with_update"
        " _batch_norm_no_update miopen_batch_norm _fused_rms_norm _weight_norm_interface max_pool2d_with_indices"
        " max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d max_unpool2d"
        " nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy"
        " binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss multilabel_margin_loss_forward"
        " cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper sort topk kthvalue mode median nanmedian"
        " argsort argmax argmin max min amax amin aminmax std var var_mean std_mean norm linalg_vector_norm"
        " unsafe_split unsafe_split_with_sizes unsafe_chunk split_copy split_with_sizes_copy unfold_copy im2col col2im"
        " roll rot90 reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
        " replication_pad3d pixel_shuffle pixel_unshuffle native_channel_shuffle channel_shuffle glu"
        " scatter scatter_add scatter_reduce index_add index_copy index_put _index_put_impl_ index_fill"
        " one_hot bincount histc bucketize searchsorted native_dropout dot mv addmv vdot diag_embed set_ resize_"
        " _resize_output_ record_stream slice_scatter select_scatter diagonal_scatter as_strided_scatter count_nonzero"
        " _assert_async _assert_scalar upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d"
        " upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
        " _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _unsafe_view rrelu_with_noise"
        " prelu _prelu_kernel renorm addcmul addcdiv lerp polar complex view_as_real view_as_complex _conj_physical"
        " conj_physical resolve_conj resolve_neg _pin_memory detach_copy view_copy expand_copy permute_copy t_copy"
    )
    | SUMS
    | LINEAR
    | MASKS
    | GATHERS
    | CONTROLS
)

Arguments = dict[str, Any]


def name_of(func: Any) -> str:
    """Return the name of an operator, without the mark of those that change their argument."""
    name = str(func.overloadpacket.__name__)
    return name[:-1] if name.endswith("_") and not name.endswith("__") and name not in READ_NOTHING else name


def is_cheap(func: Any) -> bool:
    """True if its arithmetic takes no longer than moving its data."""
    is_tagged = any(getattr(tag, "name", "") in ("pointwise", "reduction") for tag in func.tags)
    return func.namespace == "aten" and (is_tagged or name_of(func) in CHEAP | READ_NOTHING)


def count_products(func: Any, arguments: Arguments, out: Any) -> int | None:
    """Return the operations of the products in a call; None if the operator computes none that are known."""
    name = name_of(func)
    if (own := _FORMULAS.get(name)) is not None:
        return own(arguments, out)
    if not is_product(func):
        return None
    formula: Any = flop_counter.flop_registry[func.overloadpacket]
    given = [arguments[each.name] for each in func._schema.arguments if not each.kwarg_only]
    return int(formula(*given, out_val=out))


def _convolution(arguments: Arguments, out: torch.Tensor) -> int:
    """Count the products with values inside the input: those with its padding can be left out."""
    given, weight = arguments["input"], arguments["weight"]
    transposed = bool(arguments.get("transposed", False))
    steps = [_pairs_along(place, arguments, given, weight, out, transposed) for place in range(weight.dim() - 2)]
    return int(2 * given.shape[0] * weight.shape[0] * weight.shape[1] * math.prod(steps))


def _pairs_along(
    place: int, arguments: Arguments, given: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, transposed: bool
) -> int:
    """Return the number of pairs of a tap and an output along one dimension that meet a value of the input."""
    stride, padding, dilation = (_at(arguments[name], place) for name in ("stride", "padding", "dilation"))
    many, bounded = (given, out) if transposed else (out, given)
    count, size = many.shape[place + 2], bounded.shape[place + 2]
    found = 0
    for tap in range(weight.shape[place + 2]):
        shift = tap * dilation - padding  # positions first .. last of 0 <= position * stride + shift < size
        first, last = max(-(shift // stride), 0), min((size - 1 - shift) // stride, count - 1)
        found += max(last - first + 1, 0)
    return found


def _at(values: int | Sequence[int], place: int) -> int:
    return int(values if isinstance(values, int) else values[place] if len(values) > 1 else values[0])


def _attention(arguments: Arguments, _: Any) -> int:
    """Count both products of an attention. A causal one needs those with earlier keys alone."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    *batch, rows, width = query.shape
    columns = key.shape[-2]
    pairs = rows * columns
    if arguments.get("is_causal"):
        pairs = sum(min(row + 1, columns) for row in range(rows))
    return int(2 * math.prod(batch) * pairs * (width + value.shape[-1]))


def _recurrent(arguments: Arguments, _: Any) -> int:
    """Count the products with all matrices of a recurrent layer: each at every step, for every sequence."""
    given = arguments["input"]
    weights = arguments["weight"] if "weight" in arguments else [arguments["weight0"], arguments["weight1"]]
    return int(2 * math.prod(given.shape[:-1]) * sum(each.numel() for each in weights if each.dim() == 2))


def _distances(arguments: Arguments, out: torch.Tensor) -> int:
    return int(2 * out.numel() * arguments["x1"].shape[-1])


_FORMULAS: dict[str, Callable[[Arguments, Any], int]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_cudnn_rnn": _recurrent,
    "mkldnn_rnn_layer": _recurrent,
    "_cdist_forward": _distances,
}


def is_product(func: Any) -> bool:
    """True if an operator computes products that are counted."""
    is_known = func.overloadpacket in flop_counter.flop_registry and not name_of(func).endswith("backward")
    return is_known or name_of(func) in _FORMULAS


def is_fast_convolution(func: Any, arguments: Arguments) -> bool:
    """True for convolutions that need fewer products in another basis: several taps, next to each other."""
    if not name_of(func).endswith("convolution"):
        return False
    size = arguments["weight"].shape[2:]
    steps = (*_each(arguments["stride"]), *_each(arguments["dilation"]))
    return math.prod(size) > 1 and max(size) >= 3 and set(steps) == {1}


def _each(values: int | Sequence[int]) -> Sequence[int]:
    return [values] if isinstance(values, int) else values


def is_mask(func: Any, arguments: Arguments) -> bool:
    """True if the operator replaces values by a constant where a mask says so."""
    name = name_of(func)
    if arguments.get("attn_bias") is not None or arguments.get("attn_mask") is not None:
        return True
    if name == "where":
        branches = [arguments.get("self"), arguments.get("other")]
        return any(not isinstance(branch, torch.Tensor) or branch.numel() == 1 for branch in branches)
    return name in MASKS
