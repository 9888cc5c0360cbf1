"""Attention on tensors: every query takes a weighted average of the values.

    Attention(Q, K, V) = softmax(Q Kᵀ / √D) V        (Vaswani et al. 2017, section 3.2.1)

The twin of attn.attention, in torch's own idiom.
"""

import torch

from attn import arguments
from attn.torch.operands import empty_unseen, prepare, without_autocast, working_dtype
from attn.torch.selection import products, sums


def softmax(scores):
    """Turn the last axis into weights that are positive and sum to one.

    softmax(s)_j = exp(s_j − m) / Σ_k exp(s_k − m) with m = max(s).

    Parameters
    ----------
    scores : Tensor of shape (…, S)
        Any float dtype; -inf gives weight 0, and a row of nothing but -inf gives zeros.

    Returns
    -------
    Tensor of shape (…, S)
        Same dtype; half precision is worked out in float32.

    Raises
    ------
    TypeError
        `scores` is not a float tensor.
    ValueError
        `scores` has no axis.

    Source: Bridle (1990); the shift by the maximum, Blanchard, Higham & Higham (2021), section 3.

    Examples
    --------
    >>> softmax(torch.tensor([0.0, 0.0, -torch.inf]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    arguments.arrays(torch.Tensor, scores=scores)
    arguments.rank("scores", scores.shape, 1, "(…, S)")
    return normalise(scores.to(working_dtype(scores.dtype))).to(scores.dtype)


@arguments.explained
def attention_weights(
    query, key, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """How much each query takes from each key: the softmax of the masked scores.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, D)
        Also (L, D) or (H, L, D); axes before H are batch.
    key : Tensor of shape (B, Hkv, S, D)
        H is a multiple of Hkv; query head h reads key head h // (H // Hkv).
    mask : Mask or Tensor of bool, optional
        True = may attend; a tensor broadcasts to (B, H, L, S), aligned from the right.
    bias, scale, softcap, sink, q_offset
        As in attn.attention_weights; a bias or sink that requires a gradient gets one, and so does
        a `scale` that is a tensor without axes.

    Returns
    -------
    Tensor of shape (B, H, L, S)
        Rows sum to 1 (with a sink: less), or are 0 where a query may attend to nothing.

    Raises
    ------
    TypeError, ValueError
        As attn.attention_weights.

    Source: Vaswani et al. (2017), section 3.2.1.

    Examples
    --------
    >>> attention_weights(torch.eye(2), torch.tensor([[1.0, 0], [1, 1], [0, 1]]))
    tensor([[0.4011, 0.4011, 0.1978],
            [0.1978, 0.4011, 0.4011]])
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    call = prepare(query, key, arguments.NO_VALUE, mask, **options)
    with without_autocast(query.device):
        weights = normalise(masked_scores(call), call.sink)
        if call.guard is not None:  # a row of NaN has its hidden pairs as well
            weights = weights.masked_fill(~call.guard, 0.0)
    return weights.to(query.dtype).reshape(*query.shape[:-1], call.size.S)


@arguments.explained
def scaled_dot_product_attention(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √D) V, for every batch row and head at once.

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
        A query that may attend to nothing gets zeros.

    Raises
    ------
    TypeError, ValueError
        As attn.scaled_dot_product_attention.

    Notes
    -----
    NaN and inf in a key reach the queries that may see it and no others. That is looked after where
    values may be read, in eager code on the CPU; elsewhere 0 · NaN may spread from a key that some
    queries see. What no query sees may hold anything everywhere.

    Source: Vaswani et al. (2017), section 3.2.1, equation 1.

    Examples
    --------
    >>> key = torch.tensor([[1.0, 0], [1, 1], [0, 1]])
    >>> value = torch.tensor([[10.0, 0], [0, 5], [0, 1]])
    >>> scaled_dot_product_attention(torch.eye(2), key, value)
    tensor([[4.0111, 2.2033],
            [1.9778, 2.4067]])
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    return attend(query, key, value, mask, options, dropout=0.0)


def attend(query, key, value, mask, options, dropout):
    """scaled_dot_product_attention with dropout on the weights, which only the layer asks for."""
    call = prepare(query, key, value, mask, **options)
    with without_autocast(query.device):
        weights = normalise(masked_scores(call), call.sink)
        if dropout:
            weights = torch.nn.functional.dropout(weights, dropout)
        output = weighted_average(weights, call.value, call.guard)
        if call.keep is not None:  # whatever comes back to an empty row goes no further
            output = empty_unseen(output, call.keep.any(dim=-1))
    return output.to(query.dtype).reshape(*query.shape[:-1], call.size.Dv)


def masked_scores(call):
    """scale · Q Kᵀ, capped, plus bias; -inf where the pair takes no part."""
    size = call.size
    # The G query heads of a group read one key head: fold them into the rows of one product.
    rows = fold_groups(call.query, size.Hkv)  # (B, Hkv, G·L, D)
    if call.guard is None:
        scores = rows @ call.key.mT
    else:
        scores = products(rows, call.key, fold_groups(call.guard, size.Hkv))
    scores = call.scale * scores.reshape(size.B, size.H, size.L, size.S)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    return scores if call.keep is None else scores.masked_fill(~call.keep, -torch.inf)


def normalise(scores, sink=None):
    """Softmax over the last axis, with the sink's logit, if there is one, in the denominator."""
    if sink is not None:
        sink = sink[:, None, None].expand(*scores.shape[:-1], 1)
        return normalise(torch.cat([scores, sink], dim=-1))[..., :-1]
    if scores.shape[-1] == 0:
        return scores
    # The shift by the maximum cancels, so its gradient is not needed; an empty row keeps 0, no NaN.
    peak = scores.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp(scores - peak.masked_fill(torch.isneginf(peak), 0.0))
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def weighted_average(weights, value, guard=None):
    """Mix the values: (B, H, L, S) times (B, Hkv, S, Dv)."""
    Hkv = value.shape[1]
    rows = fold_groups(weights, Hkv)  # (B, Hkv, G·L, S)
    output = rows @ value if guard is None else sums(rows, value, fold_groups(guard, Hkv))
    return output.reshape(*weights.shape[:-1], value.shape[-1])


def fold_groups(x, Hkv):
    """(B, H, L, …) as (B, Hkv, G·L, …): the query heads of a group stand below each other."""
    B, H, L, width = x.shape
    return x.reshape(B, Hkv, H // Hkv * L if Hkv else 0, width)
