"""Attention differentiated by hand: what each operand must change to change the output.

    With weights P, output O = P V and dX the gradient of a loss with respect to X:

        dV = Pᵀ dO      dP = dO Vᵀ      dS = P ∘ (dP − rowsum(dO ∘ O))
        dQ = scale · dS K               dK = scale · dSᵀ Q

The Jacobian of the softmax, S × S numbers for each query, is never formed: it acts on a row dP as
above, because rowsum(P ∘ dP) = rowsum(dO ∘ O) (Dao et al. 2022, appendix B.2). Lines pair with
those of attn.attention.
"""

from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.attention import fold_groups, masked_scores, normalise, weighted_average
from attn.operands import prepare, working_dtype


class AttentionGradients(NamedTuple):
    """Gradients of a loss, each in the shape and dtype of its operand; None where there is none."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sink: np.ndarray | None


def softmax_backward(grad_weights, weights):
    """The gradient of softmax: from dP and P = softmax(S) to dS.

    dS_j = P_j (dP_j − Σ_k P_k dP_k): how far dP_j lies above its mean under the weights, times P_j.

    Parameters
    ----------
    grad_weights : ndarray of shape (…, S)
    weights : ndarray of shape (…, S)
        The softmax's result, not its argument.

    Returns
    -------
    ndarray of shape (…, S)
        The gradient with respect to the scores; each row sums to 0.

    Raises
    ------
    TypeError, ValueError
        Dtypes or shapes that differ.

    Source: Bridle (1990), section 3.

    Examples
    --------
    >>> softmax_backward(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    array([ 0.1875, -0.1875])
    """
    arguments.arrays(np.ndarray, grad_weights=grad_weights, weights=weights)
    arguments.results.gradient("grad_weights", grad_weights, "weights", weights.shape, "(…, S)")
    wide = working_dtype(weights.dtype)
    grad, P = grad_weights.astype(wide, copy=False), weights.astype(wide, copy=False)
    grad_scores = P * (grad - (P * grad).sum(axis=-1, keepdims=True))
    return grad_scores.astype(weights.dtype, copy=False)


def attention_backward(
    grad_output, query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None,
    q_offset=None,
):  # fmt: skip
    """The gradients of scaled_dot_product_attention, given the gradient of its output.

    Parameters
    ----------
    grad_output : ndarray of shape (B, H, L, Dv)
        Of the dtype of `query`.
    query : ndarray of shape (B, H, L, D)
    key : ndarray of shape (B, Hkv, S, D)
    value : ndarray of shape (B, Hkv, S, Dv)
    mask, bias, scale, softcap, sink, q_offset
        As in attention_weights.

    Returns
    -------
    AttentionGradients
        A named tuple (query, key, value, bias, sink); bias and sink are None where not given. Zero
        for a query that may attend to nothing and for a key that no query may see.

    Raises
    ------
    TypeError, ValueError
        As scaled_dot_product_attention; also a `grad_output` that is not of the output's shape.

    Source: Dao et al. (2022), appendix B.2; shared key heads add up, Ainslie et al. (2023).

    Examples
    --------
    >>> query, key, value = np.zeros((1, 1)), np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])
    >>> grad = attention_backward(np.ones((1, 1)), query, key, value)
    >>> grad.query, grad.value.ravel()
    (array([[0.5]]), array([0.5, 0.5]))
    """
    call = prepare(
        query, key, value, mask, bias=bias, scale=scale, softcap=softcap, sink=sink,
        q_offset=q_offset,
    )  # fmt: skip
    size = call.size
    arguments.arrays(np.ndarray, grad_output=grad_output, query=query)
    output_shape = (*query.shape[:-1], size.Dv)
    arguments.results.gradient("grad_output", grad_output, "output", output_shape, "(B, H, L, Dv)")
    grad_output = grad_output.reshape(size.B, size.H, size.L, size.Dv).astype(call.query.dtype)

    weights, sink_weight = weights_and_sink(call)
    mean = (grad_output * weighted_average(weights, call.value)).sum(axis=-1, keepdims=True)
    rows = fold_groups(grad_output, size.Hkv)  # (B, Hkv, G·L, Dv)
    grad_weights = (rows @ call.value.swapaxes(-1, -2)).reshape(weights.shape)
    grad_scores = weights * (grad_weights - mean)  # (B, H, L, S)
    grad_value = fold_groups(weights, size.Hkv).swapaxes(-1, -2) @ rows
    grad_query, grad_key = through_product(grad_scores, call)
    return AttentionGradients(
        grad_query.astype(query.dtype).reshape(query.shape),
        grad_key.astype(key.dtype).reshape(key.shape),
        grad_value.astype(value.dtype).reshape(value.shape),
        None if bias is None else sum_to(grad_scores, bias, size).astype(bias.dtype),
        None if sink is None else -(sink_weight * mean).sum(axis=(0, 2, 3)).astype(sink.dtype),
    )


def weights_and_sink(call):
    """P (B, H, L, S), and the share of each row that went to the sink (B, H, L, 1)."""
    scores = masked_scores(call)
    if call.sink is None:
        return normalise(scores), None
    # The sink is one more key, with the value 0: its dP is 0, so its dS is −(its share · mean).
    logit = np.broadcast_to(call.sink[:, None, None], (*scores.shape[:-1], 1))
    weights = normalise(np.concatenate([scores, logit], axis=-1))
    return weights[..., :-1], weights[..., -1:]


def through_product(grad_scores, call):
    """From dS to dQ and dK, back through softcap, scale and the product Q Kᵀ."""
    if call.softcap is not None:
        capped = masked_scores(call._replace(bias=None, keep=None))
        grad_scores = grad_scores * (1 - (capped / call.softcap) ** 2)  # tanh′ = 1 − tanh²
    rows = call.scale * fold_groups(grad_scores, call.size.Hkv)  # (B, Hkv, G·L, S)
    grad_query = (rows @ call.key).reshape(call.query.shape)
    # The product sums over the G · L rows, so the query heads of a group add up in their key head.
    return grad_query, rows.swapaxes(-1, -2) @ fold_groups(call.query, call.size.Hkv)


def sum_to(grad_scores, bias, size):
    """Undo the broadcast of bias: sum dS over the axes along which one number served many pairs."""
    grad = grad_scores.reshape(*(size.batch or (1,)), *grad_scores.shape[1:])
    shape = (1,) * (grad.ndim - bias.ndim) + bias.shape
    shared = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return grad.sum(axis=shared).reshape(bias.shape)
