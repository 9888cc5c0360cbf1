"""Additive scores and Luong's: how recurrent translators attended, before the dot product won.

    score(q, k) = vᵀ tanh(W_q q + W_k k)        (Bahdanau, Cho & Bengio 2015, section A.1.2)

There are no heads here: queries are decoder states (B, L, Dq) and keys annotations (B, S, Dk), of
sizes that need not be equal; rank 3 is a batch. What follows the scores, mask and softmax, is that
of attn.attention.
"""

import numpy as np

from attn import arguments
from attn.attention import normalise
from attn.masks.layout import lay
from attn.operands import empty_unseen, without_warnings, working_dtype


def additive_weights(query, key, w_query, w_key, v, mask=None, *, q_offset=None):
    """Weigh the keys for each query with a small network of one hidden layer.

    α = softmax(e), e_ij = vᵀ tanh(W_q q_i + W_k k_j), with A hidden features.

    Parameters
    ----------
    query : ndarray of shape (B, L, Dq)
        Also (L, Dq), or (B, H, L, Dq) for H heads that share the network.
    key : ndarray of shape (B, S, Dk)
    w_query : ndarray of shape (Dq, A)
        The input stands on the left: query @ w_query.
    w_key : ndarray of shape (Dk, A)
    v : ndarray of shape (A,)
    mask : Mask or ndarray of bool, optional
        True = may attend; an array broadcasts to (B, L, S), or to (B, 1, L, S) as from dense_mask.
    q_offset : int or ndarray of shape (B,), optional
        Number of keys before query 0, for rules that compare positions.

    Returns
    -------
    ndarray of shape (B, L, S)
        Rows sum to 1, or are 0 where a query may attend to nothing. Takes memory for B·L·S·A
        numbers on the way: the price of a score that is no matrix product.

    Raises
    ------
    ValueError
        Sizes that do not fit, an alignment left open.
    TypeError
        Integer or mixed dtypes, tensors, a mask that is not boolean.

    Source: Bahdanau, Cho & Bengio (2015), section 3.1 and appendix A.1.2.

    Examples
    --------
    >>> query, key = np.array([[0.0], [1.0]]), np.array([[-1.0], [0.0], [1.0]])
    >>> additive_weights(query, key, np.eye(1), np.eye(1), np.ones(1)).round(3)
    array([[0.129, 0.277, 0.593],
           [0.173, 0.372, 0.455]])
    """
    arguments.arrays(np.ndarray, query=query, key=key, w_query=w_query, w_key=w_key, v=v)
    size = arguments.additive.sizes(query.shape, key.shape)
    arguments.additive.weights(query.shape, key.shape, w_query.shape, w_key.shape, v.shape)
    mask = arguments.additive.mask(mask, size, query.ndim, q_offset, np.ndarray, read_values=True)
    wide = working_dtype(query.dtype)
    laid = lay(mask, size, q_offset)
    keep = None if laid is None else laid.pairs()
    asking, asked = slots(query, keep, -1, size), slots(key, keep, -2, size)
    operands = (x.astype(wide, copy=False) for x in (asking, asked, w_query, w_key, v))
    scores = hidden_scores(*operands)  # (B, H, L, S)
    weights = normalise(scores if keep is None else np.where(keep, scores, -np.inf))
    return weights.astype(query.dtype, copy=False).reshape(*query.shape[:-1], size.S)


def luong_scores(query, key, weight=None, v=None):
    """Score each key for each query in one of Luong's three ways; the operands say in which.

        dot        no weight           q · k
        general    weight              qᵀ W k
        concat     weight and v        vᵀ tanh(W [q; k])

    Parameters
    ----------
    query : ndarray of shape (B, L, Dq)
        Also (L, Dq), or (B, H, L, Dq).
    key : ndarray of shape (B, S, Dk)
        Dk = Dq for dot.
    weight : ndarray of shape (Dq, Dk), optional
        For concat (Dq + Dk, A): the rows of the query, then those of the key.
    v : ndarray of shape (A,), optional

    Returns
    -------
    ndarray of shape (B, L, S)
        Scores, before mask and softmax, and without a scale.

    Raises
    ------
    ValueError
        Sizes that do not fit, or `v` without `weight`.
    TypeError
        Integer or mixed dtypes, or tensors.

    Source: Luong, Pham & Manning (2015), section 3.1.

    Examples
    --------
    >>> query, key = np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 1.0]])
    >>> luong_scores(query, key)
    array([[3., 2.]])
    >>> luong_scores(query, key, np.array([[0.0, 1.0], [0.0, 0.0]]))
    array([[0., 1.]])
    """
    weights = {name: x for name, x in (("weight", weight), ("v", v)) if x is not None}
    arguments.arrays(np.ndarray, query=query, key=key, **weights)
    arguments.additive.sizes(query.shape, key.shape)
    arguments.additive.luong(
        query.shape, key.shape, **{name: x.shape for name, x in weights.items()}
    )
    wide = working_dtype(query.dtype)
    dtype, Dq = query.dtype, query.shape[-1]
    query, key = query.astype(wide, copy=False), key.astype(wide, copy=False)
    weight, v = (x if x is None else x.astype(wide, copy=False) for x in (weight, v))
    if v is not None:
        # W [q; k] is the sum of two products, so each query and each key is multiplied once.
        return hidden_scores(query, key, weight[:Dq], weight[Dq:], v).astype(dtype, copy=False)
    rows = query if weight is None else query @ weight  # (B, L, Dk)
    return (rows @ key.swapaxes(-1, -2)).astype(dtype, copy=False)


@without_warnings
def hidden_scores(query, key, w_query, w_key, v):
    """vᵀ tanh(W_q q_i + W_k k_j) for all pairs: (…, L, Dq) and (…, S, Dk) to (…, L, S)."""
    hidden = (query @ w_query)[..., :, None, :] + (key @ w_key)[..., None, :, :]  # (…, L, S, A)
    return np.tanh(hidden) @ v


def slots(x, keep, axis, size):
    """Queries (axis -1) or keys (axis -2) as (B, H, …), 0 where they take part in no pair."""
    taking_part = None if keep is None else keep.any(axis=axis)
    return empty_unseen(x.reshape(size.B, size.H, *x.shape[-2:]), taking_part)
