"""The judge from the command line: python -m attn.check module:function.

Exit status 0: passed; 1: failed; 2: there was no function to judge.
"""

import argparse
import functools
import importlib
import json
import sys
from pathlib import Path

from attn.check import adapters as shapes
from attn.check import check_attention
from attn.check.judge import CONVENTIONS, DTYPES

ADAPTERS = ("one_head", "merged_batch", "merged_heads", "first_output", "from_layer")


def parser():
    made = argparse.ArgumentParser(prog="python -m attn.check", description=check_attention.__doc__
                                   .partition("\n")[0])  # fmt: skip
    made.add_argument("function", help="module:function, e.g. mymodel.layers:attention")
    made.add_argument("--no-grouped", dest="grouped", action="store_false",
                      help="every query head has a key head of its own")  # fmt: skip
    made.add_argument("--convention", choices=CONVENTIONS, default=CONVENTIONS[0],
                      help="what True in the mask means")  # fmt: skip
    made.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    made.add_argument("--no-masks", dest="masks", action="store_false", help="mask is None always")
    made.add_argument("--square", action="store_true", help="as many queries as keys")
    made.add_argument("--multiple-of", type=_positive, default=1, metavar="N",
                      help="all lengths are multiples of N")  # fmt: skip
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--torch", action="store_true", help="the function takes and gives tensors")
    made.add_argument("--adapter", choices=ADAPTERS, help="one of attn.check, for other shapes")
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    return made


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return number


def find(address):
    """The function at module:function; ValueError says what is missing."""
    module_name, colon, name = address.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"expected module:function, got {address!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise ValueError(f"there is no module {error.name!r}, from {Path.cwd()}") from None
        raise ValueError(f"module {module_name!r} needs {error.name!r}, which is missing") from None
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"module {module_name!r} cannot be imported: {kind}: {error}") from None
    try:
        function = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ValueError(f"module {module_name!r} has no {name!r}") from None
    if not callable(function):
        raise ValueError(f"{address} cannot be called: it is of type {type(function).__name__}")
    return function


def main(arguments=None):
    options = vars(parser().parse_args(arguments))
    address, as_json, adapter = (options.pop(x) for x in ("function", "json", "adapter"))
    try:
        function = find(address)
        if options.pop("torch"):
            # The judge knows no torch: who asks for tensors has it.
            bridge = importlib.import_module("attn.torch.check")
            function = bridge.as_numpy_function(function)
        if adapter:
            function = getattr(shapes, adapter)(function)
        report = check_attention(function, **options)
    except (ValueError, TypeError, ModuleNotFoundError) as error:
        print(f"python -m attn.check: {error}", file=sys.stderr)
        return 2
    if as_json:
        failures = [failure._asdict() for failure in report.failures]
        said = {"function": address, "passed": report.passed, "trials": report.trials}
        print(json.dumps(said | {"failures": failures}, ensure_ascii=False, indent=2))
    else:
        print(report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
