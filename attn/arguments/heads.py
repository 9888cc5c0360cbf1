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


def cached_call(cache, query, key, value, mask, bias, context, q_offset, kind, read_values=True):
    """Everything that could go wrong after an append is looked at before it: nothing is lost."""
    if context is not None:
        raise ValueError("cache: expected no context beside a cache, which grows by x itself")
    if q_offset is not None:
        raise ValueError(f"cache: expected no q_offset, the cache counts its keys; got {q_offset}")
    held = cache.length - cache.start
    if cache.start > 0 and getattr(mask, "reads_absolute_positions", False):
        raise ValueError(
            f"mask {mask!r} reads absolute positions, but the ring cache has dropped the first "
            f"{cache.start} of {cache.length} keys"
        )
    S = held + key.shape[-2]
    key_shape, value_shape = ((*x.shape[:-2], S, x.shape[-1]) for x in (key, value))
    size = call.sizes(query.shape, key_shape, value_shape)
    call.options(
        size, mask, bias=bias, scale=None, softcap=None, sink=None, q_offset=held,
        read_values=read_values, kind=kind,
    )  # fmt: skip


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
