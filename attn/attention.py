"""Attention: every query takes a weighted average of the values.

    Attention(Q, K, V) = softmax(Q Kᵀ / √D) V        (Vaswani et al. 2017, section 3.2.1)

The steps stand in the order in which they act: scale · dot product, softcap, + bias, removal by
selection, softmax (with the sink in the denominator), times value. "Scores" are before the softmax,
"weights" after it. The steps come first, then the public functions that are made of them.
"""

import numpy as np

from attn import arguments
from attn.operands import careful_product, prepare, without_warnings, working_dtype


@without_warnings
def masked_scores(call):
    """scale · Q Kᵀ, capped, plus bias; -inf where the pair takes no part."""
    size = call.size
    # The G query heads of a group read one key head: fold them into the rows of one product.
    rows = fold_groups(call.query, size.Hkv)  # (B, Hkv, G·L, D)
    scores = call.scale * (rows @ call.key.swapaxes(-1, -2))
    scores = scores.reshape(size.B, size.H, size.L, size.S)
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    # Selection, not a large negative number: exp(-inf) is exactly 0 in every dtype.
    return scores if call.keep is None else np.where(call.keep, scores, -np.inf)


@without_warnings
def normalise(scores, sink=None):
    """Softmax over the last axis, with the sink's logit, if there is one, in the denominator."""
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        peak = np.maximum(peak, sink[:, None, None])
    peak = np.where(np.isneginf(peak), 0, peak)  # an empty row: exp(-inf - 0) is 0, not NaN
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink[:, None, None] - peak)
    return weights / np.where(total == 0, 1, total)


@without_warnings
def weighted_average(weights, value, keep):
    """Mix the values: (B, H, L, S) times (B, Hkv, S, Dv)."""
    H, Hkv = weights.shape[1], value.shape[1]
    output = (fold_groups(weights, Hkv) @ value).reshape(*weights.shape[:-1], value.shape[-1])
    if keep is None or np.isfinite(output).all():
        return output
    return careful_product(weights, np.repeat(value, H // Hkv, axis=1), keep)


def fold_groups(x, Hkv):
    """(B, H, L, …) as (B, Hkv, G·L, …): the query heads of a group stand below each other."""
    B, H, L, width = x.shape
    return x.reshape(B, Hkv, H // Hkv * L if Hkv else 0, width)


def softmax(scores):
    """Turn the last axis into weights that are positive and sum to one.

    softmax(s)_j = exp(s_j − m) / Σ_k exp(s_k − m) with m = max(s); subtracting m changes nothing in
    exact arithmetic and keeps exp from overflowing.

    Parameters
    ----------
    scores : ndarray of shape (…, S)
        Any float dtype; -inf gives weight 0, and a row of nothing but -inf gives zeros.

    Returns
    -------
    ndarray of shape (…, S)
        Same dtype; half precision is worked out in float32.

    Raises
    ------
    TypeError
        `scores` is not a float array.
    ValueError
        `scores` has no axis.

    Source: Bridle (1990); the shift by the maximum, Blanchard, Higham & Higham (2021), section 3.

    Examples
    --------
    >>> softmax(np.array([0.0, np.log(3.0), -np.inf]))
    array([0.25, 0.75, 0.  ])
    """
    arguments.arrays(np.ndarray, scores=scores)
    arguments.rank("scores", scores.shape, 1, "(…, S)")
    weights = normalise(scores.astype(working_dtype(scores.dtype), copy=False))
    return weights.astype(scores.dtype, copy=False)


@arguments.explained
def attention_weights(
    query, key, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """How much each query takes from each key: the softmax of the masked scores.

    Parameters
    ----------
    query : ndarray of shape (B, H, L, D)
        Also (L, D) or (H, L, D); axes before H are batch.
    key : ndarray of shape (B, Hkv, S, D)
        H is a multiple of Hkv; query head h reads key head h // (H // Hkv).
    mask : Mask or ndarray of bool, optional
        True = may attend; an array broadcasts to (B, H, L, S), aligned from the right. Two axes are
        (L, S) always, also where B = L: a mask of keys (B, S) goes in as mask[:, None, None].
    bias : ndarray of float, optional
        Broadcasts to (B, H, L, S); added to the scaled, capped scores; -inf removes.
    scale : float, optional
        Multiplies the dot products; 1/√D unless given.
    softcap : float, optional
        Scores become softcap · tanh(score / softcap) before the bias.
    sink : ndarray of shape (H,), optional
        A logit in the denominator: a key that has no value.
    q_offset : int or ndarray of shape (B,), optional
        Number of keys before query 0, for rules that compare positions.

    Returns
    -------
    ndarray of shape (B, H, L, S)
        Rows sum to 1 (with a sink: less), or are 0 where a query may attend to nothing.

    Raises
    ------
    TypeError
        Integer or mixed dtypes, tensors, a mask that is not boolean.
    ValueError
        Sizes that do not fit, an alignment left open, NaN in bias, a bad scale or softcap.

    Source: Vaswani et al. (2017), section 3.2.1; softcap, Gemma 2 (2024), section 2; sink, Xiao et
    al. (2024), section 3.

    Examples
    --------
    >>> attention_weights(np.eye(2), np.array([[1.0, 0], [1, 1], [0, 1]])).round(3)
    array([[0.401, 0.401, 0.198],
           [0.198, 0.401, 0.401]])
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    call = prepare(query, key, arguments.NO_VALUE, mask, **options)
    weights = normalise(masked_scores(call), call.sink)
    return weights.astype(query.dtype, copy=False).reshape(*query.shape[:-1], call.size.S)


@arguments.explained
def scaled_dot_product_attention(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None
):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √D) V, for every batch row and head at once.

    Parameters
    ----------
    query : ndarray of shape (B, H, L, D)
    key : ndarray of shape (B, Hkv, S, D)
    value : ndarray of shape (B, Hkv, S, Dv)
    mask, bias, scale, softcap, sink, q_offset
        As in attention_weights.

    Returns
    -------
    ndarray of shape (B, H, L, Dv)
        A query that may attend to nothing gets zeros.

    Raises
    ------
    TypeError, ValueError
        As attention_weights; also when key and value differ in length.

    Source: Vaswani et al. (2017), section 3.2.1, equation 1.

    Examples
    --------
    >>> key, value = np.array([[1.0, 0], [1, 1], [0, 1]]), np.array([[10.0, 0], [0, 5], [0, 1]])
    >>> scaled_dot_product_attention(np.eye(2), key, value).round(3)
    array([[4.011, 2.203],
           [1.978, 2.407]])
    """
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    call = prepare(query, key, value, mask, **options)
    weights = normalise(masked_scores(call), call.sink)
    output = weighted_average(weights, call.value, call.keep)
    return output.astype(query.dtype, copy=False).reshape(*query.shape[:-1], call.size.Dv)
