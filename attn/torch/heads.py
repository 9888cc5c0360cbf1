"""Heads on tensors: several small attentions side by side, and the layer that learns them.

    head_i = Attention(X W_i^Q, X W_i^K, X W_i^V),  MHA(X) = Concat(head_1 … head_H) W^O
                                                     (Vaswani et al. 2017, section 3.2.2)

The twin of attn.heads, with MultiHeadAttention, the nn.Module.
"""

import torch
from torch import nn

from attn import arguments
from attn.torch.attention import attend, attention_weights, scaled_dot_product_attention
from attn.torch.masks import may_read_values
from attn.torch.operands import without_autocast


def split_heads(x, num_heads):
    """Cut the features into heads and put the heads before the length.

    Parameters
    ----------
    x : Tensor of shape (…, L, H·D)
    num_heads : int
        H.

    Returns
    -------
    Tensor of shape (…, H, L, D)
        A view.

    Raises
    ------
    ValueError
        The features cannot be divided by the heads.

    Source: Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> split_heads(torch.arange(8).reshape(2, 4), 2).shape
    torch.Size([2, 2, 2])
    """
    arguments.heads.splits("num_heads", num_heads, x.shape)
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(-3, -2)


def merge_heads(x):
    """Undo split_heads: lay the heads' features side by side again.

    Parameters
    ----------
    x : Tensor of shape (…, H, L, D)

    Returns
    -------
    Tensor of shape (…, L, H·D)

    Raises
    ------
    ValueError
        `x` has fewer than three axes.

    Source: "Concat" in Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> merge_heads(split_heads(torch.arange(8).reshape(2, 4), 2))
    tensor([[0, 1, 2, 3],
            [4, 5, 6, 7]])
    """
    arguments.rank("x", x.shape, 3, "(…, H, L, D)")
    return x.transpose(-3, -2).flatten(-2)


def repeat_kv(x, groups):
    """Repeat each key or value head for the query heads that share it.

    Parameters
    ----------
    x : Tensor of shape (…, Hkv, S, D)
    groups : int
        G, query heads per key head.

    Returns
    -------
    Tensor of shape (…, Hkv·G, S, D)
        Copies are neighbours (repeat_interleave), not tiled (repeat).

    Raises
    ------
    ValueError
        `groups` is below 1, or `x` has fewer than three axes.

    Source: Ainslie et al. (2023), section 2.2.

    Examples
    --------
    >>> repeat_kv(torch.tensor([[[1.0]], [[2.0]]]), 2).ravel()
    tensor([1., 1., 2., 2.])
    """
    arguments.rank("x", x.shape, 3, "(…, Hkv, S, D)")
    arguments.integer("groups", groups, low=1)
    return x.repeat_interleave(groups, dim=-3)


def multi_head_attention(
    x, w_query, w_key, w_value, w_output, *, num_heads, num_kv_heads=None, context=None, mask=None,
    bias=None, cache=None, q_offset=None,
):  # fmt: skip
    """Project, attend in every head, concatenate, project back.

    Parameters
    ----------
    x : Tensor of shape (B, L, E)
        Also (L, E).
    w_query, w_key, w_value, w_output : Tensor
        Shapes (E, H·D), (E, Hkv·D), (E, Hkv·Dv) and (H·Dv, E): the input stands on the left.
    num_heads, num_kv_heads, context, mask, bias, cache, q_offset
        As in attn.multi_head_attention.

    Returns
    -------
    Tensor of shape (B, L, E)

    Raises
    ------
    TypeError, ValueError
        As attn.multi_head_attention.

    Source: Vaswani et al. (2017), section 3.2.2; shared key heads, Ainslie et al. (2023).

    Examples
    --------
    >>> x, eye = torch.arange(6.0).reshape(1, 3, 2), torch.eye(2)
    >>> multi_head_attention(x, eye, eye, eye, eye, num_heads=2)
    tensor([[[2.0000, 4.7019],
             [3.9627, 4.9950],
             [3.9993, 4.9999]]])
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    source = x if context is None else context
    weights = dict(w_query=w_query, w_key=w_key, w_value=w_value, w_output=w_output)
    arguments.arrays(torch.Tensor, x=x, context=source, **weights)
    arguments.heads.projections(x.shape, source.shape, num_heads, num_kv_heads, **weights)
    with without_autocast(x.device):
        query = split_heads(x @ w_query, num_heads)  # (B, H, L, D)
        key = split_heads(source @ w_key, num_kv_heads)  # (B, Hkv, S, D)
        value = split_heads(source @ w_value, num_kv_heads)  # (B, Hkv, S, Dv)
        if cache is not None:
            key, value, q_offset = _cached(cache, query, key, value, mask, bias, context, q_offset)
        output = scaled_dot_product_attention(query, key, value, mask, bias=bias, q_offset=q_offset)
        return merge_heads(output) @ w_output


def _cached(cache, query, key, value, mask, bias, context, q_offset):
    arguments.heads.cached_call(
        cache, query, key, value, mask, bias, context, q_offset, torch.Tensor,
        may_read_values(query.device),
    )  # fmt: skip
    key, value = cache.append(key, value)
    return key, value, key.shape[-2] - query.shape[-2]


class MultiHeadAttention(nn.Module):
    """Multi-head attention as a layer, with grouped key heads and dropout on the weights.

    Parameters
    ----------
    embed_dim : int
        E; a multiple of H.
    num_heads, num_kv_heads : int
        H and Hkv; Hkv is H unless given, and divides it.
    dropout : float
        Probability with which a weight is dropped, in training mode only.
    bias : bool
        Whether the four projections add a learned bias.

    Attributes
    ----------
    query, key, value, output : nn.Linear
        The projections; their `weight` is the transpose of W^Q, W^K, W^V, W^O.

    Raises
    ------
    ValueError
        Sizes that do not divide each other, or a dropout outside [0, 1].

    Source: Vaswani et al. (2017), section 3.2.2; Ainslie et al. (2023).

    Examples
    --------
    >>> layer = MultiHeadAttention(12, num_heads=4, num_kv_heads=2)
    >>> layer(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    >>> layer.weights(torch.zeros(2, 5, 12))[0, 0, 0]
    tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, embed_dim, num_heads, num_kv_heads=None, *, dropout=0.0, bias=True):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        arguments.heads.layer(embed_dim, num_heads, num_kv_heads, dropout)
        self.num_heads, self.num_kv_heads, self.dropout = num_heads, num_kv_heads, dropout
        kv_dim = embed_dim // num_heads * num_kv_heads
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.value = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x, context=None, *, mask=None, bias=None, cache=None, q_offset=None):
        """Attend from x to itself or to `context`: (B, L, E) -> (B, L, E)."""
        query, key, source = self._query_and_key(x, context)
        value = split_heads(self.value(source), self.num_kv_heads)  # (B, Hkv, S, D)
        if cache is not None:
            key, value, q_offset = _cached(cache, query, key, value, mask, bias, context, q_offset)
        options = dict(bias=bias, scale=None, softcap=None, sink=None, q_offset=q_offset)
        dropout = self.dropout if self.training else 0.0
        return self.output(merge_heads(attend(query, key, value, mask, options, dropout)))

    def weights(self, x, context=None, *, mask=None, bias=None, q_offset=None):
        """The weights of every head, before dropout: (B, H, L, S)."""
        query, key, _ = self._query_and_key(x, context)
        return attention_weights(query, key, mask, bias=bias, q_offset=q_offset)

    def _query_and_key(self, x, context):
        source = x if context is None else context
        arguments.arrays(torch.Tensor, x=x, context=source)
        if not torch.is_autocast_enabled(x.device.type):  # autocast brings x to its own dtype
            arguments.arrays(torch.Tensor, x=x, layer=self.query.weight)
        arguments.heads.embedded(self.query.in_features, x=x, context=source)
        query = split_heads(self.query(x), self.num_heads)  # (B, H, L, D)
        key = split_heads(self.key(source), self.num_kv_heads)  # (B, Hkv, S, D)
        return query, key, source

    @classmethod
    def from_torch(cls, module):
        """A layer with the weights, dropout, mode, dtype and device of an nn.MultiheadAttention."""
        arguments.heads.torch_module(module)
        weight, bias = module.in_proj_weight, module.in_proj_bias
        sizes = module.embed_dim, module.num_heads
        layer = cls(*sizes, dropout=module.dropout, bias=bias is not None).to(weight)
        for i, linear in enumerate((layer.query, layer.key, layer.value)):
            given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
            linear.load_state_dict({name: x.chunk(3)[i] for name, x in given.items()})
        layer.output.load_state_dict(module.out_proj.state_dict())
        return layer.train(module.training)
