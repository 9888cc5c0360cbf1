"""What is wrong with heads, projections and caches, seen from shapes alone; for both libraries."""

from attn.arguments import call, values


def splits(name, num_heads, shape):
    """The last axis of `shape` can be cut into `num_heads` equal heads."""
    values.integer(name, num_heads, low=1)
    values.rank("x", shape, 2, f"(…, L, H·D) with H = {num_heads}")
    divisible("x: its last axis", shape[-1], name, num_heads)


def divisible(what, size, name, by):
    if size % by:
        raise ValueError(f"{what}: expected a multiple of {name} = {by}, got {size}")


def head_groups(num_heads, num_kv_heads):
    values.integer("num_heads", num_heads, low=1)
    values.integer("num_kv_heads", num_kv_heads, low=1)
    divisible("num_heads", num_heads, "num_kv_heads", num_kv_heads)


def projections(x_shape, context_shape, num_heads, num_kv_heads, **weights):
    """Each matrix fits the array it multiplies and the heads that its columns are cut into."""
    values.rank("x", x_shape, 2, "(…, L, E)")
    values.rank("context", context_shape, 2, "(…, S, E)")
    head_groups(num_heads, num_kv_heads)
    inner = {"w_query": x_shape[-1], "w_key": context_shape[-1], "w_value": context_shape[-1]}
    cut = {"w_query": num_heads, "w_key": num_kv_heads, "w_value": num_kv_heads}
    for name, width in inner.items():
        shape = tuple(weights[name].shape)
        if len(shape) != 2 or shape[0] != width:
            raise ValueError(f"{name}: expected shape (E, …) with E = {width}, got {shape}")
        divisible(f"{name}: its columns", shape[1], "the number of heads", cut[name])
    width = weights["w_value"].shape[1] // num_kv_heads * num_heads
    shape = tuple(weights["w_output"].shape)
    if len(shape) != 2 or shape[0] != width:
        raise ValueError(f"w_output: expected shape (H·Dv, E) with H·Dv = {width}, got {shape}")


def cached_call(cache, mask, context, q_offset):
    """A cache can serve this call: it counts the keys itself, and holds what the rule asks for."""
    if not hasattr(cache, "preview"):
        raise TypeError(f"cache: expected a KVCache or None, got {type(cache).__name__}")
    if context is not None:
        raise ValueError("cache: expected no context beside a cache, which grows by x itself")
    if q_offset is not None:
        raise ValueError(f"cache: expected no q_offset, the cache counts its keys; got {q_offset}")
    if cache.start == 0 or not call.is_rule(mask):
        return

    def dropped():  # written out only where it is needed: a compiled graph has no such numbers
        return f"the ring cache has dropped the first {cache.start} of {cache.length} keys"

    if getattr(mask, "reads_absolute_positions", False):
        raise ValueError(f"mask {mask!r} reads absolute positions, but {dropped()}")
    back = getattr(mask, "looks_back", None)
    if back is None or back > cache.capacity:
        far = "without a limit" if back is None else f"{back} positions"
        raise ValueError(
            f"mask {mask!r} looks back {far}, but {dropped()} and holds capacity = "
            f"{cache.capacity}: expected a rule that looks back at most as far, such as & "
            f"SlidingWindow({cache.capacity}) (a rule of your own says so as looks_back)"
        )


def layer(embed_dim, num_heads, num_kv_heads, dropout):
    """The sizes of a MultiHeadAttention layer divide each other."""
    values.integer("embed_dim", embed_dim, low=1)
    head_groups(num_heads, num_kv_heads)
    divisible("embed_dim", embed_dim, "num_heads", num_heads)
    values.number("dropout", dropout)
    if dropout is None or not 0 <= dropout <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout}")


def embedded(embed_dim, **inputs):
    """Inputs of a layer end in its E features."""
    for name, x in inputs.items():
        if x.ndim < 2 or x.shape[-1] != embed_dim:
            raise ValueError(
                f"{name}: expected shape (B, L, E) with E = {embed_dim}, got {tuple(x.shape)}"
            )


def rotary(rotate):
    """A function that turns queries and keys, or None."""
    if rotate is not None and not callable(rotate):
        raise TypeError(
            "rotary: expected a function of (x, positions), such as functools.partial("
            f'attn.torch.rotary, layout="half"), or None, got {rotate!r}'
        )


def given_positions(positions, rotate, context):
    """Positions are those of x, and somebody has to read them."""
    if positions is not None and rotate is None:
        raise ValueError("positions: expected none, for this layer has no rotary that reads them")
    if positions is not None and context is not None:
        raise ValueError(
            "positions: expected none beside a context, where key j sits at j and query i at "
            "i + q_offset"
        )


def alignment(L, S, q_offset):
    """Counted positions need to know where query 0 sits, as rules that compare positions do."""
    if L != S and q_offset is None:
        hint = call.UPPER_LEFT_OR_LOWER_RIGHT.format(S - L)
        raise ValueError(
            f"rotary compares positions, but L = {L} queries and S = {S} keys can be lined up in "
            f"several ways: {hint}"
        )


def layer_positions(shape, x_shape):
    """Positions line up with (B, L), the axes of x before its features, or with the heads'."""
    target = tuple(x_shape[:-1]) if len(shape) < len(x_shape) else (*x_shape[:-2], 1, x_shape[-2])
    fits = all(have in (1, want) for have, want in zip(shape[::-1], target[::-1], strict=False))
    if len(shape) > len(target) or not fits:
        raise ValueError(
            f"positions: expected a shape that broadcasts to x.shape[:-1] = {tuple(x_shape[:-1])}, "
            f"(L,) or (B, L), got {tuple(shape)}"
        )


def torch_module(module):
    """The options of nn.MultiheadAttention that the layer does not have are refused by name."""
    if not hasattr(module, "add_zero_attn"):
        raise TypeError(f"from_torch: expected an nn.MultiheadAttention, got {type(module)}")
    unlike = {
        "kdim": module.kdim != module.embed_dim,
        "vdim": module.vdim != module.embed_dim,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
    }
    used = [name for name, is_used in unlike.items() if is_used]
    if used:
        raise ValueError(
            f"from_torch: expected an nn.MultiheadAttention without {', '.join(unlike)}, got one "
            f"that uses {', '.join(used)}"
        )
