"""The masks of Keras, JAX and ONNX, where True or 1 means may attend, as here.

Part of attn.conventions.
"""

from attn.conventions import forms


def from_keras(attention_mask=None, query_mask=None, value_mask=None, key_mask=None):
    """Read the masks of Keras' MultiHeadAttention: 1 = may attend.

    Parameters
    ----------
    attention_mask : array of bool or 0/1, shape (B, L, S), optional
        Lists do as well, for all four.
    query_mask, value_mask, key_mask : array of bool or 0/1, shapes (B, L), (B, S), (B, S), optional
        Which positions hold tokens. The layer hides padded queries too: their rows are empty.

    Returns
    -------
    array of bool, shape (1|B, 1, 1|L, 1|S)

    Raises
    ------
    ValueError
        No mask given, other shapes, other numbers than 0 and 1.

    Source: https://keras.io/api/layers/attention_layers/multi_head_attention/

    Examples
    --------
    >>> import numpy as np
    >>> from_keras(value_mask=np.array([[1, 1, 0]])).astype(int)
    array([[[[1, 1, 0]]]])
    """
    parts = []
    if attention_mask is not None:
        seen = forms.zeros_and_ones("attention_mask", attention_mask)
        forms.rank("attention_mask", seen, 2, 3, letters="(B, L, S)")
        parts.append(("attention_mask", seen[(None,) * (3 - seen.ndim)][:, None]))
    for name, mask in dict(query_mask=query_mask, value_mask=value_mask, key_mask=key_mask).items():
        if mask is not None:
            seen = forms.zeros_and_ones(name, mask)
            forms.rank(name, seen, 2, letters="(B, L)" if name == "query_mask" else "(B, S)")
            seen = seen[:, None, :, None] if name == "query_mask" else seen[:, None, None]
            parts.append((name, seen))
    if not parts:
        raise ValueError(
            "attention_mask, query_mask, value_mask, key_mask: expected at least one mask, got "
            "None for all"
        )
    name, mask = parts[0]
    for part in parts[1:]:
        mask = forms.both((name, mask), part)
    return mask


def to_keras(mask):
    """Write a mask for Keras' MultiHeadAttention: attention_mask, True = may attend.

    Parameters
    ----------
    mask : array of bool, shape (1|B, 1, L, S)

    Returns
    -------
    array of bool, shape (1|B, L, S)

    Raises
    ------
    TypeError, ValueError
        Not boolean, not four axes, or different for different heads.

    Source: as from_keras.

    Examples
    --------
    >>> import numpy as np
    >>> to_keras(np.ones((2, 1, 3, 5), bool)).shape
    (2, 3, 5)
    """
    return forms.one_head(mask)[:, 0]


def from_jax(mask):
    """Read the mask of jax.nn.dot_product_attention: it is the same, with axes (B, H, L, S).

    Parameters
    ----------
    mask : array of bool, shape (1|B, 1|H, 1|L, 1|S)
        True = may attend. JAX's other ways to hide are rules here: key_value_seq_lengths is
        KeyPadding(stop=lengths), local_window_size=(left, right) is SlidingWindow(left, right).

    Returns
    -------
    array of bool, shape (1|B, 1|H, 1|L, 1|S)

    Raises
    ------
    TypeError, ValueError
        Not boolean, not four axes.

    Source: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html

    Examples
    --------
    >>> import numpy as np
    >>> from_jax(np.ones((1, 1, 2, 3), bool)).shape
    (1, 1, 2, 3)
    """
    forms.rank("mask", forms.boolean("mask", mask), 4, letters="(1|B, 1|H, 1|L, 1|S)")
    return mask


def to_jax(mask):
    """Write a mask for jax.nn.dot_product_attention: four axes, True = may attend.

    An empty row, 0 here, is there the mean of the values: JAX hides with a large finite number.

    Parameters
    ----------
    mask : array of bool, shape (…, L, S)

    Returns
    -------
    array of bool, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError
        The mask is not boolean.

    Source: as from_jax.

    Examples
    --------
    >>> import numpy as np
    >>> to_jax(np.ones((2, 3), bool)).shape
    (1, 1, 2, 3)
    """
    return forms.four_axes(forms.boolean("mask", mask))


def from_onnx(attn_mask, *, k_len=None):
    """Read the attn_mask of ONNX's Attention operator.

    Parameters
    ----------
    attn_mask : array of bool or float, shape (…, L, S)
        True = may attend; or float and added to the scores.
    k_len : int, optional
        S. Since opset 24 a mask may be shorter: the keys beyond it are hidden.

    Returns
    -------
    array of bool, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError, ValueError
        Other dtypes, float masks with other numbers, more keys than `k_len`.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html

    Examples
    --------
    >>> import numpy as np
    >>> from_onnx(np.array([[True, True]]), k_len=3).astype(int)
    array([[[[1, 1, 0]]]])
    """
    mask = forms.four_axes(forms.float_or(forms.boolean, "attn_mask", attn_mask))
    if k_len is None or k_len == mask.shape[-1]:
        return mask
    return forms.extended(mask, k_len)


def to_onnx(mask):
    """Write a mask for ONNX's Attention operator: four axes, True = may attend.

    Parameters
    ----------
    mask : array of bool, shape (…, L, S)

    Returns
    -------
    array of bool, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError
        The mask is not boolean.

    Source: as from_onnx.

    Examples
    --------
    >>> import numpy as np
    >>> to_onnx(np.ones((2, 3), bool)).shape
    (1, 1, 2, 3)
    """
    return forms.four_axes(forms.boolean("mask", mask))
