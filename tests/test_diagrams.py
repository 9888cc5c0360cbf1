"""The diagrams name every tensor once, nothing overlaps, and hulls hold what they must."""

import numpy as np
import pytest

plt = pytest.importorskip("matplotlib.pyplot")
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.path import Path  # noqa: E402

from attn import diagrams, plotting  # noqa: E402

VALUES = np.array([[10.0, 0], [0, 5], [0, 1]])


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        plotting.use_style()
        yield
    plt.close("all")


@pytest.fixture
def flow():
    ax = diagrams.flow_diagram()
    ax.figure.draw_without_rendering()
    return ax


def center(artist):
    return artist.get_window_extent().get_points().mean(axis=0)


def named_boxes(ax):
    """Each box of the diagram under the name that is written in it."""
    names = [text for text in ax.texts if "  " in text.get_text()]
    return {
        text.get_text().split("  ")[0]: box
        for text in names
        for box in ax.patches
        if box.get_window_extent().contains(*center(text))
    }


def test_flow_diagram_shows_every_step_with_its_shape(flow):
    shown = [text.get_text() for text in flow.texts if text.get_text()]
    boxes = [text for text in shown if "  " in text]
    assert boxes == [
        "input  X", "queries  Q", "keys  K", "values  V", "scores  Q Kᵀ / √D", "weights  A",
        "weighted sum  A V", "context  C", "output  Y",
    ]  # fmt: skip
    shapes = [shown[shown.index(box) + 1] for box in boxes]
    assert shapes == [
        "(B, L, E)", "(B, H, L, D)", "(B, Hkv, S, D)", "(B, Hkv, S, Dv)", "(B, H, L, S)",
        "(B, H, L, S)", "(B, H, L, S) · (B, Hkv, S, Dv)", "(B, H, L, Dv)", "(B, L, E)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "role"),
    [("queries", "query"), ("keys", "key"), ("values", "value"), ("weights", "weight")],
)
def test_flow_diagram_gives_each_role_its_colour_and_line(flow, name, role):
    box = named_boxes(flow)[name]
    assert to_hex(box.get_edgecolor()).upper() == plotting.ROLES[role].color
    assert box.get_linestyle() == plotting.ROLES[role].linestyle


def test_flow_diagram_keeps_texts_in_boxes_and_apart(flow):
    boxes = [patch.get_window_extent() for patch in flow.patches]
    texts = [text.get_window_extent() for text in flow.texts if text.get_text()]
    for text in texts:
        inside = [box for box in boxes if box.overlaps(text)]
        assert len(inside) <= 1
        assert all(b.x0 < text.x0 and text.x1 < b.x1 and b.y0 < text.y0 and text.y1 < b.y1
                   for b in inside)  # fmt: skip
    assert not any(a.overlaps(b) for i, a in enumerate(texts) for b in texts[:i])
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_flow_diagram_has_an_arrow_from_each_tensor_to_its_use(flow):
    boxes = named_boxes(flow)

    def owner(point, shift):  # the box that an end touches, 3 px further along the way
        x, y = flow.transData.transform(point)
        return [n for n, box in boxes.items() if box.get_window_extent().contains(x, y + shift)]

    arrows = [text for text in flow.texts if getattr(text, "arrow_patch", None)]
    ends = {(*owner(arrow.xyann, 3), *owner(arrow.xy, -3)) for arrow in arrows}
    assert ends == {
        ("input", "queries"), ("input", "keys"), ("input", "values"), ("queries", "scores"),
        ("keys", "scores"), ("scores", "weights"), ("weights", "weighted sum"),
        ("values", "weighted sum"), ("weighted sum", "context"), ("context", "output"),
    }  # fmt: skip


def test_vectors_are_lines_from_the_origin_with_the_cues_of_the_role():
    ax = diagrams.vectors([[1, 2], [-1, 0.5]], "key", labels=["k1", "k2"])
    first, second, tips = ax.lines
    np.testing.assert_array_equal(first.get_xydata(), [[0, 0], [1, 2]])
    np.testing.assert_array_equal(second.get_xydata(), [[0, 0], [-1, 0.5]])
    np.testing.assert_array_equal(tips.get_xydata(), [[1, 2], [-1, 0.5]])
    assert (first.get_color(), first.get_linestyle(), tips.get_marker()) == ("#A8430A", "--", "s")
    assert [(text.get_text(), tuple(text.xy)) for text in ax.texts] == [
        ("k1", (1, 2)), ("k2", (-1, 0.5)),
    ]  # fmt: skip
    assert ax.get_aspect() == 1


def test_points_alone_are_not_joined_to_the_origin():
    ax = diagrams.vectors(VALUES, "value", arrows=False)
    (points,) = ax.lines
    np.testing.assert_array_equal(points.get_xydata(), VALUES)
    assert (points.get_linestyle(), points.get_marker()) == ("None", "^")
    assert len(ax.texts) == 0


def test_vectors_leave_their_argument_alone():
    given = VALUES.copy()
    diagrams.vectors(given, "value", labels=["a", "b", "c"])
    np.testing.assert_array_equal(given, VALUES)


def test_labels_lie_beyond_the_tips_and_inside_the_figure():
    points = [[1, 0], [0, 1], [-1, -1]]
    ax = diagrams.vectors(points, "query", labels=["q1", "q2", "q3"])
    ax.figure.draw_without_rendering()
    frame = ax.get_window_extent()
    for text, point in zip(ax.texts, np.array(points), strict=True):
        box = text.get_window_extent()
        assert (center(text) - ax.transData.transform(point)) @ point > 8  # px away from the origin
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1


def test_convex_hull_by_hand():
    square = [[0, 0], [2, 0], [2, 2], [0, 2]]
    inner = [[1, 1], [0.5, 1.5], [1, 0], [2, 1]]  # two inside, two on an edge
    assert diagrams.convex_hull(inner + square[::-1]).tolist() == square
    assert diagrams.convex_hull([[3, 4]]).tolist() == [[3, 4]]
    assert diagrams.convex_hull([[0, 0], [2, 2], [1, 1], [2, 2]]).tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_convex_hull_holds_every_weighted_average(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(13, 2))
    corners = diagrams.convex_hull(points)
    weights = rng.dirichlet(np.full(13, 0.3), size=101)
    outline = Path(np.vstack([corners, corners[:1]]))
    assert outline.contains_points(weights @ points, radius=1e-9).all()
    assert {tuple(corner) for corner in corners} <= {tuple(point) for point in points}
    edges = np.roll(corners, -1, axis=0) - corners
    following = np.roll(edges, -1, axis=0)
    assert (edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0] > 0).all()  # left turns


def test_hull_is_drawn_around_the_points_with_the_hatch_of_the_role():
    ax = diagrams.hull(VALUES, "value")
    shade, edge = ax.patches
    for patch in (shade, edge):
        assert {tuple(p) for p in patch.get_xy()} == {tuple(p) for p in VALUES}
    assert shade.get_hatch() == plotting.ROLES["value"].hatch
    assert to_hex(edge.get_edgecolor()).upper() == plotting.ROLES["value"].color


def test_mixture_is_the_weighted_average_tied_to_its_values_by_their_weights():
    weights = [0.5, 0.2, 0.3]
    ax = diagrams.mixture(weights, VALUES, labels=["v1", "v2", "v3"], name="c")
    points, *ties, star = ax.lines
    np.testing.assert_array_equal(points.get_xydata(), VALUES)
    np.testing.assert_allclose(star.get_xydata(), [[5.0, 1.3]])  # 0.5·10 | 0.2·5 + 0.3·1
    for tie, value, weight in zip(ties, VALUES, weights, strict=True):
        np.testing.assert_allclose(tie.get_xydata(), [value, [5.0, 1.3]])
        assert tie.get_linewidth() == pytest.approx(7 * weight)
        assert (tie.get_color(), tie.get_linestyle()) == ("#8A2F7C", "-.")
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["v1", "v2", "v3", "0.500", "0.200", "0.300", "c"]
    for text, value in zip(ax.texts[3:6], VALUES, strict=True):  # each number on its own line
        along, across = np.array([[5.0, 1.3] - value, text.get_position() - value])
        assert along[0] * across[1] == pytest.approx(along[1] * across[0])
    assert len(ax.patches) == 2  # the hull


def test_mixture_needs_one_weight_for_each_value():
    with pytest.raises(ValueError, match=r"weights: expected shape \(3,\); got \(2,\)"):
        diagrams.mixture([0.5, 0.5], VALUES)


def test_diagrams_draw_on_the_axes_they_are_given():
    _, ax = plt.subplots()
    assert diagrams.hull(VALUES, ax=ax) is ax
    assert diagrams.vectors(VALUES, "value", ax=ax) is ax
    assert diagrams.flow_diagram(ax=ax) is ax
    assert diagrams.mixture(np.full(3, 1 / 3), VALUES, ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([1.0, 2.0], r"points: expected shape \(n, 2\), n >= 1; got \(2,\)"),
        (np.zeros((3, 5)), r"got \(3, 5\)"),
        (np.zeros((0, 2)), r"got \(0, 2\)"),
        ([[0.0, np.nan]], "points: expected finite numbers"),
    ],
)
def test_points_must_lie_in_the_plane(points, message):
    for function in (diagrams.convex_hull, diagrams.hull, lambda p: diagrams.vectors(p, "key")):
        with pytest.raises(ValueError, match=message):
            function(points)


def test_vectors_refuse_unknown_roles_and_wrong_labels():
    with pytest.raises(ValueError, match="role: expected one of query, key, value, weight"):
        diagrams.vectors(VALUES, "context")
    with pytest.raises(ValueError, match="labels: expected 3, one for each point; got 2"):
        diagrams.vectors(VALUES, "value", labels=["a", "b"])
