"""Positions: attention alone sees a set of tokens; these functions tell it their order.

Three ways in the order of their invention: add waves to the inputs (sinusoidal_positions), turn
queries and keys so that their dot products know the distance (rotary), or subtract the distance
from the scores (alibi_bias, an additive `bias`). Angles are formed in float64: neighbouring float32
numbers near 10 000 are 0.001 radians apart.
"""

import numpy as np

from attn import arguments


def sinusoidal_positions(length, size):
    """Give each position a vector of sines and cosines of falling frequency.

    PE(p, 2i) = sin(p / 10000^(2i/E)), PE(p, 2i + 1) = cos(p / 10000^(2i/E)) for p = 0 … L − 1.

    Parameters
    ----------
    length : int
        L, the number of positions.
    size : int
        E, even: a sine and a cosine share each frequency.

    Returns
    -------
    ndarray of shape (L, E)
        float64.

    Raises
    ------
    ValueError
        `size` is odd, or a number is negative.

    Source: Vaswani et al. (2017), section 3.5.

    Examples
    --------
    >>> sinusoidal_positions(3, 4).round(3)
    array([[ 0.   ,  1.   ,  0.   ,  1.   ],
           [ 0.841,  0.54 ,  0.01 ,  1.   ],
           [ 0.909, -0.416,  0.02 ,  1.   ]])
    """
    arguments.positions.table(length, size)
    angles = np.arange(length)[:, None] * frequencies(size, 10000.0)  # (L, E/2)
    table = np.empty((length, size))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def rotary(x, positions, *, layout, base=10000.0, size=None):
    """Turn each pair of features by an angle that grows with the position.

    Pair i of the vector at position p is rotated by p · base^(−2i/size) radians, so the dot product
    of a turned query and a turned key depends on their distance only. Which features form a pair is
    a convention that checkpoints disagree on, hence no default:

        layout        pairs, of 6 features
        interleaved   (0, 1) (2, 3) (4, 5)        RoFormer, GPT-J
        half          (0, 3) (1, 4) (2, 5)        GPT-NeoX, Llama as converted for transformers

    Parameters
    ----------
    x : ndarray of shape (B, H, L, D)
        Queries or keys; any axes may stand before D.
    positions : ndarray of shape (L,)
        Broadcasts to x.shape[:-1]: also one number, or (B, 1, L) for rows padded on the left.
    layout : {"interleaved", "half"}
    base : float
        The longest wave is about 2π · base positions.
    size : int, optional
        Turn only this many leading features, an even number; all D unless given.

    Returns
    -------
    ndarray of shape (B, H, L, D)
        Same dtype as `x`; worked out in float64 and rounded once.

    Raises
    ------
    ValueError
        Unknown layout, odd size, positions that do not broadcast.
    TypeError
        `x` is not a float array, or the positions are not numbers.

    Source: Su et al. (2021), section 3.2, equations 14, 15 and 34.

    Examples
    --------
    >>> x = np.array([[1.0, 2, 3, 4]])
    >>> rotary(x, [1], layout="interleaved").round(3)
    array([[-1.143, 1.922, 2.96 , 4.03 ]])
    >>> rotary(x, [1], layout="half").round(3)
    array([[-1.984, 1.96 , 2.462, 4.02 ]])
    """
    arguments.arrays(np.ndarray, x=x)
    positions = arguments.listed("positions", positions)
    size = arguments.positions.rotary(x.shape, positions, layout, base, size)
    angles = positions[..., None] * frequencies(size, base)  # (…, L, size/2)
    cos, sin = np.cos(angles), np.sin(angles)
    if layout == "interleaved":
        first, second = slice(0, size, 2), slice(1, size, 2)
    else:
        first, second = slice(0, size // 2), slice(size // 2, size)
    output = x.copy()  # the products below are float64: each is rounded once, as it is written here
    output[..., first] = x[..., first] * cos - x[..., second] * sin
    output[..., second] = x[..., first] * sin + x[..., second] * cos
    return output


def alibi_slopes(num_heads):
    """Give each head the price that one position of distance costs it.

    With H a power of two, slope_h = 2^(−8h/H) for h = 1 … H. For other H the slopes of the power of
    two below come first, then every other slope of the power of two above.

    Parameters
    ----------
    num_heads : int
        H.

    Returns
    -------
    ndarray of shape (H,)
        float64, in units of score per position.

    Raises
    ------
    ValueError
        `num_heads` is below 1.

    Source: Press, Smith & Lewis (2022), section 3; other H as in the code of the paper.

    Examples
    --------
    >>> alibi_slopes(6)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       , 0.125     ])
    """
    arguments.integer("num_heads", num_heads, low=1)
    below = 2 ** (int(num_heads).bit_length() - 1)
    if below == num_heads:
        return 2.0 ** (-8 / num_heads * np.arange(1, num_heads + 1))
    return np.concatenate([alibi_slopes(below), alibi_slopes(2 * below)[::2][: num_heads - below]])


def alibi_bias(num_heads, q_len, k_len, *, q_offset=0):
    """Lower each score in proportion to the distance between query and key.

    bias(h, i, j) = −slope_h · |i + q_offset − j|, to be passed as `bias`.

    Parameters
    ----------
    num_heads, q_len, k_len : int
        H, L and S.
    q_offset : int or ndarray of shape (B,)
        Number of keys before query 0; S − L after a cache.

    Returns
    -------
    ndarray of shape (1|B, H, L, S)
        float64.

    Raises
    ------
    ValueError
        A size is negative.
    TypeError
        A size or offset is not an int.

    Source: Press, Smith & Lewis (2022), section 3; the absolute value carries it to later keys.

    Examples
    --------
    >>> alibi_bias(8, 2, 4, q_offset=2)[0, 0]
    array([[-1. , -0.5,  0. , -0.5],
           [-1.5, -1. , -0.5,  0. ]])
    """
    arguments.positions.alibi(num_heads, q_len, k_len, q_offset)
    start = np.asarray(q_offset, np.int64).reshape(-1, 1, 1, 1)
    query_at = start + np.arange(q_len)[:, None]  # (1|B, 1, L, 1)
    distance = np.abs(query_at - np.arange(k_len))  # (1|B, 1, L, S)
    return alibi_slopes(num_heads)[:, None, None] * -distance


def frequencies(size, base):
    """Radians per position of each pair of features: base^(−2i/size)."""
    return base ** (-np.arange(0, size, 2) / max(size, 1))
