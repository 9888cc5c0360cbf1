"""Products in which a hidden pair reads neither of its two slots, whatever they hold.

A pair that takes no part has weight 0. That is as good as gone until its slot holds NaN or inf, for
0 · NaN is NaN. The two products of attention, and their gradients, are therefore formed over the
pairs that take part:

    products    p_ij = x_i · y_j           dx_i = Σ_j dp_ij y_j       dy_j = Σ_i dp_ij x_i
    sums        o_i = Σ_j w_ij y_j         dw_ij = do_i · y_j         dy_j = Σ_i w_ij do_i

Each is the other's gradient, so gradients of any order stay as clean. Plain products are faster;
these are for operands that are not finite.
"""

import torch


def products(rows, columns, pairs):
    """x_i · y_j over the pairs that are true, else 0: (…, R, D) and (…, C, D) to (…, R, C)."""
    return Products.apply(rows, columns, pairs)


def sums(weights, columns, pairs):
    """Σ_j w_ij y_j over the pairs that are true: (…, R, C) and (…, C, D) to (…, R, D)."""
    return Sums.apply(weights, columns, pairs)


class Products(torch.autograd.Function):
    @staticmethod
    def forward(rows, columns, pairs):
        return (rows @ columns.mT).masked_fill(~pairs, 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        rows, columns, pairs = ctx.saved_tensors
        return sums(grad, columns, pairs), sums(grad.mT, rows, pairs.mT), None


class Sums(torch.autograd.Function):
    @staticmethod
    def forward(weights, columns, pairs):
        weights = weights.masked_fill(~pairs, 0.0)
        spoilt = ~columns.isfinite().all(dim=-1, keepdim=True)  # (…, C, 1)
        total = weights @ columns.masked_fill(spoilt, 0.0)
        for j in spoilt.flatten(0, -3).any(dim=0).nonzero()[:, 0]:  # few, or all is lost anyway
            share = weights[..., j, None] * columns[..., j, None, :]
            total += torch.where(pairs[..., j, None] & spoilt[..., j, None, :], share, 0.0)
        return total

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        weights, columns, pairs = ctx.saved_tensors
        return products(grad, columns, pairs), sums(weights.mT, grad, pairs.mT), None
