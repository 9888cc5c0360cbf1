"""The kernels that fused_attention chooses from, each given the operands of one checked call."""

import functools

import torch
from torch.nn import functional

from attn.torch.attention import scaled_dot_product_attention
from attn.torch.fused.strips import attend_strips
from attn.torch.fused.unseen import empty_unseen_slots
from attn.torch.masks import block_mask, entry, flex_attention


def sdpa(query, key, value, keep=None, bias=None, *, scale, causal=False):
    """torch's fused kernel on operands that it takes as they are."""
    if scale <= 0:  # it scales after it masks: -inf times a negative scale would be +inf
        query, scale = query * scale, 1.0
    if bias is not None:
        keep = bias if keep is None else bias.masked_fill(~keep, -torch.inf)
    Dv = value.shape[-1]
    if not query.is_cuda and query.shape[-1] != Dv:  # the CPU's kernel knows one head size only
        query, key, value = _padded(max(query.shape[-1], Dv), query, key, value)
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=keep, is_causal=causal, scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output[..., :Dv]


def _padded(width, *tensors):
    return [functional.pad(x, (0, width - x.shape[-1])) for x in tensors]


def whole(call):
    return sdpa(call.query, call.key, call.value, scale=call.scale)


def causal(call):
    size, offset = call.size, call.q_offset or 0
    seen = size.L + offset  # keys behind it are seen by nobody and may hold NaN
    key, value = call.key[..., :seen, :], call.value[..., :seen, :]
    if offset:
        # Imported when used: it brings torch's compiler, most of a second in each process.
        from torch.nn.attention.bias import causal_lower_right

        keep = causal_lower_right(size.L, seen)
        return sdpa(call.query, key, value, keep, scale=call.scale)
    return sdpa(call.query, key, value, scale=call.scale, causal=True)


def sdpa_slices(call):
    return attend_strips(call, functools.partial(sdpa, scale=call.scale))


def plain_slices(call):
    options = dict(scale=call.scale, softcap=call.softcap, sink=call.sink)

    def attend(query, key, value, keep, bias):
        return scaled_dot_product_attention(query, key, value, keep, bias=bias, **options)

    return attend_strips(call, attend)


def flex(call):
    """FlexAttention; a sink is one more term of the denominator, known from the row's lse."""
    size = call.size
    if call.mask is not None or call.bias is not None:
        call = empty_unseen_slots(call)
    block = None
    if call.mask is not None:
        block = block_mask(
            call.mask, size.L, size.S, q_offset=call.q_offset, batch=size.B, heads=size.H,
            device=call.query.device,
        )  # fmt: skip
    width = max(16, size.D), max(16, size.Dv)  # the kernel's least head sizes
    output, lse = flex_attention(
        *_padded(width[0], call.query, call.key), *_padded(width[1], call.value),
        score_mod=_score_mod(call), block_mask=block, scale=call.scale,
        with_lse=call.sink is not None,
    )  # fmt: skip
    output = output[..., : size.Dv]
    if call.sink is None:
        return output
    kept = torch.sigmoid(lse.to(call.sink.dtype) - call.sink[:, None])  # e^lse / (e^lse + e^sink)
    return output * kept[..., None]


def _score_mod(call):
    softcap, bias = call.softcap, call.bias
    if softcap is None and bias is None:
        return None

    def score_mod(score, b, h, q, k):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + entry(bias, b, h, q, k)

    return score_mod


KERNELS = {
    "sdpa": whole,
    "sdpa causal": causal,
    "sdpa slices": sdpa_slices,
    "plain slices": plain_slices,
    "flex": flex,
}
