"""Colours of the four roles, each with cues that need no colour; no library but NumPy.

Formulas, text, figures and live figures use the same four. They keep apart under simulated colour
blindness and reach a contrast of 4.5 on white: both are tests.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Role:
    """Colour of one kind of tensor, with the line, marker, hatch and letter that go with it."""

    color: str
    linestyle: str
    marker: str
    hatch: str
    letter: str


ROLES = {
    "query": Role("#005A9C", "-", "o", "//", "Q"),
    "key": Role("#A8430A", "--", "s", "\\\\", "K"),
    "value": Role("#00704F", ":", "^", "..", "V"),
    "weight": Role("#8A2F7C", "-.", "D", "xx", "A"),
}
GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆"}  # a role's marker inside a line of text
INK, FAINT = "#1F2328", "#AFB8C1"


def find_role(name):
    """Look a role up by its name: query, key, value or weight.

    >>> find_role("key").letter
    'K'
    """
    if name not in ROLES:
        raise ValueError(f"role: expected one of {', '.join(ROLES)}; got {name!r}")
    return ROLES[name]


def role_label(name):
    """Text and colour of a label: coloured and marked where its first word is a role.

    >>> role_label("key position"), role_label("loss in nats")["label"]
    ({'label': '■ key position', 'color': '#A8430A'}, 'loss in nats')
    """
    role = ROLES.get(name.split(" ")[0])
    if role is None:
        return {"label": name, "color": INK}
    return {"label": f"{GLYPHS[role.marker]} {name}", "color": role.color}


def line_styles(count):
    """Styles for several lines that differ by dashes and marker as well as by colour.

    Parameters
    ----------
    count : int
        1 to 8 lines; from the fifth on the markers are hollow.

    Returns
    -------
    list of dict
        Keyword arguments for ``Axes.plot``.

    Raises
    ------
    ValueError
        More lines than can be told apart, or none.

    >>> [style["marker"] for style in line_styles(3)]
    ['o', 's', '^']
    """
    if not 1 <= count <= 8:
        raise ValueError(f"count: expected 1 to 8 lines; got {count}")
    roles = list(ROLES.values())
    solid = [{"color": r.color, "linestyle": r.linestyle, "marker": r.marker} for r in roles]
    dashes = [(0, (7, 1)), (0, (2, 1)), (0, (1, 3)), (0, (7, 1, 1, 1, 1, 1))]
    hollow = [
        {"color": r.color, "linestyle": dash, "marker": marker, "markerfacecolor": "white"}
        for r, dash, marker in zip(roles, dashes, "vhPX", strict=True)
    ]
    return (solid + hollow)[:count]


def number_color(rgb):
    """Black or white, whichever is easier to read on a colour: their contrast is at least 4.58.

    Parameters
    ----------
    rgb : sequence of three floats in [0, 1]

    Source: WCAG 2.2, relative luminance and contrast ratio; black and white tie at 0.179.

    >>> number_color((1, 1, 0)), number_color((0, 0, 0.5))
    ('black', 'white')
    """
    rgb = np.asarray(rgb, dtype=float)
    if rgb.shape != (3,) or not ((rgb >= 0) & (rgb <= 1)).all():
        raise ValueError(f"rgb: expected three numbers in [0, 1]; got {rgb.tolist()}")
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "white"
