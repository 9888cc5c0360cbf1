"""The two audits from a command line, with an exit status for scripts.

    python -m attn.audit mask mask.npy
    python -m attn.audit mask package.module:rule --length 128
    python -m attn.audit leaks package.module:model --input 2x32x64 --mask causal

0: nothing found. 1: a serious finding, a leak, or no verdict. 2: it could not be run.
"""

import argparse
import dataclasses
import importlib
import json
import math
import sys
import traceback

import numpy as np

from attn.audit.findings import audit_mask
from attn.audit.leaks import find_leaks
from attn.masks import Causal, KeyPadding, Mask, PrefixLM, SlidingWindow, dense_mask

RULES = {"causal": Causal, "padding": KeyPadding, "prefix": PrefixLM, "window": SlidingWindow}
FOUND, UNUSABLE = 1, 2


class Unusable(Exception):
    """What was asked for cannot be run; the message says why."""


def load(name):
    """What FILE.npy holds, or what package.module:name is; found from the current folder, too."""
    if name.endswith(".npy"):
        try:
            return np.load(name)
        except (OSError, ValueError) as error:
            raise Unusable(f"{name}: {error}") from None
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise Unusable(f"{name}: expected FILE.npy or package.module:name")
    try:
        thing = importlib.import_module(module)
        for part in attribute.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError) as error:
        raise Unusable(f"{name}: {error}") from None
    return thing


def rule_or_array(text):
    """causal, padding:9, prefix:3, window:4 or window:4,1; or what `load` finds."""
    name, _, numbers = text.partition(":")
    if name not in RULES:
        return load(text)
    try:
        return RULES[name](*(int(number) for number in numbers.split(",") if number))
    except (TypeError, ValueError) as error:
        raise Unusable(f"--mask {text}: {error}") from None


def drawn(text, ids, like):
    """An input: 2x32x64 is drawn, as token ids below `ids` or as floats; a name is loaded."""
    sizes = text.split("x")
    if not all(size.isdigit() for size in sizes):
        return load(text)
    rng, shape = np.random.default_rng(0), tuple(map(int, sizes))
    x = rng.normal(size=shape) if ids is None else rng.integers(0, ids, size=shape)
    parameters = getattr(like, "parameters", None)
    if not callable(parameters):
        return x
    tensor, first = sys.modules["torch"].from_numpy(x), next(iter(parameters()), None)
    if first is None:
        return tensor
    return tensor.to(first.device) if ids is not None else tensor.to(first)


def mask(options):
    allowed = load(options.target)
    if isinstance(allowed, Mask):
        if options.length is None:
            raise Unusable(f"{options.target} is a rule: --length is the number of queries")
        keys = options.keys or options.length
        allowed = dense_mask(allowed, options.length, keys, q_offset=options.offset)
    return audit_mask(allowed, cross=options.cross)


def leaks(options):
    function = load(options.target)
    x = drawn(options.input, options.ids, function)
    return find_leaks(function, x, rule_or_array(options.mask), layers=options.layers)


def arguments():
    parser = argparse.ArgumentParser(
        "python -m attn.audit", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="mask|leaks")
    one = commands.add_parser("mask", help="what is wrong with a mask, seen from the mask alone")
    one.add_argument("target", metavar="FILE.npy|module:name", help="a boolean array or a rule")
    one.add_argument("--length", type=int, help="of a rule: the number of queries")
    one.add_argument("--keys", type=int, help="of a rule: the number of keys, if it is another")
    one.add_argument("--offset", type=int, help="of a rule: the number of keys before query 0")
    one.add_argument("--cross", action="store_true", help="query q and key q are not one position")
    one.set_defaults(run=mask)
    two = commands.add_parser("leaks", help="which hidden inputs change which outputs")
    two.add_argument("target", metavar="module:function", help="or an nn.Module")
    two.add_argument(
        "--input", required=True, metavar="FILE.npy|module:name|2x32x64",
        help="a sequence or a batch; sizes are drawn from a normal distribution",
    )  # fmt: skip
    two.add_argument("--ids", type=int, help="draw token ids below this number instead")
    two.add_argument(
        "--mask", required=True, metavar="causal|padding:N|prefix:N|window:N|…",
        help="the mask that is meant: one of these, FILE.npy or module:name",
    )  # fmt: skip
    two.add_argument("--layers", type=int, default=1, help="a stack sees further than its mask")
    two.set_defaults(run=leaks)
    for command in (one, two):
        command.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def as_json(report):
    values = dataclasses.asdict(report) | {"passed": report.passed}
    values = {name: [entry._asdict() for entry in value] if name == "findings" else value
              for name, value in values.items()}  # fmt: skip
    leak = values.get("leak")
    if leak is not None:
        size = leak.size if math.isfinite(leak.size) else None  # JSON knows no infinity
        values["leak"] = leak._asdict() | {"size": size}
    return json.dumps(values, ensure_ascii=False)


def main(argv=None):
    options = arguments().parse_args(argv)
    try:
        report = options.run(options)
    except Unusable as problem:
        print(problem, file=sys.stderr)
        return UNUSABLE
    except Exception as error:
        # Its own refusals are short; what somebody's function raises is shown whole.
        if not isinstance(error, (TypeError, ValueError)):
            traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return UNUSABLE
    print(as_json(report) if options.json else report)
    return 0 if report.passed else FOUND


if __name__ == "__main__":
    sys.exit(main())
