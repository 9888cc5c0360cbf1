"""Drawings of the mechanism itself: how tensors flow, and vectors in the plane.

Draws through `attn.plotting`; takes plain arrays and knows nothing about attention's arithmetic.
"""

import numpy as np
from matplotlib.patches import FancyBboxPatch

from attn.palette import INK, ROLES, find_role
from attn.plotting import new_axes

GREY = "#59636E"
HALO = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.9}  # behind a label
HEIGHT, STEP = 1.16, 1.75  # of a box and from row to row, in the units of FLOW
# name, symbol, shape, role, left, right, row from the top
FLOW = (
    ("input", "X", "(B, L, E)", None, 0, 10, 0),
    ("queries", "Q", "(B, H, L, D)", "query", 0, 3.1, 1),
    ("keys", "K", "(B, Hkv, S, D)", "key", 3.45, 6.55, 1),
    ("values", "V", "(B, Hkv, S, Dv)", "value", 6.9, 10, 1),
    ("scores", "Q Kᵀ / √D", "(B, H, L, S)", None, 0, 6.55, 2),
    ("weights", "A", "(B, H, L, S)", "weight", 0, 6.55, 3),
    ("weighted sum", "A V", "(B, H, L, S) · (B, Hkv, S, Dv)", None, 0, 10, 4),
    ("context", "C", "(B, H, L, Dv)", None, 0, 10, 5),
    ("output", "Y", "(B, L, E)", None, 0, 10, 6),
)
# x, row it leaves, row it enters, role, what happens on the way
STEPS = (
    (1.55, 0, 1, "query", "$W_Q$"),
    (5, 0, 1, "key", "$W_K$"),
    (8.45, 0, 1, "value", "$W_V$"),
    (1.55, 1, 2, "query", ""),
    (5, 1, 2, "key", ""),
    (3.275, 2, 3, "weight", "softmax over S"),
    (3.275, 3, 4, "weight", ""),
    (8.45, 1, 4, "value", ""),
    (5, 4, 5, None, ""),
    (5, 5, 6, None, "merge heads, $W_O$"),
)


def flow_diagram(*, ax=None):
    """Draw the flow from input to output: every tensor with its symbol, shape and role.

    Input → Q, K, V → scores → weights → weighted sum → context → output, after Vaswani et al. 2017,
    section 3.2.

    Returns
    -------
    Axes

    >>> ax = flow_diagram()
    >>> len(ax.patches)
    9
    """
    ax = new_axes(ax, (5.0, 6.0))
    for name, symbol, shape, role, left, right, row in FLOW:
        x, y = (left + right) / 2, -STEP * row
        style, color = ROLES.get(role), ROLES[role].color if role else INK
        edge = {"color": color, "linestyle": style.linestyle} if style else {"color": GREY}
        _add_box(ax, (x, y), (right - left, HEIGHT), fill=(edge["color"], 0.07), **edge)
        middle = {"ha": "center", "va": "center"}
        ax.text(x, y + 0.22, f"{name}  {symbol}", color=color, weight="bold", **middle)
        ax.text(x, y - 0.27, shape, color=INK, fontsize=9, **middle)
    for x, start, end, role, text in STEPS:
        color = ROLES[role].color if role else INK
        top, bottom = -STEP * start - HEIGHT / 2, -STEP * end + HEIGHT / 2
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (x, bottom), (x, top), arrowprops=arrow)
        if text:
            ax.text(x + 0.25, (top + bottom) / 2, text, va="center", color=color, fontsize=9)
    ax.set(xlim=(-0.1, 10.1), ylim=(-STEP * 6 - 0.7, 0.7), aspect="equal")
    ax.set_axis_off()
    return ax


def vectors(points, role, *, labels=None, arrows=True, ax=None):
    """Draw vectors of one role in the plane: lines from the origin, or points alone.

    Parameters
    ----------
    points : array of shape (n, 2)
    role : str
        query, key, value or weight: colour, line and marker.
    labels : sequence of str, optional
        One for each vector, written beyond its tip.
    arrows : bool
        False leaves the lines from the origin out.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Points that are not in the plane, an unknown role, labels that do not match.

    >>> ax = vectors([[1, 0], [0, 1]], "query", labels=["q1", "q2"])
    >>> [text.get_text() for text in ax.texts]
    ['q1', 'q2']
    """
    points, style, ax = _check_points(points), find_role(role), new_axes(ax)
    if labels is not None and len(labels) != len(points):
        raise ValueError(f"labels: expected {len(points)}, one for each point; got {len(labels)}")
    for x, y in points if arrows else ():
        ax.plot([0, x], [0, y], color=style.color, linestyle=style.linestyle)
    ax.plot(*points.T, linestyle="", marker=style.marker, color=style.color, markersize=7)
    outward = points - (0 if arrows else points.mean(axis=0))
    outward /= np.maximum(np.linalg.norm(outward, axis=1, keepdims=True), 1e-12)
    for text, point, shift in zip(labels or (), points, outward, strict=False):
        ax.annotate(
            text,
            point,
            14 * shift,
            textcoords="offset points",
            ha="center",
            va="center",
            color=style.color,
            bbox=HALO,
        )
    ax.margins(0.16)
    ax.set(aspect="equal", xlabel="component 1", ylabel="component 2")
    return ax


def hull(points, role="value", *, ax=None):
    """Shade the convex hull: every weighted average of the points lies inside.

    Parameters
    ----------
    points : array of shape (n, 2)
    role : str
        Colour, hatch and line of the shading.

    Returns
    -------
    Axes

    >>> ax = hull([[0, 0], [2, 0], [0, 2], [0.5, 0.5]])
    >>> len(ax.patches[0].get_xy())  # three corners, and the first again
    4
    """
    style, ax = find_role(role), new_axes(ax)
    ax.fill(
        *convex_hull(points).T,
        facecolor="none",
        edgecolor=style.color,
        alpha=0.5,
        hatch=style.hatch,
        linewidth=0,
        zorder=0.5,
    )
    ax.fill(
        *convex_hull(points).T,
        facecolor="none",
        edgecolor=style.color,
        zorder=0.6,
        linestyle=style.linestyle,
    )
    return ax


def mixture(weights, values, *, labels=None, name="output", ax=None):
    """Draw a weighted average inside the hull of the values, tied to each by a line.

    Parameters
    ----------
    weights : array of shape (n,)
        Written on the lines, which are the thicker the larger the weight.
    values : array of shape (n, 2)
    labels : sequence of str, optional
        One for each value.
    name : str
        Label of the average.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not one weight for each value, or what `vectors` refuses.

    >>> ax = mixture([0.25, 0.75], [[0, 0], [4, 0]])
    >>> ax.lines[-1].get_xydata().tolist()  # the star
    [[3.0, 0.0]]
    """
    weights, values, style = np.asarray(weights, float), _check_points(values), ROLES["weight"]
    if weights.shape != (len(values),):
        raise ValueError(f"weights: expected shape ({len(values)},); got {weights.shape}")
    ax = vectors(values, "value", labels=labels, arrows=False, ax=hull(values, ax=ax))
    output = weights @ values
    middle = {"ha": "center", "va": "center", "bbox": HALO}
    for weight, value in zip(weights, values, strict=True):
        line = {"color": style.color, "linestyle": style.linestyle, "linewidth": 7 * weight}
        ax.plot(*np.transpose([value, output]), zorder=1.5, **line)
        ax.text(*(0.45 * value + 0.55 * output), f"{weight:.3f}", color=style.color, **middle)
    ax.plot(*output, linestyle="", marker="*", color=INK, markersize=13)
    ax.annotate(name, output, (0, 13), textcoords="offset points", weight="bold", **middle)
    return ax


def convex_hull(points):
    """Corners of the smallest convex polygon that holds the points, anticlockwise.

    Source: A. M. Andrew, Another efficient algorithm for convex hulls in two dimensions, 1979
    (the monotone chain).

    >>> convex_hull([[0, 0], [2, 0], [0, 2], [0.5, 0.5]]).tolist()
    [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    """
    ordered = np.unique(_check_points(points), axis=0)
    lower, upper = _chain(ordered), _chain(ordered[::-1])
    return np.array(lower[:-1] + upper[:-1] or lower)


def _add_box(ax, center, size, *, color, fill, linestyle="-"):
    (x, y), (width, height) = center, size
    corner, style = (x - width / 2, y - height / 2), "round,pad=0,rounding_size=0.15"
    box = FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=fill, edgecolor=color)
    box.set(linestyle=linestyle, linewidth=1.6)
    ax.add_patch(box)


def _chain(ordered):
    chain = []
    for point in ordered:
        while len(chain) > 1 and _turn(*chain[-2:], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _check_points(points):
    points = np.array(points, dtype=float)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(f"points: expected shape (n, 2), n >= 1; got {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError(f"points: expected finite numbers; got {points.tolist()}")
    return points
