"""One rule, the fastest kernel for it: SDPA, FlexAttention, or SDPA on the strips a rule leaves.

The numbers are those of attn.torch.scaled_dot_product_attention, for every mask and option.
"""

import torch

from attn import arguments
from attn.masks import Causal, Mask
from attn.torch.attention import scaled_dot_product_attention
from attn.torch.fused.kernels import KERNELS
from attn.torch.fused.unseen import Operands, empty_unseen_slots, pairs_of
from attn.torch.operands import (
    check_call,
    default_scale,
    four_axes,
    narrowed,
    without_autocast,
    working_dtype,
)


@arguments.explained
def fused_attention(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √D) V, by the fastest kernel that the mask allows.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, D)
    key : Tensor of shape (B, Hkv, S, D)
    value : Tensor of shape (B, Hkv, S, Dv)
    mask, bias, scale, softcap, sink, q_offset
        As in attention_weights.

    Returns
    -------
    Tensor of shape (B, H, L, Dv)
        As scaled_dot_product_attention; differentiable once. In half precision the weights may be
        rounded once more, as torch's kernels do.

    Raises
    ------
    TypeError, ValueError
        As scaled_dot_product_attention.

    See Also
    --------
    fused_path : which kernel a call runs on.

    Source: FlashAttention, Dao et al. (2022); FlexAttention, Dong et al. (2024).

    Examples
    --------
    >>> key = torch.tensor([[1.0, 0], [1, 1], [0, 1]])
    >>> value = torch.tensor([[10.0, 0], [0, 5], [0, 1]])
    >>> fused_attention(torch.eye(2), key, value)
    tensor([[4.0111, 2.2033],
            [1.9778, 2.4067]])
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    path, call = _plan(query, key, value, mask, **options)
    if path == "plain":
        return scaled_dot_product_attention(query, key, value, mask, **options)
    with without_autocast(query.device):
        output = KERNELS[path](call)
        output = _on_the_graph(output, call)
    return output.to(query.dtype).reshape(*query.shape[:-1], call.size.Dv)


@arguments.explained
def fused_path(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """Say which kernel fused_attention runs for this very call.

    Parameters
    ----------
    query, key, value, mask, bias, scale, softcap, sink, q_offset
        As in fused_attention.

    Returns
    -------
    str
        "sdpa" (no mask) and "sdpa causal": one call of torch's kernel. "flex": FlexAttention, on a
        GPU. "sdpa slices": torch's kernel on the strips that the mask leaves, on a CPU. "plain
        slices": the same strips by scaled_dot_product_attention, for a softcap or a sink. "plain":
        that function on the whole call, where no kernel is right: no rows or features, scores that
        overflow, float64 on a GPU, and masks inside torch.compile, which cannot read tiles.

    Raises
    ------
    TypeError, ValueError
        As fused_attention.

    Source: FlexAttention, Dong et al. (2024), for the tiles.

    Examples
    --------
    >>> from attn.torch import Causal, SlidingWindow
    >>> x = torch.zeros(1, 2, 5, 4)
    >>> [fused_path(x, x, x, mask) for mask in (None, Causal(), SlidingWindow(1))]
    ['sdpa', 'sdpa causal', 'sdpa slices']
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    return _plan(query, key, value, mask, **options)[0]


def _plan(query, key, value, mask, **options):
    """The path of a call and its operands: what both functions above go by."""
    call = _operands(query, key, value, mask, **options)
    if 0 in call.size[1:]:
        return "plain", call
    if options["bias"] is None and options["softcap"] is None and options["sink"] is None:
        if mask is None:
            return "sdpa", call
        if _is_causal_for_sdpa(call):
            return "sdpa causal", call
    device = query.device.type
    if torch.compiler.is_compiling() or device not in ("cpu", "cuda"):
        return "plain", call
    if isinstance(mask, Mask):
        first = torch.zeros(1, dtype=torch.int64, device=query.device)
        pairs_of(call)(first, first, slice(None))  # a rule whose answer is not boolean is refused
    if device == "cuda":
        return ("flex" if _flex_can(call) else "plain"), call
    if call.softcap is not None or call.sink is not None:
        return "plain slices", call
    if not _scores_are_finite(call):
        call = empty_unseen_slots(call)
        if not _scores_are_finite(call):
            return "plain", call
    return "sdpa slices", call


def _operands(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    size = check_call(query, key, value, mask, **options)
    scale = default_scale(size.D) if scale is None else float(scale)
    wide = working_dtype(query.dtype)
    # SDPA wants a bias in the dtype of query, and a scale > 0: where it would round, go wider.
    dtype = query.dtype if bias is None and scale > 0 else wide
    return Operands(
        size,
        query.reshape(size.B, size.H, size.L, size.D).to(dtype),
        key.reshape(size.B, size.Hkv, size.S, size.D).to(dtype),
        value.reshape(size.B, size.Hkv, size.S, size.Dv).to(dtype),
        four_axes(mask, size) if isinstance(mask, torch.Tensor) else mask,
        q_offset,
        None if bias is None else narrowed(four_axes(bias, size), wide),
        scale,
        None if softcap is None else float(softcap),
        None if sink is None else narrowed(sink, wide),
    )


def _is_causal_for_sdpa(call):
    """Upper-left is what is_causal means; lower-right has a kernel of its own on a GPU."""
    offset, size = call.q_offset or 0 if isinstance(call.q_offset, int | None) else None, call.size
    if type(call.mask) is not Causal or offset is None:
        return False
    fits_kernel = size.Hkv == size.H and size.D == size.Dv <= 256 and size.D % 8 == 0
    lower_right = (
        call.query.is_cuda and call.query.dtype != torch.float64 and fits_kernel
        and 0 < offset <= size.S - size.L
    )  # fmt: skip
    return offset == 0 or lower_right


def _flex_can(call):
    return call.query.dtype != torch.float64 and max(call.size.D, call.size.Dv) <= 256


def _scores_are_finite(call):
    """No product of a query and a key overflows: SDPA adds -inf, and inf - inf would be NaN."""
    try:
        operands = (call.query, call.key, call.value)
        peaks = [float(torch.stack(x.detach().aminmax()).abs().max()) for x in operands]
        largest = peaks[0] * peaks[1] * call.size.D * max(abs(call.scale), 1.0)
        return max(largest, peaks[2]) < torch.finfo(working_dtype(call.query.dtype)).max
    except RuntimeError:  # inside torch.func.vmap there are no values to look at
        return False


def _on_the_graph(output, call):
    """Where every tile is empty no operand was read; the gradients are 0 then, not missing."""
    operands = (call.query, call.key, call.value, call.bias, call.sink)
    needed = [x for x in operands if x is not None and x.requires_grad]
    for x in needed if torch.is_grad_enabled() else ():
        output = output + x.flatten()[:0].sum().to(output.dtype)
    return output
