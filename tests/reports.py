"""Public bug reports as data: how a line of data/reports.jsonl becomes a call of attn.

Each line is the smallest input behind one report, with the right value or the right behaviour. The
numbers in it were worked out without this package.
"""

import json
from pathlib import Path

import numpy as np

from attn import Causal, KeyPadding, PrefixLM, SameDocument, SlidingWindow, dense_mask

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "reports.jsonl").read_text("utf-8").splitlines()
]
WORDS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def array(recipe):
    """Nested lists (with "nan" and "inf" as words) or a recipe as a float64 or boolean array."""
    if isinstance(recipe, dict):
        size = int(np.prod(recipe["shape"]))
        a, b, amplitude = recipe.get("sin", (0.0, 0.0, 0.0))
        flat = amplitude * np.sin(a * np.arange(size) + b) + recipe.get("const", 0.0)
        return flat.reshape(recipe["shape"])
    return np.array(_numbers(recipe))


def _numbers(values):
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return WORDS.get(values, values) if isinstance(values, str) else values


def strided(values, view):
    """The same numbers through a view whose memory is laid out otherwise."""
    if view == "every_second_last":
        wide = np.full((*values.shape[:-1], 2 * values.shape[-1]), 77.0)
        wide[..., ::2] = values
        return wide[..., ::2]
    swap = {"from_BLHD": (1, 2), "transposed_last_two": (2, 3)}[view]
    return np.ascontiguousarray(values.swapaxes(*swap)).swapaxes(*swap)


def rule_of(inputs):
    """The rule that a line's options describe, or None."""
    rules = []
    if inputs.get("causal"):
        rules.append(Causal())
    if "window" in inputs:
        rules.append(SlidingWindow(**inputs["window"]))
    if "prefix_len" in inputs:
        rules.append(PrefixLM(inputs["prefix_len"]))
    if "kv_lengths" in inputs or "kv_starts" in inputs:
        rules.append(KeyPadding(inputs.get("kv_lengths"), inputs.get("kv_starts", 0)))
    if "q_docs" in inputs:
        rules.append(SameDocument(inputs["q_docs"], inputs["k_docs"]))
    rule = None
    for part in rules:
        rule = part if rule is None else rule & part
    return rule


def operands(inputs, backend):
    """Query, key and value of a line, in its dtype."""
    dtype = inputs.get("dtype", "float64")
    dtypes = inputs.get("dtypes_qkv", [dtype] * 3)
    return [
        backend.array(array(inputs[name]), kind) for name, kind in zip("qkv", dtypes, strict=True)
    ]


def options(inputs, backend, shapes):
    """The mask and the keyword options of a line; shapes are those of query and key."""
    (L, S), B = (shape[-2] for shape in shapes), 1
    if len(shapes[0]) == 4:
        B = shapes[0][0]
    mask, offset = rule_of(inputs), inputs.get("offset")
    if "keep" in inputs:
        keep = array(inputs["keep"])
        if mask is not None:  # a rule and an array meet as arrays
            keep = keep & dense_mask(mask, L, S, q_offset=offset, batch=B)
        mask = backend.array(keep)
    named = {name: inputs[name] for name in ("scale", "softcap") if name in inputs}
    if "bias" in inputs:
        named["bias"] = backend.array(array(inputs["bias"]), inputs.get("dtype", "float64"))
    if "alibi_slopes" in inputs:
        distance = np.abs(np.arange(L)[:, None] + offset - np.arange(S))
        slopes = np.array(inputs["alibi_slopes"])[:, None, None]
        named["bias"] = backend.array(-slopes * distance, "float64")
    if "sink" in inputs:
        named["sink"] = backend.array(array(inputs["sink"]), "float64")
    return mask, named | ({} if offset is None else {"q_offset": offset})
