"""What is wrong with partial results and with gradients, seen from shapes and dtypes alone.

For both libraries.
"""

from attn.arguments import values


def parts(kind, outputs, lses):
    """As many outputs (…, L, Dv) as lses (…, L), at least one, all of one shape each."""
    if len(outputs) != len(lses) or not outputs:
        raise ValueError(
            "outputs, lses: expected as many outputs as lses, at least one of each, got "
            f"{len(outputs)} and {len(lses)}"
        )
    for name, arrays in (("outputs", outputs), ("lses", lses)):
        values.arrays(kind, **{f"{name}[{i}]": array for i, array in enumerate(arrays)})
    wanted = tuple(outputs[0].shape)
    for i, (output, lse) in enumerate(zip(outputs, lses, strict=True)):
        if tuple(output.shape) != wanted or not wanted or tuple(lse.shape) != wanted[:-1]:
            raise ValueError(
                "outputs, lses: expected one shape (…, L, Dv) for all outputs and (…, L) for all "
                f"lses, outputs[0] has {wanted}, got outputs[{i}] {tuple(output.shape)} with "
                f"lses[{i}] {tuple(lse.shape)}"
            )


def gradient(name, grad, like_name, like_shape, letters):
    """The gradient of a result has the result's shape, which ends in the axes of `letters`."""
    values.rank(like_name, like_shape, 1, letters)
    if tuple(grad.shape) != tuple(like_shape):
        raise ValueError(
            f"{name}: expected the shape of the {like_name}, {letters} = {tuple(like_shape)}, got "
            f"{tuple(grad.shape)}"
        )
