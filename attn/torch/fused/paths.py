"""One rule, the fastest kernel for it: SDPA, FlexAttention, or SDPA on the strips a rule leaves.

The numbers are those of attn.torch.scaled_dot_product_attention, for every mask and option.
"""

import torch
from torch.autograd import forward_ad

from attn import arguments
from attn.masks import Causal
from attn.torch.attention import scaled_dot_product_attention
from attn.torch.fused.kernels import KERNELS, without_keys_behind
from attn.torch.fused.unseen import empty_unseen_slots
from attn.torch.masks import may_read_values
from attn.torch.operands import call as checked
from attn.torch.operands import widened, without_autocast, working_dtype


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

    Notes
    -----
    NaN and inf in a key stay where scaled_dot_product_attention keeps them.

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
    path, call = plan_call(query, key, value, mask, **options)
    if path == "plain":
        return scaled_dot_product_attention(query, key, value, mask, **options)
    with without_autocast(query.device):
        output = KERNELS[path](call)
        output = on_the_graph(output, call)
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
        slices": the same strips by scaled_dot_product_attention, for a softcap or a sink, and where
        a slot that some queries see holds NaN, inf or numbers whose products overflow. "plain":
        that function on the whole call, where no kernel is right: no rows or features, float64 on a
        GPU, a derivative forwards (torch.func.jvp), and masks inside torch.compile and
        torch.func.vmap, which cannot read tiles.

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
    return plan_call(query, key, value, mask, **options)[0]


def plan_call(query, key, value, mask, **options):
    """The path of a call and its operands: what both functions above go by."""
    call = checked(query, key, value, mask, **options)
    bare = call.bias is None and call.softcap is None and call.sink is None
    # SDPA wants a bias in the dtype of query, and a scale > 0: where it would round, go wider.
    if call.bias is not None or isinstance(call.scale, torch.Tensor) or call.scale <= 0:
        call = widened(call)
    if 0 in call.size[1:] or (may_read_values(query.device) and has_tangent(call)):
        return "plain", call
    if bare and mask is None:
        return "sdpa", call
    if bare and is_causal_for_sdpa(call) and overflows(without_keys_behind(call)) is not True:
        return "sdpa causal", call
    device = query.device.type
    if torch.compiler.is_compiling() or device not in ("cpu", "cuda"):
        return "plain", call
    if device == "cuda":
        if call.mask is not None:  # a rule whose answer is not boolean is refused
            call.mask.pairs(slice(0, 1), slice(0, 1))
        return ("flex" if flex_can(call) else "plain"), call
    return path_of_strips(call)


def path_of_strips(call):
    """Slices by torch's kernel, unless an operand or an option is not for it."""
    spoilt, mask = overflows(call), call.mask
    if spoilt is None or (mask is not None and not mask.has_values()):  # inside torch.func.vmap
        return "plain", call
    if call.softcap is not None or call.sink is not None:
        return "plain slices", call
    if spoilt:
        call = empty_unseen_slots(call)
        spoilt = overflows(call)
    return ("plain slices" if spoilt else "sdpa slices"), call


def is_causal_for_sdpa(call):
    """Upper-left is what is_causal means; lower-right has a kernel of its own on a GPU."""
    size = call.size
    if call.mask is None or type(call.mask.mask) is not Causal:
        return False
    offset = call.mask.start
    if not isinstance(offset, int):
        return False
    fits_kernel = size.Hkv == size.H and size.D == size.Dv <= 256 and size.D % 8 == 0
    lower_right = (
        call.query.is_cuda and call.query.dtype != torch.float64 and fits_kernel
        and 0 < offset <= size.S - size.L
    )  # fmt: skip
    return offset == 0 or lower_right


def flex_can(call):
    return call.query.dtype != torch.float64 and max(call.size.D, call.size.Dv) <= 256


def has_tangent(call):
    """Some operand is differentiated forwards, which torch's kernels are not."""
    operands = (call.query, call.key, call.value, call.bias, call.sink, call.scale)
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def overflows(call):
    """Whether a slot holds NaN, inf, or numbers whose product could be inf: kernels add -inf to
    scores that are removed, and inf - inf is NaN. None where there are no values to look at."""
    if not may_read_values(call.query.device):
        return None
    try:
        operands = (call.query, call.key, call.value)
        largest = [float(torch.stack(x.detach().aminmax()).abs().max()) for x in operands]
        scale = call.scale.detach() if isinstance(call.scale, torch.Tensor) else call.scale
        factor = call.size.D * max(abs(float(scale)), 1.0)
    except RuntimeError:  # inside torch.func.vmap
        return None
    limit = torch.finfo(working_dtype(call.query.dtype)).max
    return not (largest[0] * largest[1] * factor < limit and largest[2] < limit)  # NaN is not less


def on_the_graph(output, call):
    """Where every tile is empty no operand was read; the gradients are 0 then, not missing."""
    operands = (call.query, call.key, call.value, call.bias, call.sink, call.scale)
    needed = [x for x in operands if isinstance(x, torch.Tensor) and x.requires_grad]
    for x in needed if torch.is_grad_enabled() else ():
        output = output + x.flatten()[:0].sum().to(output.dtype)
    return output
