"""Calls that raise, or give no output: which option or adapter would make the function fit.

Each is tried: what the hint says, works. Imports attn.check.adapters, attn.check.outcomes and
attn.check.trials.
"""

from dataclasses import replace
from itertools import combinations

from attn.check import adapters
from attn.check.outcomes import Failure, observe, takes_a_mask
from attn.check.trials import make_trials

# Each with what a call must be like to be made under it.
OPTIONS = {
    "grouped=False": ({"grouped": False}, lambda t: t.query.shape[1] == t.key.shape[1]),
    "masks=False": ({"masks": False}, lambda t: t.mask is None),
    "square=True": ({"square": True}, lambda t: t.query.shape[2] == t.key.shape[2]),
    "dtype='float32'": ({"dtype": "float32"}, lambda t: t.query.dtype == "float32"),
    **{
        f"multiple_of={n}": (
            {"multiple_of": n},
            lambda t, n=n: t.query.shape[2] % n == 0 and t.key.shape[2] % n == 0,
        )
        for n in (2, 4, 8, 16, 32, 64, 128)
    },
}
ADAPTERS = {
    "one_head": adapters.one_head,
    "merged_batch": adapters.merged_batch,
    "first_output": adapters.first_output,
}
MOST_OPTIONS = 4


def without_output(function, evidence, silent, space, seed, hidden):
    """The failure of a function that gives no output in the silent trials (their numbers)."""
    n = silent[0]
    problem = evidence.outcomes[n].problem
    raises = problem.startswith("raises")
    name = "raises an exception" if raises else "no output of shape (B, H, L, Dv)"
    often = f"{len(silent)} of {len(evidence.trials)} calls give no output"
    hint = _remedy(function, space, seed, hidden) or _by_message(problem, evidence.trials[n])
    return Failure(name, f"on {evidence.trials[n]}, it {problem}; {often}", hint, known=False)


def _remedy(function, space, seed, hidden):
    """The fewest options, and an adapter if need be, under which no call fails."""
    for name, adapter in {"": None, **ADAPTERS}.items():
        adapted = adapter(function) if adapter else function
        chosen = _options(adapted, space, seed, hidden)
        if chosen is not None and (chosen or name):
            return _said(name, chosen)
    return ""


def _options(function, space, seed, hidden):
    """The fewest options that leave out every call that fails, and under which all others run."""
    forced = () if takes_a_mask(function) or not space.masks else ("masks=False",)
    space = _narrowed(space, forced)
    trials = make_trials(space, seed)
    silent = _silent(function, space, seed, hidden)
    runs = [trial for trial in trials if not any(trial is other for other in silent)]
    names = [name for name, (option, _) in OPTIONS.items() if replace(space, **option) != space]
    for size in range(MOST_OPTIONS + 1):
        for chosen in combinations(names, size):
            fail, kept = (
                [t for t in some if all(OPTIONS[name][1](t) for name in chosen)]
                for some in (silent, runs)
            )
            # No length of the trials is a multiple of 128: that one can only be tried.
            worth = kept or (size <= 2 and "multiple_of=128" in chosen)
            if fail or not worth:
                continue
            if not _silent(function, _narrowed(space, chosen), seed, hidden, most=1):
                return (*forced, *chosen)
    return None


def _narrowed(space, names):
    for name in names:
        space = replace(space, **OPTIONS[name][0])
    return space


def _silent(function, space, seed, hidden, most=None):
    """The trials of a space that have no output, or the first few of them."""
    with_mask = takes_a_mask(function)
    found = []
    for trial in make_trials(space, seed):
        outcome = observe(function, trial.operands, hidden=hidden, with_mask=with_mask)
        found += [trial] * (outcome.output is None)
        if len(found) == most:
            break
    return found


def _said(adapter, options):
    said = []
    if adapter:
        said.append(f"wrap the function: attn.check.{adapter}(function)")
    if options:
        said.append(f"say {', '.join(options)}")
    return (
        f"Mend the function, or, if it is not meant to take such calls, {' and '.join(said)}: "
        "then every call runs."
    )


def _by_message(problem, trial):
    B, H, L, _ = trial.query.shape
    hint = f"The output has shape (B, H, L, Dv) = {(B, H, L, trial.value.shape[3])}."
    if "ndarray" in problem or "Tensor" in problem:
        return f"{hint} A function of tensors is wrapped in attn.torch.as_numpy_function."
    if "positional argument" in problem:
        return f"{hint} It is called as function(query, key, value, mask)."
    if "dtype" in problem or "Float" in problem or "Double" in problem:
        return f"{hint} A function for float32 alone is judged with dtype='float32'."
    return (
        f"{hint} The mask has four axes, each of full length or 1. Merged heads (B, L, H·D) go "
        "through attn.check.merged_heads, a layer through attn.check.from_layer."
    )
