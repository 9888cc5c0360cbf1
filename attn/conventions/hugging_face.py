"""The attention_mask of Hugging Face models: padding of two axes, or whole masks of four.

Part of attn.conventions.
"""

from attn.arrays import library
from attn.conventions import forms


def from_hugging_face(attention_mask):
    """Read the attention_mask of a Hugging Face model, of two or four axes.

    Parameters
    ----------
    attention_mask : array
        (B, S) of bool or 0/1, also as lists: 1 = token, 0 = padding. Or (B, 1|H, L, S): bool or
        0/1, True = may attend; or float and added to the scores.

    Returns
    -------
    array of bool, shape (B, 1|H, 1|L, S)
        Of two axes only the padding is known: a decoder hides the future as well.

    Raises
    ------
    TypeError, ValueError
        Other ranks, other numbers.

    Source: https://huggingface.co/docs/transformers/glossary#attention-mask and, for four axes,
    transformers/modeling_attn_mask_utils.py

    Examples
    --------
    >>> import numpy as np
    >>> from_hugging_face(np.array([[0, 1, 1]])).astype(int)
    array([[[[0, 1, 1]]]])
    """
    letters = "(B, S) or (B, 1|H, L, S)"
    mask = forms.rank("attention_mask", attention_mask, 2, 4, letters=letters)
    if mask.ndim == 2:
        return forms.zeros_and_ones("attention_mask", mask)[:, None, None]
    return forms.float_or(forms.zeros_and_ones, "attention_mask", mask)


def to_hugging_face_2d(mask):
    """Write the padding of a mask as Hugging Face's attention_mask of two axes.

    Parameters
    ----------
    mask : array of bool, shape (1|B, 1|H, 1|L, S)
        The same for all heads and queries.

    Returns
    -------
    array of int64, shape (1|B, S)
        1 = token, 0 = padding.

    Raises
    ------
    TypeError, ValueError
        Not boolean, not four axes, or not a mask of keys alone.

    Source: as from_hugging_face.

    Examples
    --------
    >>> import numpy as np
    >>> to_hugging_face_2d(np.array([[[[False, True]]]]))
    array([[0, 1]])
    """
    mask = forms.one_head(mask)
    if not bool((mask == mask[:, :, :1]).all()):
        raise ValueError("mask: expected one that hides the same keys from every query")
    return forms.integers(mask[:, 0, 0])


def to_hugging_face_4d(mask, *, dtype=None):
    """Write a mask as Hugging Face's attention_mask of four axes, added to the scores.

    Parameters
    ----------
    mask : array of bool, shape (…, L, S)
    dtype : dtype, optional
        The model's, as in to_additive; float32 unless given. Hidden pairs hold its smallest
        number, as in transformers: an empty row becomes a mean.

    Returns
    -------
    array of float, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError
        The mask is not boolean, or the dtype no float dtype.

    Source: as from_hugging_face.

    Examples
    --------
    >>> import numpy as np
    >>> to_hugging_face_4d(np.array([[True, False]]))
    array([[[[ 0.0000000e+00, -3.4028235e+38]]]], dtype=float32)
    """
    mask = forms.four_axes(forms.boolean("mask", mask))
    dtype = forms.float_dtype(dtype, mask)
    return forms.to_additive(mask, dtype=dtype, fill=float(library(mask).finfo(dtype).min))
