"""The bench of the judge: other people's code, right and wrong, and what it says of each."""

import re

import pytest
from implementations_right import RIGHT
from implementations_wrong import WRONG

import attn


@pytest.mark.parametrize(
    ("name", "function", "options"), RIGHT, ids=[f"{n}-{r[0]}" for n, r in enumerate(RIGHT)]
)
def test_right_code_passes_with_the_option_that_fits(name, function, options):
    report = attn.check_attention(function, **options)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("title", "function", "options", "expected"),
    WRONG,
    ids=[f"{n}-{w[0]}" for n, w in enumerate(WRONG)],
)
def test_wrong_code_is_rejected_under_a_right_name_or_a_true_description(
    title, function, options, expected, tally
):
    report = attn.check_attention(function, **options)
    assert not report.passed
    names = [failure.name for failure in report.failures]
    known = all(failure.known for failure in report.failures)
    text = re.sub(r"\s+", " ", str(report))
    if isinstance(expected, set):
        assert set(names) == expected
        assert known
    elif names[0] != expected:
        assert not report.failures[0].known, names
        assert expected in text
    tally["named" if known else "described"] += 1


def test_there_is_enough_on_the_bench(tally, capsys):
    assert len(RIGHT) >= 40
    assert len(WRONG) >= 120
    assert len({title for title, *_ in WRONG}) == len(WRONG)
    with capsys.disabled():
        print(f"\nright: {len(RIGHT)}; wrong: {len(WRONG)}, of these {dict(tally)}")


@pytest.fixture(scope="module")
def tally():
    return {"named": 0, "described": 0}
