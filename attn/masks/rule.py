"""What every mask rule is, and how rules combine: & both, | either, ~ the opposite.

The rules themselves are in attn.masks.
"""

import copy
import functools
import operator
from dataclasses import dataclass

from attn import arguments


class Mask:
    """A rule `mask(b, h, q, k) -> bool`. Subclass it with a frozen dataclass to add your own.

    Attributes
    ----------
    compares_positions : bool
        The rule compares q with k, so it needs to know where the queries sit when L != S.
    reads_absolute_positions : bool
        The rule depends on more than q - k, so it cannot be used once a ring cache dropped keys.
    looks_back : int or None
        How many positions before its own a query may see at most; None = all. A ring cache has to
        hold as many.
    """

    compares_positions = True
    reads_absolute_positions = True
    looks_back = None
    __array_ufunc__ = None  # array & rule must reach __rand__ below, not NumPy's element loop

    def __call__(self, b, h, q, k):
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, b, h, q, k)")

    def __and__(self, other):
        return And(self, other)

    def __or__(self, other):
        return Or(self, other)

    def __invert__(self):
        return Not(self)

    # array & rule lands here and is refused like rule & array; there is no third spelling.
    __rand__, __ror__ = __and__, __or__

    def __bool__(self):
        raise TypeError(
            f"{self!r} is a rule, not a truth value: combine rules with & | ~ (not and, or, not), "
            "see its pairs with dense_mask(rule, L, S)"
        )

    def check(self, q_len, k_len, *, batch, q_offset, read_values=True):
        """Raise unless the rule can be laid over L queries and S keys; q_offset None = not said."""
        if self.compares_positions and q_len != k_len and q_offset is None:
            hint = arguments.UPPER_LEFT_OR_LOWER_RIGHT.format(k_len - q_len)
            raise ValueError(
                f"mask {self!r} compares positions, but L = {q_len} queries and S = {k_len} keys "
                f"can be lined up in several ways: {hint}"
            )
        self.check_fields(q_len, k_len, batch, q_offset, read_values)

    def check_fields(self, q_len, k_len, batch, q_offset, read_values):
        """A rule with arrays inside compares them with the sizes of the call here."""


class Combined(Mask):
    """What And, Or and Not share: they are as position-bound as the rules inside."""

    parts = ()

    @property
    def compares_positions(self):
        return any(part.compares_positions for part in self.parts)

    @property
    def reads_absolute_positions(self):
        return any(part.reads_absolute_positions for part in self.parts)

    def __post_init__(self):
        for part in vars(self).values():
            if not isinstance(part, Mask):
                what = "array" if hasattr(part, "dtype") else type(part).__name__
                raise TypeError(
                    f"& | ~ combine rules with rules, got a rule with {what}: write "
                    "dense_mask(rule, L, S, …) & array, or subclass attn.Mask for your own rule"
                )

    def check_fields(self, *call):
        for part in self.parts:
            part.check_fields(*call)


class Chain(Combined):
    """What And and Or share: a | b | c nests in pairs, and is answered as a chain of three.

    So a thousand rules can be joined in a loop without a thousand calls inside each other.
    """

    @property
    def parts(self):
        chain, waiting = [], [self]
        while waiting:
            rule = waiting.pop()
            if type(rule) is type(self):
                waiting += [rule.right, rule.left]
            else:
                chain.append(rule)
        return tuple(chain)

    def __repr__(self):
        name = type(self).__name__
        return functools.reduce(
            lambda left, right: f"{name}(left={left}, right={right})", map(repr, self.parts)
        )


@dataclass(frozen=True, eq=False, repr=False)
class And(Chain):
    """Both rules allow the pair."""

    left: Mask
    right: Mask

    @property
    def looks_back(self):
        return min((x.looks_back for x in self.parts if x.looks_back is not None), default=None)

    def __call__(self, b, h, q, k):
        return functools.reduce(operator.and_, (part(b, h, q, k) for part in self.parts))


@dataclass(frozen=True, eq=False, repr=False)
class Or(Chain):
    """At least one of the rules allows the pair."""

    left: Mask
    right: Mask

    @property
    def looks_back(self):
        both = [part.looks_back for part in self.parts]
        return None if None in both else max(both)

    def __call__(self, b, h, q, k):
        return functools.reduce(operator.or_, (part(b, h, q, k) for part in self.parts))


@dataclass(frozen=True, eq=False)
class Not(Combined):
    """The rule does not allow the pair."""

    rule: Mask
    parts = property(lambda self: (self.rule,))

    def __call__(self, b, h, q, k):
        return ~self.rule(b, h, q, k)


def convert_arrays(mask, convert):
    """The same rule with `convert` applied to each array inside it, however deep."""
    if isinstance(mask, Chain):
        parts = [convert_arrays(part, convert) for part in mask.parts]
        same = all(new is part for new, part in zip(parts, mask.parts, strict=True))
        return mask if same else functools.reduce(type(mask), parts)
    changed = {}
    for name, value in vars(mask).items():
        new = convert_field(value, convert)
        if new is not value:
            changed[name] = new
    if not changed:
        return mask
    converted = copy.copy(mask)
    for name, new in changed.items():
        object.__setattr__(converted, name, new)  # rules are frozen; this one is not yet out
    return converted


def convert_field(value, convert):
    """What a field of a rule becomes: a rule, an array, or a list of such may stand in it."""
    if isinstance(value, Mask):
        return convert_arrays(value, convert)
    if type(value) in (list, tuple):
        entries = [convert_field(entry, convert) for entry in value]
        same = all(new is entry for new, entry in zip(entries, value, strict=True))
        return value if same else type(value)(entries)
    return convert(value) if not isinstance(value, int) and hasattr(value, "dtype") else value
