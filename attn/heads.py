"""Heads: several small attentions side by side, and what they may share.

    head_i = Attention(X W_i^Q, X W_i^K, X W_i^V),  MHA(X) = Concat(head_1 … head_H) W^O
                                                     (Vaswani et al. 2017, section 3.2.2)

Head h owns the columns h·D to (h+1)·D of each projection. With fewer key heads than query heads, G
= H // Hkv neighbouring query heads share one (Ainslie et al. 2023).
"""

import numpy as np

from attn import arguments
from attn.attention import scaled_dot_product_attention


def split_heads(x, num_heads):
    """Cut the features into heads and put the heads before the length.

    Parameters
    ----------
    x : ndarray of shape (…, L, H·D)
    num_heads : int
        H.

    Returns
    -------
    ndarray of shape (…, H, L, D)
        A view where NumPy can make one.

    Raises
    ------
    ValueError
        The features cannot be divided by the heads.
    TypeError
        `x` is not an array of NumPy.

    Source: Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> split_heads(np.arange(8).reshape(2, 4), 2)
    array([[[0, 1],
            [4, 5]],
    <BLANKLINE>
           [[2, 3],
            [6, 7]]])
    """
    arguments.one_library(np.ndarray, "x", x)
    arguments.heads.splits("num_heads", num_heads, x.shape)
    *batch, L, width = x.shape
    return x.reshape(*batch, L, num_heads, width // num_heads).swapaxes(-3, -2)


def merge_heads(x):
    """Undo split_heads: lay the heads' features side by side again.

    Parameters
    ----------
    x : ndarray of shape (…, H, L, D)

    Returns
    -------
    ndarray of shape (…, L, H·D)

    Raises
    ------
    ValueError
        `x` has fewer than three axes.
    TypeError
        `x` is not an array of NumPy.

    Source: "Concat" in Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> merge_heads(split_heads(np.arange(8).reshape(2, 4), 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    arguments.one_library(np.ndarray, "x", x)
    arguments.rank("x", x.shape, 3, "(…, H, L, D)")
    *batch, H, L, D = x.shape
    # Without the swap the reshape would still run, and mix positions with heads.
    return x.swapaxes(-3, -2).reshape(*batch, L, H * D)


def repeat_kv(x, groups):
    """Repeat each key or value head for the query heads that share it.

    Head h of the result is head h // groups of `x`: copies are neighbours, not tiled.

    Parameters
    ----------
    x : ndarray of shape (…, Hkv, S, D)
    groups : int
        G, query heads per key head.

    Returns
    -------
    ndarray of shape (…, Hkv·G, S, D)

    Raises
    ------
    ValueError
        `groups` is below 1, or `x` has fewer than three axes.
    TypeError
        `x` is not an array of NumPy.

    Source: Ainslie et al. (2023), section 2.2.

    Examples
    --------
    >>> repeat_kv(np.array([[[1.0]], [[2.0]]]), 2).ravel()
    array([1., 1., 2., 2.])
    """
    arguments.one_library(np.ndarray, "x", x)
    arguments.rank("x", x.shape, 3, "(…, Hkv, S, D)")
    arguments.integer("groups", groups, low=1)
    return np.repeat(x, groups, axis=-3)


@arguments.explained
def multi_head_attention(
    x, w_query, w_key, w_value, w_output, *, num_heads, num_kv_heads=None, context=None, mask=None,
    bias=None, cache=None, q_offset=None,
):  # fmt: skip
    """Project, attend in every head, concatenate, project back.

    Parameters
    ----------
    x : ndarray of shape (B, L, E)
        Also (L, E).
    w_query : ndarray of shape (E, H·D)
    w_key : ndarray of shape (E, Hkv·D)
    w_value : ndarray of shape (E, Hkv·Dv)
    w_output : ndarray of shape (H·Dv, E)
    num_heads, num_kv_heads : int
        H and Hkv; Hkv is H unless given.
    context : ndarray of shape (B, S, E), optional
        Where keys and values come from; `x` itself unless given.
    mask, bias, q_offset
        As in scaled_dot_product_attention.
    cache : KVCache, optional
        Holds the keys and values of earlier calls; `x` continues the sequence. It takes in the new
        ones once the output is there: an error leaves it as it was.

    Returns
    -------
    ndarray of shape (B, L, E)

    Raises
    ------
    ValueError
        Widths that the heads do not divide; `cache` together with `context` or `q_offset`; a rule
        that speaks of keys which a ring cache has dropped, by position or further back than it
        holds.
    TypeError
        As scaled_dot_product_attention.

    Source: Vaswani et al. (2017), section 3.2.2; shared key heads, Ainslie et al. (2023).

    Examples
    --------
    >>> x, eye = np.arange(6.0).reshape(1, 3, 2), np.eye(2)
    >>> multi_head_attention(x, eye, eye, eye, eye, num_heads=2).round(2)
    array([[[2.  , 4.7 ],
            [3.96, 5.  ],
            [4.  , 5.  ]]])
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    source = x if context is None else context
    weights = dict(w_query=w_query, w_key=w_key, w_value=w_value, w_output=w_output)
    arguments.arrays(np.ndarray, x=x, context=source, **weights)
    arguments.heads.projections(x.shape, source.shape, num_heads, num_kv_heads, **weights)
    if cache is not None:
        arguments.heads.cached_call(cache, mask, context, q_offset)
    query = split_heads(x @ w_query, num_heads)  # (B, H, L, D)
    key = split_heads(source @ w_key, num_kv_heads)  # (B, Hkv, S, D)
    value = split_heads(source @ w_value, num_kv_heads)  # (B, Hkv, S, Dv)
    keys, values = key, value
    if cache is not None:
        keys, values = cache.preview(key, value)
        q_offset = keys.shape[-2] - query.shape[-2]
    output = scaled_dot_product_attention(query, keys, values, mask, bias=bias, q_offset=q_offset)
    output = merge_heads(output) @ w_output
    if cache is not None:
        cache.store(key, value)
    return output
