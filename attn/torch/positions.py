"""Positions on tensors: waves to add, rotations for queries and keys, distances to subtract.

The twin of attn.positions. Angles are formed in float64 where the device has it (MPS has only
float32), whatever dtype the caller works in.
"""

import torch

from attn import arguments
from attn.torch.masks import as_tensor
from attn.torch.operands import without_autocast, working_dtype


def sinusoidal_positions(length, size, *, device=None, dtype=None):
    """Give each position a vector of sines and cosines of falling frequency.

    PE(p, 2i) = sin(p / 10000^(2i/E)), PE(p, 2i + 1) = cos(p / 10000^(2i/E)) for p = 0 … L − 1.

    Parameters
    ----------
    length : int
        L, the number of positions.
    size : int
        E, even: a sine and a cosine share each frequency.
    device : torch.device, optional
    dtype : torch.dtype, optional
        torch's default dtype unless given; worked out in float64 and rounded once.

    Returns
    -------
    Tensor of shape (L, E)

    Raises
    ------
    ValueError
        `size` is odd, or a number is negative.

    Source: Vaswani et al. (2017), section 3.5.

    Examples
    --------
    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    arguments.positions.table(length, size)
    angles = angles_of(torch.arange(length, device=device), size, 10000.0)  # (L, E/2)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return waves.to(torch.get_default_dtype() if dtype is None else dtype)


def rotary(x, positions, *, layout, base=10000.0, size=None):
    """Turn each pair of features by an angle that grows with the position.

    Pair i of the vector at position p is rotated by p · base^(−2i/size) radians.

    Parameters
    ----------
    x : Tensor of shape (B, H, L, D)
        Queries or keys; any axes may stand before D.
    positions : Tensor of shape (L,)
        Broadcasts to x.shape[:-1]: also one number, or (B, 1, L) for rows padded on the left.
    layout : {"interleaved", "half"}
        Pairs are (2i, 2i + 1) or (i, i + size/2); no default, as in attn.rotary.
    base : float
        The longest wave is about 2π · base positions.
    size : int, optional
        Turn only this many leading features, an even number; all D unless given.

    Returns
    -------
    Tensor of shape (B, H, L, D)
        Same dtype as `x`; half precision is multiplied in float32 and rounded once.

    Raises
    ------
    TypeError, ValueError
        As attn.rotary.

    Source: Su et al. (2021), section 3.2, equations 14, 15 and 34.

    Examples
    --------
    >>> rotary(torch.tensor([[1.0, 2, 3, 4]]), [1], layout="interleaved")
    tensor([[-1.1426,  1.9221,  2.9599,  4.0298]])
    """
    arguments.arrays(torch.Tensor, x=x)
    positions = as_tensor(positions, x.device)
    size = arguments.positions.rotary(x.shape, positions, layout, base, size)
    # The pairs as a matrix: one pair a row (interleaved), or the two halves as rows.
    shape, two = ((size // 2, 2), -1) if layout == "interleaved" else ((2, size // 2), -2)
    with without_autocast(x.device):
        wide = x.to(working_dtype(x.dtype))
        angles = angles_of(positions, size, base)  # (…, L, size/2)
        cos, sin = angles.cos().to(wide.dtype), angles.sin().to(wide.dtype)
        first, second = wide[..., :size].unflatten(-1, shape).unbind(two)
        pairs = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=two)
        return torch.cat([pairs.flatten(-2).to(x.dtype), x[..., size:]], dim=-1)


def alibi_slopes(num_heads, *, device=None, dtype=None):
    """Give each head the price that one position of distance costs it.

    With H a power of two, slope_h = 2^(−8h/H) for h = 1 … H. For other H the slopes of the power of
    two below come first, then every other slope of the power of two above.

    Parameters
    ----------
    num_heads : int
        H.
    device : torch.device, optional
    dtype : torch.dtype, optional
        torch's default dtype unless given.

    Returns
    -------
    Tensor of shape (H,)
        In units of score per position.

    Raises
    ------
    ValueError
        `num_heads` is below 1.

    Source: Press, Smith & Lewis (2022), section 3; other H as in the code of the paper.

    Examples
    --------
    >>> alibi_slopes(6)
    tensor([0.2500, 0.0625, 0.0156, 0.0039, 0.5000, 0.1250])
    """
    arguments.integer("num_heads", num_heads, low=1)
    wide = slopes(num_heads, torch.device(device or torch.get_default_device()))
    return wide.to(torch.get_default_dtype() if dtype is None else dtype)


def alibi_bias(num_heads, q_len, k_len, *, q_offset=0, device=None, dtype=None):
    """Lower each score in proportion to the distance between query and key.

    bias(h, i, j) = −slope_h · |i + q_offset − j|, to be passed as `bias`.

    Parameters
    ----------
    num_heads, q_len, k_len : int
        H, L and S.
    q_offset : int or Tensor of shape (B,)
        Number of keys before query 0; S − L after a cache.
    device : torch.device, optional
    dtype : torch.dtype, optional
        torch's default dtype unless given.

    Returns
    -------
    Tensor of shape (1|B, H, L, S)

    Raises
    ------
    TypeError, ValueError
        As attn.alibi_bias.

    Source: Press, Smith & Lewis (2022), section 3; the absolute value carries it to later keys.

    Examples
    --------
    >>> alibi_bias(8, 2, 4, q_offset=2)[0, 0]
    tensor([[-1.0000, -0.5000,  0.0000, -0.5000],
            [-1.5000, -1.0000, -0.5000,  0.0000]])
    """
    arguments.positions.alibi(num_heads, q_len, k_len, q_offset)
    start = as_tensor(q_offset, device).reshape(-1, 1, 1, 1)
    query_at = start + torch.arange(q_len, device=start.device)[:, None]  # (1|B, 1, L, 1)
    nearness = -(query_at - torch.arange(k_len, device=start.device)).abs()  # (1|B, 1, L, S)
    bias = slopes(num_heads, start.device)[:, None, None] * nearness
    dtype = torch.get_default_dtype() if dtype is None else dtype
    # Beyond what a narrow dtype can hold -inf would stand, which removes the key.
    return bias.clamp(min=torch.finfo(dtype).min).to(dtype)


def slopes(num_heads, device):
    """alibi_slopes in the widest float of the device."""
    below = 2 ** (int(num_heads).bit_length() - 1)  # the power of two below H
    wide = widest(device)
    whole = torch.arange(1, below + 1, device=device, dtype=wide)
    between = 1 + 2 * torch.arange(num_heads - below, device=device, dtype=wide)
    return torch.exp2(torch.cat([-8 / below * whole, -4 / below * between]))


def angles_of(positions, size, base):
    """Position times base^(−2i/size), in the widest float of the device."""
    wide = widest(positions.device)
    pair = torch.arange(0, size, 2, device=positions.device, dtype=wide)
    return positions.to(wide)[..., None] * base ** (-pair / max(size, 1))


def widest(device):
    return torch.float32 if device.type == "mps" else torch.float64
