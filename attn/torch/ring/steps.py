"""The steps of ring attention, forward and backward, as one operation of autograd.

At step t of P a process meets the block of the process t places before it, while the next block is
already on its way. Backward, dK and dV of a visiting block go on with the sums so far and arrive
home after P − 1 steps; what the owner itself adds never leaves it.
"""

from typing import NamedTuple

import torch

from attn.torch.blockwise import merge_attention
from attn.torch.masks import Laid
from attn.torch.operands import Call, guarded, widened, without_autocast, working_dtype
from attn.torch.ring.links import Links, pass_on
from attn.torch.ring.tiles import Side, attend_block, block_gradients


class Plan(NamedTuple):
    """One checked call, seen from one process."""

    links: Links
    mask: Laid | None
    queries: Side
    keys: list  # of Sides, by the rank that owns them
    bare: Call  # without operands

    def call(self, query, block):
        """The call of these queries and a block of keys and values, in the working dtype."""
        key, value = block
        call = self.bare._replace(query=query, key=key, value=value, mask=self.mask)
        return guarded(widened(call))

    def visits(self, key, value, phase):
        """Yield (step, the owner's Side, block); the next block travels during each step."""
        links, block = self.links, [key, value]
        for step in range(links.size):
            coming = None
            if step + 1 < links.size:
                what = f"in {phase} step {step + 1} of {links.size - 1} (keys and values)"
                coming = pass_on(links, block, phase, what)
            yield step, self.keys[(links.rank - step) % links.size], block
            if coming is not None:
                block = coming.wait()

    def count(self, phase, pairs):
        if self.links.tally is not None:
            self.links.tally.pairs[phase].append(pairs)


class Ring(torch.autograd.Function):
    """query, key, value with four axes -> output and lse in the working dtype."""

    @staticmethod
    def forward(ctx, query, key, value, plan):
        with without_autocast(query.device):
            output, lse = forward(plan, query, key, value)
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, output, lse)
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        if torch.is_grad_enabled():  # create_graph=True: a graph without these steps would be wrong
            raise RuntimeError("ring_attention: differentiable once, expected create_graph=False")
        query, key, value, output, lse = ctx.saved_tensors
        with without_autocast(query.device):
            delta = (grad_output * output).sum(dim=-1) - grad_lse
            ends = grad_output, lse[..., None], delta[..., None]
            grads = backward(ctx.plan, query, key, value, *ends)
        return *(x.to(query.dtype) for x in grads), None


def forward(plan, query, key, value):
    """Merge what each block contributes; no key at all gives 0 and -inf."""
    wide, total = working_dtype(query.dtype), None
    for _, keys, block in plan.visits(key, value, "forward"):
        part, pairs = attend_block(plan.call(query, block), plan.queries, keys)
        plan.count("forward", pairs)
        if part is not None:
            total = part if total is None else merge_attention(*zip(total, part, strict=True))
    if total is None:
        rows = query.shape[:-1]
        return query.new_zeros(*rows, plan.bare.size.Dv, dtype=wide), query.new_full(
            rows, -torch.inf, dtype=wide
        )
    return total


def backward(plan, query, key, value, *ends):
    """dQ stays and grows; dK and dV go round with their blocks, except the owner's own share."""
    links, travelling = plan.links, None
    for step, keys, block in plan.visits(key, value, "backward"):
        call = plan.call(query, block)
        (share, *grads), pairs = block_gradients(call, plan.queries, keys, *ends)
        plan.count("backward", pairs)
        if step == 0:
            grad_query, own = share, grads
            continue
        grad_query += share
        if travelling is not None:
            grads = [x + y for x, y in zip(grads, travelling.wait(), strict=True)]
        what = f"in backward step {step} of {links.size - 1} (gradients)"
        travelling = pass_on(links, grads, "backward", what)
    if travelling is not None:
        own = [x + y for x, y in zip(own, travelling.wait(), strict=True)]
    return grad_query, *own
