"""What every mask rule is, and how rules combine: & both, | either, ~ the opposite.

The rules themselves are in attn.masks.
"""

import copy
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
    """

    compares_positions = True
    reads_absolute_positions = True
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
        """Raise unless the rule can be laid over L queries and S keys."""
        if self.compares_positions and q_len != k_len and q_offset is None:
            hint = arguments.UPPER_LEFT_OR_LOWER_RIGHT.format(k_len - q_len)
            raise ValueError(
                f"mask {self!r} compares positions, but L = {q_len} queries and S = {k_len} keys "
                f"can be lined up in several ways: {hint}"
            )
        self.check_fields(q_len, k_len, batch, 0 if q_offset is None else q_offset, read_values)

    def check_fields(self, q_len, k_len, batch, q_offset, read_values):
        """A rule with arrays inside compares them with the sizes of the call here."""


class _Combined(Mask):
    """What And, Or and Not share: they are as position-bound as the rules inside."""

    parts = ()

    @property
    def compares_positions(self):
        return any(part.compares_positions for part in self.parts)

    @property
    def reads_absolute_positions(self):
        return any(part.reads_absolute_positions for part in self.parts)

    def __post_init__(self):
        for part in self.parts:
            if not isinstance(part, Mask):
                what = "array" if hasattr(part, "dtype") else type(part).__name__
                raise TypeError(
                    f"& | ~ combine rules with rules, got a rule with {what}: write "
                    "dense_mask(rule, L, S, …) & array, or subclass attn.Mask for your own rule"
                )

    def check_fields(self, *call):
        for part in self.parts:
            part.check_fields(*call)


@dataclass(frozen=True, eq=False)
class And(_Combined):
    """Both rules allow the pair."""

    left: Mask
    right: Mask
    parts = property(lambda self: (self.left, self.right))

    def __call__(self, b, h, q, k):
        return self.left(b, h, q, k) & self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Or(_Combined):
    """At least one of the rules allows the pair."""

    left: Mask
    right: Mask
    parts = property(lambda self: (self.left, self.right))

    def __call__(self, b, h, q, k):
        return self.left(b, h, q, k) | self.right(b, h, q, k)


@dataclass(frozen=True, eq=False)
class Not(_Combined):
    """The rule does not allow the pair."""

    rule: Mask
    parts = property(lambda self: (self.rule,))

    def __call__(self, b, h, q, k):
        return ~self.rule(b, h, q, k)


def convert_arrays(mask, convert):
    """The same rule with `convert` applied to each array inside it, however deep."""
    changed = {}
    for name, value in vars(mask).items():
        if isinstance(value, Mask):
            new = convert_arrays(value, convert)
        elif not isinstance(value, int) and hasattr(value, "dtype"):
            new = convert(value)
        else:
            new = value
        if new is not value:
            changed[name] = new
    if not changed:
        return mask
    converted = copy.copy(mask)
    for name, new in changed.items():
        object.__setattr__(converted, name, new)  # rules are frozen; this one is not yet out
    return converted
