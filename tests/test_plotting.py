"""What a figure holds is what it was given: arrays, limits, numbers, labels and tiles."""

import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

plt = pytest.importorskip("matplotlib.pyplot")
from attn import plotting  # noqa: E402  (after matplotlib is known to be there)

EXAMPLE = np.array([[0.40111, 0.40111, 0.19778], [0.19778, 0.40111, 0.40111]])


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        plotting.use_style()
        yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def hatched_cells(ax):
    """Cells (row, column) under a hatch, read back from what was drawn."""
    paths = [path for bars in ax.collections if bars.get_hatch() for path in bars.get_paths()]
    centers = [path.get_extents().get_points().mean(axis=0) for path in paths]
    return {(round(y), round(x)) for x, y in centers}


def luminance(rgb):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# style


def test_style_is_a_white_card_with_readable_type():
    width = plt.rcParams["figure.figsize"][0]
    names = ("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    pixels = min(plt.rcParams[name] for name in names) / 72 / width * 350  # 350 px: a phone
    assert pixels >= 9
    assert plt.rcParams["figure.dpi"] >= 150
    assert plt.rcParams["savefig.dpi"] >= 150
    assert plt.rcParams["figure.facecolor"] == plt.rcParams["axes.facecolor"] == "white"
    assert not plt.rcParams["axes.spines.top"]
    assert not plt.rcParams["axes.spines.right"]


def test_style_cycles_through_the_roles():
    roles = [(role.color, role.linestyle) for role in plotting.ROLES.values()]
    cycle = [(s["color"], s["linestyle"]) for s in plt.rcParams["axes.prop_cycle"]]
    assert cycle == roles


def test_import_of_the_package_leaves_matplotlib_alone():
    code = "import sys, attn, attn.palette; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# heat_map


def test_heat_map_holds_the_matrix_and_its_limits():
    ax = plotting.heat_map(EXAMPLE)
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), EXAMPLE)
    assert image.get_clim() == (0, 1)
    assert image.get_extent() == [-0.5, 2.5, 1.5, -0.5]
    assert image.get_cmap().name == plotting.SEQUENTIAL
    assert ax.get_title() == ""


@pytest.mark.parametrize(
    ("decimals", "expected"),
    [(1, ["0.4", "0.4", "0.2"]), (2, ["0.40", "0.40", "0.20"]), (3, ["0.401", "0.401", "0.198"])],
)
def test_heat_map_prints_each_number_in_its_cell(decimals, expected):
    ax = plotting.heat_map(EXAMPLE, decimals=decimals)
    assert texts(ax) == expected + expected[::-1]
    cells = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]  # x = column, y = row
    assert [text.get_position() for text in ax.texts] == cells


def test_heat_map_prints_minus_signs_but_no_minus_zero():
    ax = plotting.heat_map([[-1.25, -0.0004]], decimals=2, vmin=None, vmax=None)
    assert texts(ax) == ["−1.25", "0.00"]
    assert ax.images[0].get_clim() == (-1.25, -0.0004)


def test_heat_map_numbers_contrast_with_their_cells():
    matrix = np.linspace(0, 1, 7 * 5).reshape(7, 5)
    ax = plotting.heat_map(matrix)
    (image,) = ax.images
    assert len(ax.texts) == matrix.size
    for text, value in zip(ax.texts, matrix.flat, strict=True):
        ink = {"black": 0.0, "white": 1.0}[text.get_color()]
        dark, light = sorted((ink, luminance(image.to_rgba([value])[0, :3])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, value


@pytest.mark.parametrize("shape", [(2, 3), (7, 7), (3, 11), (11, 3), (13, 13)])
@pytest.mark.parametrize("decimals", [1, 3])
def test_heat_map_numbers_stay_inside_their_cells(shape, decimals):
    ax = plotting.heat_map(np.full(shape, 0.5), decimals=decimals, numbers=True)
    ax.figure.draw_without_rendering()
    for text in ax.texts:
        x, y = text.get_position()
        corners = [(x - 0.5, y + 0.5), (x + 0.5, y - 0.5)]
        (left, bottom), (right, top) = ax.transData.transform(corners)
        box = text.get_window_extent()
        assert left <= box.x0 < box.x1 <= right, (shape, box.width, right - left)
        assert bottom <= box.y0 < box.y1 <= top


def test_heat_map_shows_numbers_or_a_colour_bar():
    small, large = plotting.heat_map(EXAMPLE), plotting.heat_map(np.full((29, 31), 0.5))
    assert (len(small.texts), len(small.figure.axes)) == (6, 1)
    assert (len(large.texts), len(large.figure.axes)) == (0, 2)
    assert large.figure.axes[1].get_ylabel() == "◆ weight"
    neither = plotting.heat_map(EXAMPLE, numbers=False, colorbar=False)
    both = plotting.heat_map(EXAMPLE, numbers=True, colorbar=True, cell_name="score")
    assert (len(neither.texts), len(neither.figure.axes)) == (0, 1)
    assert (len(both.texts), both.figure.axes[1].get_ylabel()) == (6, "score")


def test_heat_map_hatches_hidden_cells_and_leaves_them_without_number():
    scores = np.array([[1.0, -np.inf, np.nan], [0.5, 0.25, -np.inf]])
    ax = plotting.heat_map(scores)
    assert hatched_cells(ax) == {(0, 1), (0, 2), (1, 2)}
    assert texts(ax) == ["1.00", "0.50", "0.25"]
    np.testing.assert_array_equal(ax.images[0].get_array().mask, ~np.isfinite(scores))
    assert np.isnan(scores[0, 2])  # the argument is as it was
    assert np.isneginf(scores[0, 1])


def test_heat_map_labels_rows_and_columns():
    ax = plotting.heat_map(EXAMPLE, row_labels=["a", "b"], column_labels=["c", "d", "e"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["c", "d", "e"]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("● query", "■ key")
    assert ax.yaxis.label.get_color() == plotting.ROLES["query"].color
    assert ax.xaxis.label.get_color() == plotting.ROLES["key"].color


def test_heat_map_tells_positions_apart_where_there_are_many():
    ax = plotting.heat_map(np.zeros((3, 67)))
    assert list(ax.get_yticks()) == [0, 1, 2]
    assert list(ax.get_xticks()) == [0, 8, 16, 24, 32, 40, 48, 56, 64]
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["0", "8", "16"]


@pytest.mark.parametrize("words", [["the", "cat", "sat"], ["alignments"] * 11])
def test_labels_of_columns_do_not_overlap(words):
    ax = plotting.heat_map(np.zeros((3, len(words))), column_labels=words)
    ax.figure.draw_without_rendering()
    labels = ax.get_xticklabels()
    slanted = {label.get_rotation() for label in labels}
    assert slanted == ({45.0} if len(words) > 3 else {0.0})
    if slanted == {0.0}:
        boxes = [label.get_window_extent() for label in labels]
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_figures_cut_nothing_off():
    for ax in (plotting.heat_map(np.zeros((5, 11)), column_labels=["alignments"] * 11),
               plotting.mask_map(np.tri(13, 11, dtype=bool))):  # fmt: skip
        ax.figure.draw_without_rendering()
        tight, (width, height) = ax.figure.get_tightbbox(), ax.figure.get_size_inches()
        assert tight.x0 >= 0
        assert tight.y0 >= 0
        assert tight.x1 <= width
        assert tight.y1 <= height


def test_heat_map_draws_on_the_axes_it_is_given():
    _, ax = plt.subplots()
    assert plotting.heat_map(EXAMPLE, ax=ax) is ax
    assert plotting.mask_map(EXAMPLE > 0.3, ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": [1.0, 0.0]}, r"matrix: expected a matrix \(L, S\).*got \(2,\)"),
        ({"matrix": np.zeros((0, 3))}, r"got \(0, 3\)"),
        ({"matrix": [[1.5]]}, "from vmin = 0.0 to vmax = 1.0 .*got 1.5 to 1.5"),
        ({"matrix": [[-0.1]]}, "got -0.1 to -0.1"),
        ({"matrix": [[np.inf]], "vmax": None}, "got inf to inf"),
        ({"matrix": EXAMPLE, "row_labels": ["a"]}, "labels of query: expected 2, one each; got 1"),
        ({"matrix": EXAMPLE, "column_labels": ["a"]}, "labels of key: expected 3, one each; got 1"),
    ],
)
def test_heat_map_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        plotting.heat_map(**arguments)
    assert plt.get_fignums() == []  # and leaves no empty figure behind


# mask_map


def test_mask_map_fills_visible_cells_and_hatches_hidden_ones():
    allowed = np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    ax = plotting.mask_map(allowed)
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), allowed)
    assert image.get_clim() == (0, 1)
    assert hatched_cells(ax) == {(0, 1), (0, 2), (1, 2)}
    visible, hidden = image.to_rgba([[True, False]])[0, :, :3]
    np.testing.assert_allclose(visible, [0x8A / 255, 0x2F / 255, 0x7C / 255], atol=1e-6)
    np.testing.assert_array_equal(hidden, 1)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("● query", "■ key")


@pytest.mark.parametrize("seen", [True, False])
def test_mask_map_of_one_kind_keeps_its_two_colours(seen):
    ax = plotting.mask_map(np.full((2, 5), seen))
    assert ax.images[0].get_clim() == (0, 1)
    assert len(hatched_cells(ax)) == (0 if seen else 10)


def test_mask_map_rules_the_tiles():
    ax = plotting.mask_map(np.tri(5, 7, dtype=bool), block_size=3)
    dark = [c for c in ax.collections if not c.get_hatch() and c.get_linewidth()[0] > 1.5]
    starts = sorted(tuple(segment[0].tolist()) for c in dark for segment in c.get_segments())
    assert starts == [(-0.5, 2.5), (2.5, -0.5), (5.5, -0.5)]


def test_mask_map_writes_the_kind_of_each_tile():
    tiles = np.array([[1, 0, 0], [2, 1, 0]], dtype=np.int8)
    ax = plotting.mask_map(np.tri(5, 7, dtype=bool), block_size=3, block_map=tiles)
    assert texts(ax) == ["some", "none", "none", "all", "some", "none"]
    positions = [text.get_position() for text in ax.texts]
    assert positions == [(1, 1), (4, 1), (6, 1), (1, 3.5), (4, 3.5), (6, 3.5)]  # (x, y) centres


def test_mask_map_writes_digits_where_words_do_not_fit():
    tiles = np.full((12, 12), 2)
    ax = plotting.mask_map(np.ones((48, 48), dtype=bool), block_size=4, block_map=tiles)
    assert set(texts(ax)) == {"2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size: expected a positive int; got 0"),
        ({"block_map": [[1]]}, "block_size: expected the one that made block_map; got None"),
        ({"block_map": [[1]], "block_size": 3}, r"= \(2, 3\); got \(1, 1\)"),
        ({"block_map": [[1, 0, 3]] * 2, "block_size": 3}, r"0 none, 1 some, 2 all; got \[0 1 3\]"),
        ({"row_labels": ["a"]}, "labels of query: expected 5"),
    ],
)
def test_mask_map_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        plotting.mask_map(np.tri(5, 7, dtype=bool), **options)


def test_mask_map_refuses_what_is_no_mask():
    with pytest.raises(TypeError, match="True = may attend; got float64"):
        plotting.mask_map(np.tri(3))
    with pytest.raises(ValueError, match=r"allowed: expected a matrix \(L, S\).*got \(1, 3, 3\)"):
        plotting.mask_map(np.ones((1, 3, 3), dtype=bool))


# fit_slope and power_law


@pytest.mark.parametrize("slope", [-1.5, 0.0, 1.0, 2.0])
def test_fit_slope_is_exact_on_power_laws(slope):
    x = np.array([3.0, 7.0, 31.0, 127.0, 500.0])
    assert plotting.fit_slope(x, 0.02 * x**slope) == pytest.approx(slope, abs=1e-12)


def test_fit_slope_by_hand():
    # In powers of 10: u = 0, 1, 2 and v = 0, 0, 3, so Σ(u-1)(v-1) = 3 over Σ(u-1)² = 2.
    assert plotting.fit_slope([1, 10, 100], [1, 1, 1000]) == pytest.approx(1.5, abs=1e-12)


def test_fit_slope_agrees_with_polyfit_and_ignores_units():
    rng = np.random.default_rng(5)
    x, y = rng.uniform(1, 900, 11), rng.uniform(1, 900, 11)
    slope = plotting.fit_slope(x, y)
    assert slope == pytest.approx(np.polyfit(np.log2(x), np.log2(y), 1)[0], abs=1e-12)
    assert slope == pytest.approx(plotting.fit_slope(1000 * x, y / 60), abs=1e-12)


def test_fit_slope_leaves_out_what_was_not_measured():
    assert plotting.fit_slope([1, 2, 4, 8], [1, 4, np.nan, 64]) == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 0], r"y: expected positive, finite numbers; got \[1.0, 0.0\]"),
        ([-1, 2], [1, 1], "x: expected positive"),
        ([1, 2], [1, np.inf], "y: expected positive, finite"),
        ([np.nan, 2], [1, 1], "x: expected positive"),
        ([1, 2, 3], [1, 2], r"one shape \(n,\); got \(3,\) and \(2,\)"),
        ([[1, 2]], [[1, 2]], r"got \(1, 2\)"),
        ([2, 2], [1, 3], r"two different x or more; got \[2.0, 2.0\]"),
        ([1, 2], [1, np.nan], r"two different x or more; got \[1.0\]"),
    ],
)
def test_fit_slope_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        plotting.fit_slope(x, y)


def test_power_law_draws_the_measurements_with_their_slopes():
    n = 2.0 ** np.arange(7, 14)
    series = {"naive": 3e-9 * n**2, "linear": 1e-6 * n}
    ax = plotting.power_law(n, series, xlabel="tokens", ylabel="time in s")
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["naive: slope 2.00", "linear: slope 1.00"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tokens", "time in s")
    naive, _, linear, _ = ax.lines
    np.testing.assert_array_equal(naive.get_ydata(), series["naive"])
    np.testing.assert_array_equal(linear.get_xdata(), n)
    assert naive.get_linestyle() != linear.get_linestyle()
    assert naive.get_marker() != linear.get_marker()


def test_power_law_fits_from_where_it_is_told():
    n = np.array([1.0, 2, 4, 8, 16])
    y = np.array([5.0, 5, 16, 64, 256])
    ax = plotting.power_law(n, {"a": y}, xlabel="n", ylabel="s", fit_from=4)
    assert ax.get_legend().get_texts()[0].get_text() == "a: slope 2.00"
    line, band = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), y)
    np.testing.assert_array_equal(band.get_xdata(), [4, 8, 16])
    np.testing.assert_allclose(band.get_ydata(), [16, 64, 256], rtol=1e-12)


def test_power_law_keeps_the_gap_of_what_was_not_measured():
    ax = plotting.power_law([1, 2, 4], {"a": [1, 2, np.nan]}, xlabel="n", ylabel="s")
    assert ax.get_legend().get_texts()[0].get_text() == "a: slope 1.00"
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), [1, 2])
    assert np.isnan(ax.lines[0].get_ydata()[2])


def test_power_law_labels_lengths_in_full():
    n = 2 ** np.arange(3, 18, 2)
    ax = plotting.power_law(n, {"a": n}, xlabel="n", ylabel="s")
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["8", "128", "2048", "32768"]


@pytest.mark.parametrize(
    ("x", "series", "message"),
    [
        ([1, 2], {}, r"series: expected the shape of x, \(n,\) = \(2,\), n >= 1; got \{\}"),
        ([1, 2], {"a": [1, 2, 3]}, re.escape("got {'a': (3,)}")),
        ([[1, 2]], {"a": [[1, 2]]}, re.escape("= (1, 2)")),
        ([1, 2], {"a": [1, -2]}, "y: expected positive"),
        ([1, 2], {str(i): [1, 2] for i in range(9)}, "1 to 8 lines; got 9"),
    ],
)
def test_power_law_refuses(x, series, message):
    with pytest.raises(ValueError, match=message):
        plotting.power_law(x, series, xlabel="n", ylabel="s")
