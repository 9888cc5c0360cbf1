"""Attention differentiated by hand: what each operand must change to change the output.

    With weights P, output O = P V and dX the gradient of a loss with respect to X:

        dV = Pᵀ dO      dP = dO Vᵀ      dS = P ∘ (dP − rowsum(dO ∘ O))
        dQ = scale · dS K               dK = scale · dSᵀ Q

The Jacobian of the softmax, S × S numbers for each query, is never formed: it acts on a row dP as
above, because rowsum(P ∘ dP) = rowsum(dO ∘ O) (Dao et al. 2022, appendix B.2). Lines pair with
those of attn.attention.
"""

import math
from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.attention import fold_groups, masked_scores, normalise, weighted_average
from attn.operands import (
    call,
    careful_product,
    empty_unseen,
    resolved,
    without_warnings,
    working_dtype,
)


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


@arguments.explained
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
    checked = call(
        query, key, value, mask, bias=bias, scale=scale, softcap=softcap, sink=sink,
        q_offset=q_offset,
    )  # fmt: skip
    size = checked.size
    arguments.arrays(np.ndarray, grad_output=grad_output, query=query)
    output_shape = (*query.shape[:-1], size.Dv)
    arguments.results.gradient("grad_output", grad_output, "output", output_shape, "(B, H, L, Dv)")
    forward = resolved(checked)
    grad_output = grad_output.reshape(size.B, size.H, size.L, size.Dv).astype(forward.query.dtype)
    keep = forward.keep if size.S else np.zeros((1, 1, 1, 1), bool)
    if keep is not None:  # the output of a row without keys is 0, whatever comes back to it
        grad_output = empty_unseen(grad_output, keep.any(axis=-1))

    grad_query, grad_key, grad_value, grad_scores, grad_sink = gradients(forward, grad_output)
    return AttentionGradients(
        grad_query.astype(query.dtype).reshape(query.shape),
        grad_key.astype(key.dtype).reshape(key.shape),
        grad_value.astype(value.dtype).reshape(value.shape),
        None if bias is None else sum_to(grad_scores, bias, size).astype(bias.dtype),
        None if sink is None else grad_sink.astype(sink.dtype),
    )


@without_warnings
def gradients(call, grad_output):
    """dQ, dK, dV, dS and the gradient of the sink, in the working dtype."""
    weights, sink_weight = weights_and_sink(call)
    output = weighted_average(weights, call.value, call.keep)
    mean = (grad_output * output).sum(axis=-1, keepdims=True)  # (B, H, L, 1)
    rows = fold_groups(grad_output, call.size.Hkv)  # (B, Hkv, G·L, Dv)
    grad_weights = (rows @ call.value.swapaxes(-1, -2)).reshape(weights.shape)
    grad_scores = selected(weights * (grad_weights - mean), call.keep)  # (B, H, L, S)
    grad_value = sum_over_queries(weights, grad_output, call)
    grad_query, grad_key = through_product(grad_scores, call)
    grad_sink = None if call.sink is None else -(sink_weight * mean).sum(axis=(0, 2, 3))
    return grad_query, grad_key, grad_value, grad_scores, grad_sink


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
        slope = 1 - (capped / call.softcap) ** 2  # tanh′ = 1 − tanh²
        grad_scores = selected(grad_scores * slope, call.keep)
    rows = call.scale * grad_scores
    return weighted_average(rows, call.key, call.keep), sum_over_queries(rows, call.query, call)


def sum_over_queries(weights, rows, call):
    """What all queries add to a slot: (B, H, L, S) and (B, H, L, width) to (B, Hkv, S, width)."""
    # The product sums over the G · L rows, so the query heads of a group add up in their key head.
    size = call.size
    result = fold_groups(weights, size.Hkv).swapaxes(-1, -2) @ fold_groups(rows, size.Hkv)
    if call.keep is None or np.isfinite(result).all():
        return result
    result = careful_product(weights.swapaxes(-1, -2), rows, call.keep.swapaxes(-1, -2))
    return result.reshape(size.B, size.Hkv, -1, *result.shape[-2:]).sum(axis=2)


def selected(grad_scores, keep):
    """dS is 0 where the pair takes no part, also where 0 was multiplied by NaN."""
    return grad_scores if keep is None else np.where(keep, grad_scores, 0)


def sum_to(grad_scores, bias, size):
    """Undo the broadcast of bias: sum dS over the axes along which one number served many pairs."""
    shape, batch = (1,) * (4 - bias.ndim) + bias.shape, size.batch
    if math.prod(shape[:-3]) in (1, size.B):  # no batch axis, or all of them flattened into one
        shape, batch = (math.prod(shape[:-3]), *shape[-3:]), (size.B,)
    grad = grad_scores.reshape(*batch, *grad_scores.shape[1:])
    shape = (1,) * (grad.ndim - len(shape)) + shape
    shared = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return grad.sum(axis=shared).reshape(bias.shape)
