"""The roles keep apart without colour and for colour-blind readers, and read well on white."""

from itertools import combinations

import numpy as np
import pytest

from attn.palette import ROLES, find_role, line_styles, number_color, role_label

# Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color
# vision deficiency", IEEE TVCG 15(6), table of severity 1.0; applied to linear RGB.
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
# IEC 61966-2-1: linear sRGB to XYZ with the white point D65.
TO_XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
])  # fmt: skip


def linear(color):
    values = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return np.array([v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values])


def lab(rgb):
    """CIE 1976 L*a*b* of linear RGB."""
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(axis=1)
    edge = 6 / 29
    x, y, z = np.where(ratio > edge**3, np.cbrt(ratio), ratio / (3 * edge**2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(first, second):
    """WCAG 2.2 contrast ratio of two linear colours."""
    dark, light = sorted(float(TO_XYZ[1] @ rgb) for rgb in (first, second))
    return (light + 0.05) / (dark + 0.05)


def test_roles_have_the_colours_of_the_book():
    colors = {name: role.color for name, role in ROLES.items()}
    assert colors == {
        "query": "#005A9C", "key": "#A8430A", "value": "#00704F", "weight": "#8A2F7C",
    }  # fmt: skip


def test_lab_of_known_colours():
    np.testing.assert_allclose(lab(linear("#FFFFFF")), [100, 0, 0], atol=0.01)
    np.testing.assert_allclose(lab(linear("#FF0000")), [53.24, 80.09, 67.20], atol=0.02)
    np.testing.assert_allclose(np.sum(SIGHTS["tritanopia"], axis=1), 1, atol=2e-6)


@pytest.mark.parametrize("name", ROLES)
def test_role_is_readable_on_white(name):
    assert contrast(linear(ROLES[name].color), np.ones(3)) >= 4.5


# A just noticeable difference is about 2.3 (Mahy, Van Eycken and Oosterlinck 1994); 10 is four.
@pytest.mark.parametrize("sight", SIGHTS)
def test_roles_keep_apart_for_colour_blind_readers(sight):
    seen = {name: lab(SIGHTS[sight] @ linear(role.color)) for name, role in ROLES.items()}
    apart = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(apart.values()) >= 10, apart


@pytest.mark.parametrize("cue", ["linestyle", "marker", "hatch", "letter"])
def test_roles_keep_apart_without_colour(cue):
    assert len({getattr(role, cue) for role in ROLES.values()}) == len(ROLES)


def test_find_role_names_what_there_is():
    assert find_role("value") is ROLES["value"]
    with pytest.raises(ValueError, match="query, key, value, weight; got 'queries'"):
        find_role("queries")


def test_role_label_marks_and_colours_a_role_alone():
    assert role_label("query position") == {"label": "● query position", "color": "#005A9C"}
    assert role_label("weight")["label"] == "◆ weight"
    assert role_label("loss of a query")["label"] == "loss of a query"
    assert role_label("")["label"] == ""


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_line_styles_differ_in_dashes_and_marker(count):
    styles = line_styles(count)
    assert len(styles) == count
    assert len({str(style["linestyle"]) for style in styles}) == count
    assert len({style["marker"] for style in styles}) == count
    assert styles == line_styles(8)[:count]


@pytest.mark.parametrize("count", [0, 9])
def test_line_styles_refuse_what_cannot_be_told_apart(count):
    with pytest.raises(ValueError, match=f"1 to 8 lines; got {count}"):
        line_styles(count)


def test_number_color_reaches_contrast_on_every_colour():
    ink = {"black": np.zeros(3), "white": np.ones(3)}
    levels = range(0, 256, 15)
    for color in (f"#{r:02x}{g:02x}{b:02x}" for r in levels for g in levels for b in levels):
        rgb = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert contrast(ink[number_color(rgb)], linear(color)) >= 4.5, color


@pytest.mark.parametrize("rgb", [(0.5, 0.5), (0, 0, 1.5), (0, float("nan"), 0)])
def test_number_color_refuses_what_is_no_colour(rgb):
    with pytest.raises(ValueError, match=r"rgb: expected three numbers in \[0, 1\]"):
        number_color(rgb)
