"""Additive scores and Luong's on tensors, and the additive attention layer.

The twin of attn.additive, with AdditiveAttention, the nn.Module.
"""

import torch
from torch import nn

from attn import arguments
from attn.torch.attention import normalise, weighted_average
from attn.torch.masks import lay, may_read_values
from attn.torch.operands import all_finite, empty_unseen, without_autocast, working_dtype


def additive_weights(query, key, w_query, w_key, v, mask=None, *, q_offset=None):
    """Weigh the keys for each query with a small network of one hidden layer.

    α = softmax(e), e_ij = vᵀ tanh(W_q q_i + W_k k_j), with A hidden features.

    Parameters
    ----------
    query : Tensor of shape (B, L, Dq)
        Also (L, Dq), or (B, H, L, Dq) for H heads that share the network.
    key : Tensor of shape (B, S, Dk)
    w_query : Tensor of shape (Dq, A)
        The input stands on the left: query @ w_query.
    w_key : Tensor of shape (Dk, A)
    v : Tensor of shape (A,)
    mask : Mask or Tensor of bool, optional
        True = may attend; a tensor broadcasts to (B, L, S), or to (B, 1, L, S) as from dense_mask.
    q_offset : int or Tensor of shape (B,), optional
        Number of keys before query 0, for rules that compare positions.

    Returns
    -------
    Tensor of shape (B, L, S)
        Rows sum to 1, or are 0 where a query may attend to nothing.

    Raises
    ------
    TypeError, ValueError
        As attn.additive_weights.

    Source: Bahdanau, Cho & Bengio (2015), section 3.1 and appendix A.1.2.

    Examples
    --------
    >>> query, key = torch.tensor([[0.0], [1.0]]), torch.tensor([[-1.0], [0.0], [1.0]])
    >>> additive_weights(query, key, torch.eye(1), torch.eye(1), torch.ones(1))
    tensor([[0.1294, 0.2771, 0.5935],
            [0.1735, 0.3716, 0.4549]])
    """
    arguments.arrays(torch.Tensor, query=query, key=key, w_query=w_query, w_key=w_key, v=v)
    size, keep = prepared(query, key, mask, q_offset)
    arguments.additive.weights(query.shape, key.shape, w_query.shape, w_key.shape, v.shape)
    wide = working_dtype(query.dtype)
    with without_autocast(query.device):
        query_part = slots(query, keep, -1, size).to(wide) @ w_query.to(wide)
        key_part = slots(key, keep, -2, size).to(wide) @ w_key.to(wide)
        weights = weigh(query_part, key_part, v, keep)
    return weights.to(query.dtype).reshape(*query.shape[:-1], size.S)


def luong_scores(query, key, weight=None, v=None):
    """Score each key for each query in one of Luong's three ways; the operands say in which.

    q · k without a weight (dot), qᵀ W k with one (general), vᵀ tanh(W [q; k]) with both (concat).

    Parameters
    ----------
    query : Tensor of shape (B, L, Dq)
        Also (L, Dq), or (B, H, L, Dq).
    key : Tensor of shape (B, S, Dk)
        Dk = Dq for dot.
    weight : Tensor of shape (Dq, Dk), optional
        For concat (Dq + Dk, A): the rows of the query, then those of the key.
    v : Tensor of shape (A,), optional

    Returns
    -------
    Tensor of shape (B, L, S)
        Scores, before mask and softmax, and without a scale.

    Raises
    ------
    TypeError, ValueError
        As attn.luong_scores.

    Source: Luong, Pham & Manning (2015), section 3.1.

    Examples
    --------
    >>> luong_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([[3., 2.]])
    """
    weights = {name: x for name, x in (("weight", weight), ("v", v)) if x is not None}
    arguments.arrays(torch.Tensor, query=query, key=key, **weights)
    arguments.additive.sizes(query.shape, key.shape)
    arguments.additive.luong(
        query.shape, key.shape, **{name: x.shape for name, x in weights.items()}
    )
    dtype, wide = query.dtype, working_dtype(query.dtype)
    with without_autocast(query.device):
        query, key = query.to(wide), key.to(wide)
        if weight is None:
            return (query @ key.mT).to(dtype)
        if v is None:
            return (query @ weight.to(wide) @ key.mT).to(dtype)
        w_query, w_key = weight.to(wide).split([query.shape[-1], key.shape[-1]])
        return hidden_scores(query @ w_query, key @ w_key, v.to(wide)).to(dtype)


def hidden_scores(query_part, key_part, v):
    """vᵀ tanh(a_i + b_j) for all pairs: (…, L, A) and (…, S, A) to (…, L, S)."""
    return torch.tanh(query_part.unsqueeze(-2) + key_part.unsqueeze(-3)) @ v


class AdditiveAttention(nn.Module):
    """Additive attention as a layer: a decoder's states ask, an encoder's annotations answer.

    Parameters
    ----------
    query_size, key_size : int
        Dq and Dk.
    hidden_size : int
        A, the features in which query and key are added.

    Attributes
    ----------
    query, key : nn.Linear
        The projections, without bias as in the paper; their `weight` is the transpose of w_query
        and w_key.
    v : nn.Parameter of shape (A,)

    Raises
    ------
    ValueError, TypeError
        A size that is below 1 or no int.

    Source: Bahdanau, Cho & Bengio (2015), section 3.1 and appendix A.1.2.

    Examples
    --------
    >>> layer = AdditiveAttention(query_size=3, key_size=5, hidden_size=7)
    >>> query, key, value = torch.zeros(2, 1, 3), torch.zeros(2, 4, 5), torch.zeros(2, 4, 6)
    >>> layer(query, key, value).shape, layer.weights(query, key).shape
    (torch.Size([2, 1, 6]), torch.Size([2, 1, 4]))
    """

    def __init__(self, query_size, key_size, hidden_size):
        super().__init__()
        sizes = {"query_size": query_size, "key_size": key_size, "hidden_size": hidden_size}
        for name, size in sizes.items():
            arguments.integer(name, size, low=1)
        self.query = nn.Linear(query_size, hidden_size, bias=False)
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size))
        nn.init.uniform_(self.v, -(hidden_size**-0.5), hidden_size**-0.5)  # as nn.Linear does

    def forward(self, query, key, value, mask=None, *, q_offset=None):
        """Average the values: (B, L, Dq), (B, S, Dk) and (B, S, Dv) to (B, L, Dv)."""
        dtype = value.dtype
        weights, keep, size = self._parts(query, key, mask, q_offset, value)
        with without_autocast(value.device):
            wide = working_dtype(value.dtype)
            value, guard = slots(value, keep, -2, size).to(wide), None
            if keep is not None and may_read_values(value.device) and all_finite(value) is False:
                guard = keep.expand(weights.shape)  # NaN reaches the rows that see it, no others
            output = weighted_average(weights.to(wide), value, guard)
        return output.to(dtype).reshape(*query.shape[:-1], size.Dv)

    def weights(self, query, key, mask=None, *, q_offset=None):
        """What each query takes from each key: (B, L, S)."""
        weights, _, size = self._parts(query, key, mask, q_offset)
        return weights.to(query.dtype).reshape(*query.shape[:-1], size.S)

    def _parts(self, query, key, mask, q_offset, value=None):
        arguments.heads.embedded(self.query.in_features, query=query)
        arguments.heads.embedded(self.key.in_features, key=key)
        size, keep = prepared(query, key, mask, q_offset, value)
        query_part = self.query(slots(query, keep, -1, size))
        key_part = self.key(slots(key, keep, -2, size))
        with without_autocast(query.device):
            return weigh(query_part, key_part, self.v, keep), keep, size


def prepared(query, key, mask, q_offset, value=None):
    size = arguments.additive.sizes(query.shape, key.shape, None if value is None else value.shape)
    read_values = may_read_values(query.device)
    mask = arguments.additive.mask(mask, size, query.ndim, q_offset, torch.Tensor, read_values)
    laid = lay(mask, size, q_offset, query.device)
    return size, None if laid is None else laid.pairs()


def slots(x, keep, dim, size):
    """Queries (dim -1), keys or values (dim -2) as (B, H, …), 0 where they take part in no pair."""
    taking_part = None if keep is None else keep.any(dim=dim)
    return empty_unseen(x.reshape(size.B, size.H, *x.shape[-2:]), taking_part)


def weigh(query_part, key_part, v, keep):
    wide = working_dtype(query_part.dtype)
    scores = hidden_scores(query_part.to(wide), key_part.to(wide), v.to(wide))  # (B, H, L, S)
    return normalise(scores if keep is None else scores.masked_fill(~keep, -torch.inf))
