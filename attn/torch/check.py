"""Let the judge of attn.check try functions of tensors."""

import functools

import numpy as np
import torch


def as_numpy_function(function):
    """Wrap a function of tensors, or a module, as one of arrays.

    Parameters
    ----------
    function : callable
        Takes tensors (and None) in the order of its arguments and returns a tensor.

    Returns
    -------
    callable
        Takes arrays in the same order and returns an array. Tensors share their memory with the
        arrays, so that a function that changes its inputs is seen to do so. Whatever else than a
        tensor `function` returns is handed on as it is.

    Raises
    ------
    TypeError
        `function` cannot be called.

    Source: torch.from_numpy and Tensor.numpy, https://docs.pytorch.org/docs/stable/tensors.html

    Examples
    --------
    >>> from attn import check_attention
    >>> attention = torch.nn.functional.scaled_dot_product_attention
    >>> check_attention(as_numpy_function(attention), grouped=False).passed
    True
    """
    if not callable(function):
        raise TypeError(f"function: expected a callable on tensors, got {function!r}")

    @functools.wraps(function, updated=())  # the signature tells whether there is a mask
    def on_arrays(*arrays):
        tensors = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arrays]
        output = function(*tensors)
        if isinstance(output, torch.Tensor):
            return output.detach().cpu().numpy()
        return output

    return on_arrays
