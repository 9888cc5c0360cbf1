"""Marks on the cells of a matrix that is already drawn, and checks of what goes into them.

Works through the methods of the Axes it is given, so it needs no import of matplotlib. Cell (i, j)
is centred on x = j, y = i, as ``Axes.imshow`` draws it.
"""

import numpy as np

from attn.palette import FAINT, INK, role_label

READABLE = 7.0  # points: 7 px high on a phone
LARGEST = 10.0


def check_matrix(name, matrix):
    """Return a matrix as an array, or say which shape came."""
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name}: expected a matrix (L, S), L and S >= 1; got {matrix.shape}")
    return matrix


def check_limits(values, vmin, vmax):
    """Return the ends of a colour scale that no value leaves; None takes the values' own."""
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    vmin, vmax = low if vmin is None else vmin, high if vmax is None else vmax
    if low < vmin - 1e-9 or high > vmax + 1e-9 or not np.isfinite(high):
        raise ValueError(
            f"matrix: expected values from vmin = {vmin} to vmax = {vmax} (None: its own ends); "
            f"got {low} to {high}"
        )
    return float(vmin), float(vmax)


def check_labels(shape, labels, names):
    """Refuse labels that are not one for each row and one for each column."""
    for count, given, name in zip(shape, labels, names, strict=True):
        if given is not None and len(given) != count:
            raise ValueError(f"labels of {name}: expected {count}, one each; got {len(given)}")


def check_tiles(shape, block_size, block_map):
    """Return a block map that matches a matrix and its tiles, or None where there is none."""
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size: expected a positive int; got {block_size}")
    if block_map is None:
        return None
    if block_size is None:
        raise ValueError("block_size: expected the one that made block_map; got None")
    tiles, expected = np.asarray(block_map), tuple(-(-n // block_size) for n in shape)
    if tiles.shape != expected:
        raise ValueError(f"block_map: expected (L, S) / block_size = {expected}; got {tiles.shape}")
    if not np.isin(tiles, (0, 1, 2)).all():
        raise ValueError(f"block_map: expected 0 none, 1 some, 2 all; got {np.unique(tiles)}")
    return tiles


def text_size(ax, shape, characters):
    """Points at which that many characters fit into a cell, at most 10."""
    # The frame before the layout is within a tenth of the final one. A digit is 0.64 em wide.
    frame = ax.get_window_extent()
    cell = 72 / ax.figure.dpi * min(frame.width / shape[1], frame.height / shape[0])
    return min(LARGEST, 0.9 * cell / (0.64 * characters))


def hatch_cells(ax, hidden):
    """Hatch the cells that a boolean matrix marks, row by row."""
    for row in np.flatnonzero(hidden.any(axis=1)):
        spans = [(column - 0.5, 1) for column in np.flatnonzero(hidden[row])]
        ax.broken_barh(
            spans, (row - 0.5, 1), facecolor="white", edgecolor=FAINT, hatch="///", linewidth=0
        )


def rule_lines(ax, shape, step, **style):
    """Draw the lines between tiles of step × step cells."""
    rows, columns = shape
    ax.hlines(np.arange(step, rows, step) - 0.5, -0.5, columns - 0.5, **style)
    ax.vlines(np.arange(step, columns, step) - 0.5, -0.5, rows - 0.5, **style)


def write_tiles(ax, shape, step, tiles):
    """Write none, some or all into each tile, or 0, 1, 2 where the words do not fit."""
    size = text_size(ax, tiles.shape, 6)
    words = ("none", "some", "all") if size >= READABLE else ("0", "1", "2")
    size = size if size >= READABLE else text_size(ax, tiles.shape, 3)
    card = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.94}
    for (row, column), kind in np.ndenumerate(tiles):
        y, x = (
            (start * step + min(start * step + step, n) - 1) / 2
            for start, n in zip((row, column), shape, strict=True)
        )
        ax.text(x, y, words[kind], ha="center", va="center", color=INK, fontsize=size, bbox=card)


def label_axes(ax, shape, labels, names):
    """Label rows and columns: the positions or the given labels, and the coloured name."""
    for axis, count, given, name in zip((ax.yaxis, ax.xaxis), shape, labels, names, strict=True):
        step = 1 if given is not None or count <= 10 else 2 ** int(np.ceil(np.log2(count / 9)))
        ticks = range(0, count, step)
        axis.set_ticks(ticks, [str(i) for i in ticks] if given is None else list(given))
        axis.set_label_text(**role_label(name))
    room = 72 / ax.figure.dpi * ax.get_window_extent().width / shape[1]
    if labels[1] is not None and max(map(len, labels[1])) * 6.5 > room:
        for text in ax.get_xticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
