"""Figures of matrices, masks and measurements in the book's one style; each returns Axes.

Only this file and `attn.diagrams`, which draws the mechanism, import matplotlib, so that
``import attn`` needs NumPy alone. They take plain arrays and know nothing about attention.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from attn.palette import INK, ROLES, line_styles, number_color, role_label
from attn.plotting import cells

SEQUENTIAL = "viridis"


def use_style():
    """Load the book's one style file, ``attn.mplstyle``, for all figures that follow.

    >>> use_style(); plt.rcParams["figure.dpi"]
    160.0
    """
    plt.style.use(Path(__file__).with_name("attn.mplstyle"))


def new_axes(ax, size=None):
    """Axes to draw on: those given, or those of a new figure of that size in inches."""
    return plt.subplots(figsize=size)[1] if ax is None else ax


def heat_map(
    matrix,
    *,
    ax=None,
    row_labels=None,
    column_labels=None,
    row_name="query",
    column_name="key",
    cell_name="weight",
    numbers=None,
    decimals=2,
    vmin=0.0,
    vmax=1.0,
    colorbar=None,
):
    """Matrix as colours, with its numbers in the cells where they fit.

    Parameters
    ----------
    matrix : array of shape (L, S)
        NaN and -inf mark hidden cells: hatched, without a number.
    row_labels, column_labels : sequence of str, optional
        One label for each row and column; positions from 0 otherwise.
    row_name, column_name, cell_name : str
        Names of the axes and of the colour bar; a role as first word gives its colour and marker.
    numbers, colorbar : bool, optional
        By default numbers where they are readable, and a colour bar where they are not.
    vmin, vmax : float or None
        Ends of the colour scale; None takes the matrix's own.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        Not a matrix, labels that do not match it, or values outside the colour scale.

    >>> ax = heat_map([[0.401, 0.401, 0.198], [0.198, 0.401, 0.401]])
    >>> [text.get_text() for text in ax.texts][:3]
    ['0.40', '0.40', '0.20']
    """
    matrix = cells.check_matrix("matrix", matrix).astype(float)
    hidden = np.isnan(matrix) | np.isneginf(matrix)
    vmin, vmax = cells.check_limits(matrix[~hidden], vmin, vmax)
    labels, names = (row_labels, column_labels), (row_name, column_name)
    cells.check_labels(matrix.shape, labels, names)
    ax = new_axes(ax, _matrix_size(matrix.shape))
    image = ax.imshow(np.where(hidden, np.nan, matrix), cmap=SEQUENTIAL, vmin=vmin, vmax=vmax)
    cells.hatch_cells(ax, hidden)
    cells.label_axes(ax, matrix.shape, labels, names)
    texts = {(i, j): f"{matrix[i, j]:z.{decimals}f}" for i, j in np.argwhere(~hidden)}
    size = cells.text_size(ax, matrix.shape, max(map(len, texts.values()), default=1))
    numbers = size >= cells.READABLE if numbers is None else numbers
    for (row, column), text in texts.items() if numbers else ():
        color = number_color(image.cmap(image.norm(matrix[row, column]))[:3])
        style = {"ha": "center", "va": "center", "fontsize": size}
        ax.text(column, row, text.replace("-", "−"), color=color, **style)
    if colorbar or (colorbar is None and not numbers):
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.8, aspect=16, pad=0.03)
        bar.outline.set_visible(False)
        bar.set_label(**role_label(cell_name))
    return ax


def mask_map(
    allowed,
    *,
    ax=None,
    row_labels=None,
    column_labels=None,
    row_name="query",
    column_name="key",
    block_size=None,
    block_map=None,
):
    """Mask as a picture: visible cells filled, hidden cells white and hatched.

    Parameters
    ----------
    allowed : bool array of shape (L, S)
        True = may attend.
    row_labels, column_labels, row_name, column_name
        As for `heat_map`.
    block_size : int, optional
        Draws the boundaries of square tiles.
    block_map : int array of shape (ceil(L / block_size), ceil(S / block_size)), optional
        Writes into each tile how many of its cells are visible: 0 none, 1 some, 2 all.

    Returns
    -------
    Axes

    Raises
    ------
    TypeError
        A mask that is not boolean.
    ValueError
        Not a matrix, or labels or a block map that do not match it.

    >>> ax = mask_map(np.tri(3, dtype=bool), block_size=2, block_map=[[1, 0], [2, 2]])
    >>> [text.get_text() for text in ax.texts]
    ['some', 'none', 'all', 'all']
    """
    allowed = cells.check_matrix("allowed", allowed)
    if allowed.dtype != bool:
        raise TypeError(f"allowed: expected bool, True = may attend; got {allowed.dtype}")
    tiles = cells.check_tiles(allowed.shape, block_size, block_map)
    labels, names = (row_labels, column_labels), (row_name, column_name)
    cells.check_labels(allowed.shape, labels, names)
    ax = new_axes(ax, _matrix_size(allowed.shape))
    ax.imshow(allowed, cmap=ListedColormap(["white", ROLES["weight"].color]), vmin=0, vmax=1)
    cells.hatch_cells(ax, ~allowed)
    cells.label_axes(ax, allowed.shape, labels, names)
    if max(allowed.shape) <= 32:
        cells.rule_lines(ax, allowed.shape, 1, color="white", linewidth=1.0)
    if block_size is not None:
        cells.rule_lines(ax, allowed.shape, block_size, color=INK, linewidth=1.6)
    if tiles is not None:
        cells.write_tiles(ax, allowed.shape, block_size, tiles)
    return ax


def fit_slope(x, y):
    """Exponent of a power law: least squares for log y = slope · log x + constant.

    Parameters
    ----------
    x, y : arrays of shape (n,), n >= 2
        Positive; NaN in y marks what was not measured.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        Shapes that differ, fewer than two different x, or numbers that are not positive.

    >>> n = np.array([2.0, 4.0, 8.0])
    >>> round(fit_slope(n, 3 * n**2), 6)
    2.0
    """
    return _fit_line(x, y)[0]


def power_law(x, series, *, xlabel, ylabel, fit_from=None, ax=None):
    """Measurements on two logarithmic axes, each with its fitted slope in the legend.

    Parameters
    ----------
    x : array of shape (n,)
        Positive, such as the sequence length.
    series : dict of str to array of shape (n,)
        Name and measurements of each line, at most 8; NaN marks what was not measured.
    xlabel, ylabel : str
        Names of the axes with their units.
    fit_from : float, optional
        The fit uses x >= fit_from; a pale band shows the fitted line over that range.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        No series or more than 8, shapes that differ from that of x, or what `fit_slope` refuses.

    >>> ax = power_law([1, 2, 4], {"naive": [1, 4, 16]}, xlabel="tokens", ylabel="bytes")
    >>> ax.get_legend().get_texts()[0].get_text()
    'naive: slope 2.00'
    """
    x, series = np.asarray(x, dtype=float), {k: np.asarray(y, float) for k, y in series.items()}
    if not series or any(x.ndim != 1 or y.shape != x.shape or not x.size for y in series.values()):
        shapes = {name: y.shape for name, y in series.items()}
        raise ValueError(f"series: expected the shape of x, (n,) = {x.shape}, n >= 1; got {shapes}")
    ax = new_axes(ax)
    kept = x >= (x.min() if fit_from is None else fit_from)
    for (name, y), style in zip(series.items(), line_styles(len(series)), strict=True):
        slope, constant = _fit_line(x[kept], y[kept])
        ax.plot(x, y, label=f"{name}: slope {slope:.2f}", **style)
        band = x[kept & np.isfinite(y)]
        fitted = np.exp(constant) * band**slope
        ax.plot(band, fitted, color=style["color"], linewidth=7, alpha=0.18, linestyle="-")
    ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    shown = x[:: -(-len(x) // 6)]  # at most six labels: they stay apart on a phone
    ax.set_xticks(shown, [f"{value:.7g}" for value in shown])
    ax.set_xticks([], minor=True)
    ax.legend()
    return ax


def _matrix_size(shape):
    cell = min(0.66, 3.7 / max(shape))  # inches; 1.3 and 0.9 are the room of the labels
    return shape[1] * cell + 1.3, shape[0] * cell + 0.9


def _fit_line(x, y):
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"x and y: expected one shape (n,); got {x.shape} and {y.shape}")
    x, y = x[~np.isnan(y)], y[~np.isnan(y)]
    for name, values in (("x", x), ("y", y)):
        if not ((values > 0) & (values < np.inf)).all():
            raise ValueError(f"{name}: expected positive, finite numbers; got {values.tolist()}")
    if len(set(x.tolist())) < 2:
        raise ValueError(f"x: a slope needs two different x or more; got {x.tolist()}")
    u, v = np.log(x), np.log(y)
    slope = float((u - u.mean()) @ (v - v.mean()) / ((u - u.mean()) @ (u - u.mean())))
    return slope, float(v.mean() - slope * u.mean())
