"""Axes and lines."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.base.markup import Markup, element
from flowrt.report.charts import Bar, curves, merged, peaks, smoothed, thinned
from flowrt.report.read_run import Point
from flowrt.report.scale import Scale, byte_ticks, duration, number, ticks

FINITE = st.floats(-1e30, 1e30)


@given(FINITE, st.floats(1e-9, 1e30), st.integers(1, 10))
def test_ticks_are_a_few_round_numbers_inside(low: float, span: float, count: int) -> None:
    high = low + span
    found = ticks(low, high, count)
    assert 1 <= len(found) <= 2 * count + 2
    assert found == sorted(found)
    margin = (high - low) * 1e-6 + abs(low) * 1e-9
    assert low - margin <= found[0] <= found[-1] <= high + margin


def test_ticks_of_a_value_and_of_none() -> None:
    assert ticks(2.0, 2.0) == [2.0]
    assert ticks(math.nan, 1.0) == []
    assert ticks(0.0, 1.0, 4) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert byte_ticks(0, 5000, 4) == [0, 2048, 4096]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0125, "0.0125"),
        (1234, "1234"),
        (12500, "12.5k"),
        (3.1e-7, "3.1e-07"),
        (-2e6, "-2M"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_durations_have_units() -> None:
    assert [duration(ns) for ns in (0, 12, 3400, 5.6e6, 7.8e9, 123e9, 3720e9)] == [
        "0", "12 ns", "3.4 us", "5.6 ms", "7.8 s", "2 min 3 s", "1 h 2 min",
    ]  # fmt: skip


def test_a_line_without_a_finite_value_is_not_drawn() -> None:
    drawn = curves({"good": [Point(0, 0.0, 1.0), Point(1, 0.0, 2.0)], "bad": [Point(0, 0.0, math.nan)]})
    assert "<circle" not in drawn
    assert '="nan"' not in drawn


def test_one_finite_value_among_others_is_a_dot() -> None:
    drawn = curves({"loss": [Point(0, 0.0, math.nan), Point(1, 0.0, 2.0), Point(2, 0.0, math.inf)]})
    assert drawn.count("<circle") == 1


def test_a_scale_of_one_value_puts_it_in_the_middle() -> None:
    assert Scale(5, 5, 0, 100)(5) == 50
    assert Scale(0, 10, 100, 0)(2.5) == 75


@given(st.lists(st.floats(-1e6, 1e6), min_size=50, max_size=300), st.integers(10, 40))
def test_thinning_keeps_the_extremes(values: list[float], limit: int) -> None:
    points = [Point(i, 0.0, value) for i, value in enumerate(values)]
    kept = thinned(points, limit)
    assert len(kept) <= max(limit, 2)
    assert kept == sorted(kept)
    assert max(p.value for p in kept) == max(values)
    assert min(p.value for p in kept) == min(values)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 20))
def test_an_area_is_never_lower_than_what_it_stands_for(values: list[float], limit: int) -> None:
    kept = peaks(list(enumerate(values)), limit)
    assert len(kept) <= limit
    for x, value in enumerate(values):
        assert value <= next(y for start, y in reversed(kept) if start <= x)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_a_smooth_curve_begins_at_its_first_value_and_stays_inside(values: list[float]) -> None:
    found = [p.value for p in smoothed([Point(i, 0.0, value) for i, value in enumerate(values)])]
    assert found[0] == pytest.approx(values[0])
    margin = 1e-9 + 1e-9 * max(map(abs, values))
    assert min(values) - margin <= min(found) <= max(found) <= max(values) + margin


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.sampled_from("ab"))), st.integers(1, 60)
)
def test_merged_bars_cover_what_they_were_made_of(gaps: list[tuple[int, int, str]], pixel: int) -> None:
    bars, at = [], 0
    for gap, length, kind in gaps:
        bars.append(Bar(at + gap, at + gap + length, kind, "x"))
        at += gap + length
    found = merged(bars, pixel)
    for bar in bars:
        assert any(f.kind == bar.kind and f.start <= bar.start and bar.end <= f.end for f in found)
    assert all(one.end <= other.start for one, other in pairwise(found))


def test_a_mean_is_drawn_over_a_noisy_curve_only() -> None:
    falling = [Point(i, 0.0, 1 / (i + 1)) for i in range(300)]
    noisy = [point._replace(value=point.value + i % 2) for i, point in enumerate(falling)]
    assert "faint" not in curves({"run": falling})
    assert "faint" in curves({"run": noisy})


def test_a_curve_has_a_gap_where_it_is_no_number() -> None:
    values = [1.0, 2.0, math.nan, 3.0, 4.0, math.inf]
    drawn = curves({"run": [Point(i, 0.0, value) for i, value in enumerate(values)]})
    (path,) = [part for part in drawn.split("<") if part.startswith("path")]
    assert path.count("M") == 2
    assert "nan" not in path
    assert "No value is a finite number" in curves({"run": [Point(0, 0.0, math.nan)]})


def test_markup_escapes_what_is_not_markup() -> None:
    made = element("a", "<b>", element("c"), 1.5, class_='"x"', stroke_width=None)
    assert made == '<a class="&quot;x&quot;">&lt;b&gt;<c></c>1.5</a>'
    assert isinstance(made, Markup)
