"""Heads on tensors: several small attentions side by side, and the layer that learns them.

    head_i = Attention(X W_i^Q, X W_i^K, X W_i^V),  MHA(X) = Concat(head_1 … head_H) W^O
                                                     (Vaswani et al. 2017, section 3.2.2)

The twin of attn.heads, with MultiHeadAttention, the nn.Module.
"""

import math
import warnings

import torch
from torch import nn

from attn import arguments
from attn.torch.attention import attend, attention_weights, scaled_dot_product_attention
from attn.torch.masks import as_tensor
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
    TypeError
        `x` is not a tensor.

    Source: Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> split_heads(torch.arange(8).reshape(2, 4), 2).shape
    torch.Size([2, 2, 2])
    """
    arguments.one_library(torch.Tensor, "x", x)
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
    TypeError
        `x` is not a tensor.

    Source: "Concat" in Vaswani et al. (2017), section 3.2.2.

    Examples
    --------
    >>> merge_heads(split_heads(torch.arange(8).reshape(2, 4), 2))
    tensor([[0, 1, 2, 3],
            [4, 5, 6, 7]])
    """
    arguments.one_library(torch.Tensor, "x", x)
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
    TypeError
        `x` is not a tensor.

    Source: Ainslie et al. (2023), section 2.2.

    Examples
    --------
    >>> repeat_kv(torch.tensor([[[1.0]], [[2.0]]]), 2).ravel()
    tensor([1., 1., 2., 2.])
    """
    arguments.one_library(torch.Tensor, "x", x)
    arguments.rank("x", x.shape, 3, "(…, Hkv, S, D)")
    arguments.integer("groups", groups, low=1)
    return x.repeat_interleave(groups, dim=-3)


@arguments.explained
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
    if cache is not None:
        arguments.heads.cached_call(cache, mask, context, q_offset)
    with without_autocast(x.device):
        query = split_heads(x @ w_query, num_heads)  # (B, H, L, D)
        key = split_heads(source @ w_key, num_kv_heads)  # (B, Hkv, S, D)
        value = split_heads(source @ w_value, num_kv_heads)  # (B, Hkv, S, Dv)
        keys, values = key, value
        if cache is not None:
            keys, values = cache.preview(key, value)
            q_offset = keys.shape[-2] - query.shape[-2]
        output = scaled_dot_product_attention(
            query, keys, values, mask, bias=bias, q_offset=q_offset
        )
        output = merge_heads(output) @ w_output
        if cache is not None:
            cache.store(key, value)
        return output


class MultiHeadAttention(nn.Module):
    """Multi-head attention as a layer: grouped key heads, rotated positions, dropout on weights.

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
    rotary : function or nn.Module, optional
        Turns queries and keys, of shape (…, L, D), by their positions: rotary(x, positions), such
        as functools.partial(attn.torch.rotary, layout="half").

    Attributes
    ----------
    query, key, value, output : nn.Linear
        The projections; their `weight` is the transpose of W^Q, W^K, W^V, W^O.

    Raises
    ------
    ValueError
        Sizes that do not divide each other, or a dropout outside [0, 1].
    TypeError
        `rotary` is no function.

    Source: Vaswani et al. (2017), section 3.2.2; Ainslie et al. (2023); rotary, Su et al. (2021),
    section 3.4.

    Examples
    --------
    >>> layer = MultiHeadAttention(12, num_heads=4, num_kv_heads=2)
    >>> layer(torch.zeros(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    >>> layer.weights(torch.zeros(2, 5, 12))[0, 0, 0]
    tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], grad_fn=<SelectBackward0>)

    The same tokens at other positions, with rotary:

    >>> from functools import partial
    >>> from attn.torch import rotary
    >>> layer = MultiHeadAttention(12, 3, rotary=partial(rotary, layout="half"))
    >>> x = torch.randn(1, 5, 12)
    >>> here, there = layer.weights(x), layer.weights(x, positions=torch.arange(100, 105))
    >>> torch.allclose(here, there, atol=1e-5)  # only distances count
    True
    """

    @arguments.explained
    def __init__(
        self, embed_dim, num_heads, num_kv_heads=None, *, dropout=0.0, bias=True, rotary=None
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        arguments.heads.layer(embed_dim, num_heads, num_kv_heads, dropout)
        arguments.heads.rotary(rotary)
        self.rotary = rotary
        self.num_heads, self.num_kv_heads, self.dropout = num_heads, num_kv_heads, dropout
        kv_dim = embed_dim // num_heads * num_kv_heads
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.value = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)

    @arguments.explained
    def forward(
        self, x, context=None, *, mask=None, bias=None, cache=None, q_offset=None, positions=None
    ):
        """Attend from x to itself or to `context`: (B, L, E) -> (B, L, E).

        Options are those of multi_head_attention; `positions` are those of `heads`.
        """
        if cache is not None:
            arguments.heads.cached_call(cache, mask, context, q_offset)
        query, key, value = self.heads(
            x, context, cache=cache, q_offset=q_offset, positions=positions
        )
        keys, values = key, value
        if cache is not None:
            keys, values = cache.preview(key, value)
            q_offset = keys.shape[-2] - query.shape[-2]
        options = dict(bias=bias, scale=None, softcap=None, sink=None, q_offset=q_offset)
        dropout = self.dropout if self.training else 0.0
        output = self.output(merge_heads(attend(query, keys, values, mask, options, dropout)))
        if cache is not None:
            cache.store(key, value)
        return output

    @arguments.explained
    def weights(self, x, context=None, *, mask=None, bias=None, q_offset=None, positions=None):
        """The weights of every head, before dropout: (B, H, L, S)."""
        query, key, _ = self.heads(x, context, q_offset=q_offset, positions=positions)
        return attention_weights(query, key, mask, bias=bias, q_offset=q_offset)

    @arguments.explained
    def heads(self, x, context=None, *, cache=None, q_offset=None, positions=None):
        """What the heads attend with: projected, cut into heads, and turned by `rotary`.

        Parameters
        ----------
        x : Tensor of shape (B, L, E)
        context : Tensor of shape (B, S, E), optional
            Where keys and values come from; `x` itself unless given.
        cache : KVCache, optional
            Says where x goes on: at position cache.length. Nothing is put into it.
        q_offset : int or Tensor of shape (B,), optional
            Number of keys before query 0.
        positions : Tensor of shape (L,) or (B, L), optional
            Where each token of x sits, for rotary; rows padded on the left have their own. Counted
            unless given: key j sits at j and query i at i + q_offset, in a context too.

        Returns
        -------
        query : Tensor of shape (B, H, L, D)
        key, value : Tensor of shape (B, Hkv, S, D)
            Of x or the context alone: a cache's keys are not among them.

        Raises
        ------
        TypeError, ValueError
            Inputs of another width or dtype; positions without a rotary or beside a context; a
            rotary with L != S and no q_offset.

        Source: Vaswani et al. (2017), section 3.2.2; Su et al. (2021), section 3.4.

        Examples
        --------
        >>> query, key, value = MultiHeadAttention(12, 4, 2).heads(torch.zeros(1, 5, 12))
        >>> query.shape, key.shape, value.shape
        (torch.Size([1, 4, 5, 3]), torch.Size([1, 2, 5, 3]), torch.Size([1, 2, 5, 3]))
        """
        source = x if context is None else context
        arguments.arrays(torch.Tensor, x=x, context=source)
        if not is_autocast(x.device.type):  # which would bring x to its own dtype
            arguments.arrays(torch.Tensor, x=x, layer=self.query.weight)
        arguments.heads.embedded(self.query.in_features, x=x, context=source)
        arguments.heads.given_positions(positions, self.rotary, context)
        query = split_heads(self.query(x), self.num_heads)  # (B, H, L, D)
        key = split_heads(self.key(source), self.num_kv_heads)  # (B, Hkv, S, D)
        value = split_heads(self.value(source), self.num_kv_heads)  # (B, Hkv, S, D)
        if self.rotary is not None:
            if positions is not None:
                query_at = key_at = beside_heads(positions, x)
            else:
                query_at, key_at = counted_positions(x, source, cache, q_offset)
            query, key = self.rotary(query, query_at), self.rotary(key, key_at)
        return query, key, value

    @classmethod
    def from_torch(cls, module):
        """A layer with the weights, dropout, mode, dtype and device of an nn.MultiheadAttention.

        The layer takes (B, L, E). A module that takes (L, B, E), which is torch's default, becomes
        such a layer too, with a warning that says so.
        """
        arguments.heads.torch_module(module)
        if not module.batch_first:
            warnings.warn(
                "from_torch: the module takes (L, B, E), batch_first=False; the layer made of it "
                "takes (B, L, E): call it with x.transpose(0, 1) (module.batch_first = True says "
                "that you know)",
                stacklevel=2,
            )
        weight, bias = module.in_proj_weight, module.in_proj_bias
        sizes = module.embed_dim, module.num_heads
        layer = cls(*sizes, dropout=module.dropout, bias=bias is not None).to(weight)
        for i, linear in enumerate((layer.query, layer.key, layer.value)):
            given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
            linear.load_state_dict({name: x.chunk(3)[i] for name, x in given.items()})
        layer.output.load_state_dict(module.out_proj.state_dict())
        return layer.train(module.training)


def beside_heads(positions, x):
    """Positions of x (B, L, E), given as (L,) or (B, L), made to line up with (B, H, L)."""
    positions = as_tensor(positions, x.device)
    arguments.heads.layer_positions(positions.shape, x.shape)
    return positions.unsqueeze(-2) if 1 < positions.ndim < x.ndim else positions


def counted_positions(x, source, cache, q_offset):
    """Where the queries and the keys of a call sit, counted as a mask counts them."""
    L, S = x.shape[-2], source.shape[-2]
    if cache is not None:
        at = cache.length + torch.arange(L, device=x.device)
        return at, at
    arguments.heads.alignment(L, S, q_offset)
    arguments.offset(q_offset, math.prod(x.shape[:-2]))
    start = 0 if q_offset is None else q_offset
    if not isinstance(start, int):  # an int stays one: a compiled graph then serves every offset
        start = as_tensor(start, x.device)
        start = start.reshape(*x.shape[:-2], 1, 1) if start.ndim else start
    return start + torch.arange(L, device=x.device), torch.arange(S, device=x.device)


def is_autocast(device_type):
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
