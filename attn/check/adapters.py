"""Functions of other shapes, as functions of (B, H, L, D) that the judge can call.

An adapter is a few lines, to be read before it is trusted. Imports nothing from the package.
"""

import functools

import numpy as np


def one_head(function):
    """Wrap a function of one head: matrices (L, D), (S, D), (S, Dv) and a mask (L, S) or None.

    It is called for each batch row and head.

    Examples
    --------
    >>> import attn
    >>> print(attn.check_attention(one_head(attn.scaled_dot_product_attention)).passed)
    True
    """

    @functools.wraps(function, updated=())  # the judge asks the signature for a mask
    def attention(query, key, value, *mask):
        B, H, L, _ = query.shape
        groups = H // key.shape[1]
        full = (B, H, L, key.shape[2])
        mask = [None if x is None else np.broadcast_to(x, full) for x in mask]
        output = [
            [
                function(
                    query[b, h],
                    key[b, h // groups],
                    value[b, h // groups],
                    *(None if x is None else x[b, h] for x in mask),
                )
                for h in range(H)
            ]
            for b in range(B)
        ]
        return np.array(output)

    return attention


def merged_batch(function):
    """Wrap a function of three axes: (N, L, D), (N, S, D), (N, S, Dv), a mask (N, L, S) or None.

    N = B·H, with batch row 0's heads first; key heads are repeated before.

    Examples
    --------
    >>> import attn
    >>> three = lambda q, k, v, m: attn.scaled_dot_product_attention(
    ...     q[:, None], k[:, None], v[:, None], None if m is None else m[:, None])[:, 0]
    >>> print(attn.check_attention(merged_batch(three)).passed)
    True
    """

    @functools.wraps(function, updated=())  # the judge asks the signature for a mask
    def attention(query, key, value, *mask):
        B, H, L, _ = query.shape
        groups = H // key.shape[1]
        flat = [
            x.reshape(B * H, *x.shape[2:])
            for x in (query, np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1))
        ]
        full = (B, H, L, key.shape[2])
        flat += [
            None if x is None else np.broadcast_to(x, full).reshape(B * H, *full[2:]) for x in mask
        ]
        return np.asarray(function(*flat)).reshape(B, H, L, value.shape[3])

    return attention


def merged_heads(function, *, sequence_first=False):
    """Wrap a function of merged heads: `function(query, key, value, mask, num_heads)`.

    Its operands have shapes (B, L, H·D), (B, S, H·D), (B, S, H·Dv), with `sequence_first` (L, B,
    H·D) and so on; its mask has four axes, as ever. Key heads are repeated before. Values of
    another width than the keys are handed over in pieces of that width, for each column of the
    values is averaged on its own.

    Examples
    --------
    >>> import attn
    >>> def merged(q, k, v, mask, H):
    ...     heads = (attn.split_heads(x, H) for x in (q, k, v))
    ...     return attn.merge_heads(attn.scaled_dot_product_attention(*heads, mask))
    >>> print(attn.check_attention(merged_heads(merged)).passed)
    True
    """

    def attention(query, key, value, mask):
        (B, H, L, D), Dv = query.shape, value.shape[3]
        groups = H // key.shape[1]
        key, value = np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)
        value = np.pad(value, ((0, 0), (0, 0), (0, 0), (0, -Dv % D)))
        outputs = []
        for start in range(0, Dv, D):
            flat = []
            for x in (query, key, value[..., start : start + D]):
                x = x.swapaxes(1, 2).reshape(B, x.shape[2], H * D)
                flat.append(x.swapaxes(0, 1).copy() if sequence_first else x)
            output = np.asarray(function(*flat, mask, H))
            output = output.swapaxes(0, 1) if sequence_first else output
            outputs.append(output.reshape(B, L, H, D).swapaxes(1, 2))
        return np.concatenate(outputs, axis=-1)[..., :Dv]

    return attention


def first_output(function):
    """Wrap a function that returns a tuple or list whose first part is the output.

    Examples
    --------
    >>> import attn
    >>> both = lambda *call: (attn.scaled_dot_product_attention(*call), "the weights")
    >>> print(attn.check_attention(first_output(both)).passed)
    True
    """

    @functools.wraps(function, updated=())  # the judge asks the signature for a mask
    def attention(*operands):
        output = function(*operands)
        return output[0] if isinstance(output, tuple | list) else output

    return attention


def from_layer(make):
    """Wrap a layer of self-attention, x to y, whose weights can be set. Say square=True with it.

    Parameters
    ----------
    make : callable
        `make(w_query, w_key, w_value, w_output, num_heads)` takes four arrays of shape (E, E),
        to be used as x @ w, without biases, and returns `layer(x, mask) -> y` for x and y of shape
        (B, L, E). E varies from call to call.

    Returns
    -------
    callable
        A function of query, key, value, mask. x holds the three side by side in each head, and the
        weights pick them out again. The layer's heads are therefore at least five times as wide,
        and the queries make up for the scale: a layer without a scale is told "another scale".

    Examples
    --------
    >>> import attn
    >>> def make(w_query, w_key, w_value, w_output, H):
    ...     def layer(x, mask):
    ...         heads = (attn.split_heads(x @ w, H) for w in (w_query, w_key, w_value))
    ...         return attn.merge_heads(attn.scaled_dot_product_attention(*heads, mask)) @ w_output
    ...     return layer
    >>> print(attn.check_attention(from_layer(make), square=True).passed)
    True
    """

    def attention(query, key, value, mask):
        (B, H, L, D), Dv = query.shape, value.shape[3]
        groups, wide = H // key.shape[1], D * max(5, -(-(2 * D + Dv) // D))
        parts = (query, np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1))
        x = np.concatenate(parts, axis=-1)
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, wide - x.shape[3])))
        x = x.swapaxes(1, 2).reshape(B, L, H * wide)

        def pick(start, width, factor=1.0):  # these columns of every head, moved to its front
            one = np.zeros((wide, wide), x.dtype)
            one[start : start + width, :width] = factor * np.eye(width)
            return np.kron(np.eye(H, dtype=x.dtype), one)

        w_query, w_key = pick(0, D, (wide / D) ** 0.5), pick(D, D)
        layer = make(w_query, w_key, pick(2 * D, Dv), np.eye(H * wide, dtype=x.dtype), H)
        output = np.asarray(layer(x, mask)).reshape(B, L, H, wide)
        return output.swapaxes(1, 2)[..., :Dv].copy()

    return attention
