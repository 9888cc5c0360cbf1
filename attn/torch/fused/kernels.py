"""The kernels that fused_attention chooses from, each given the operands of one checked call."""

import functools

import torch
from torch.nn import functional

from attn.torch.attention import scaled_dot_product_attention
from attn.torch.flex import entry, flex_attention, laid_block_mask
from attn.torch.fused.run import attend_strips
from attn.torch.fused.unseen import empty_unseen_slots


def sdpa(query, key, value, keep=None, bias=None, *, scale, causal=False):
    """torch's fused kernel on operands that it takes as they are."""
    query, scale = scaled(query, scale)
    silent = None
    if bias is not None:
        keep = bias if keep is None else bias.masked_fill(~keep, -torch.inf)
        silent = torch.isneginf(keep).all(dim=-1, keepdim=True)
    Dv = value.shape[-1]
    if not query.is_cuda and query.shape[-1] != Dv:  # the CPU's kernel knows one head size only
        query, key, value = padded(max(query.shape[-1], Dv), query, key, value)
    # Not enable_gqa=(H != Hkv): in a graph for any length that is no bool.
    grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=keep, is_causal=causal, scale=scale,
        **grouped,
    )  # fmt: skip
    output = output[..., :Dv]
    return output if silent is None else output.masked_fill(silent, 0.0)


def scaled(query, scale):
    """A scale that kernels take: a positive number. They scale after they mask, and -inf times a
    negative number would be +inf; one that is learned they would take for a constant."""
    if isinstance(scale, torch.Tensor) or scale <= 0:
        return query * scale, 1.0
    return query, scale


def padded(width, *tensors):
    return [functional.pad(x, (0, width - x.shape[-1])) for x in tensors]


def whole(call):
    return sdpa(call.query, call.key, call.value, scale=call.scale)


def causal(call):
    call = without_keys_behind(call)
    query, key, value = call.query, call.key, call.value
    if call.mask.start:
        # Imported when used: it brings torch's compiler, most of a second in each process.
        from torch.nn.attention.bias import causal_lower_right

        keep = causal_lower_right(query.shape[-2], key.shape[-2])
        return sdpa(query, key, value, keep, scale=call.scale)
    return sdpa(query, key, value, scale=call.scale, causal=True)


def without_keys_behind(call):
    """Keys behind the last query of a causal call are seen by nobody and may hold NaN."""
    seen = call.size.L + call.mask.start
    return call._replace(key=call.key[..., :seen, :], value=call.value[..., :seen, :])


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
    query, scale = scaled(call.query, call.scale)
    block = None if call.mask is None else laid_block_mask(call.mask)
    width = max(16, size.D), max(16, size.Dv)  # the kernel's least head sizes
    output, lse = flex_attention(
        *padded(width[0], query, call.key), *padded(width[1], call.value),
        score_mod=score_mod_of(call), block_mask=block, scale=scale,
        with_lse=call.sink is not None,
    )  # fmt: skip
    output = output[..., : size.Dv]
    if call.sink is None:
        return output
    lse, sink = lse.to(call.sink.dtype), call.sink[:, None]
    gap = torch.where(torch.isneginf(lse), lse, lse - sink)  # a row that sees nothing stays at 0
    kept = torch.sigmoid(gap)  # e^lse / (e^lse + e^sink)
    return output * kept[..., None]


def score_mod_of(call):
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
