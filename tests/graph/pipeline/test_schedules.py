"""The table of schedules: bubbles and activations by the published formulas, exact; the orders as goldens."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedule_file import format_schedule, parse_schedule
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.times import Times
from flowrt.graph.pipeline.validate import validate

GOLDEN = Path(__file__).parent / "golden"
SIZES = [(2, 4), (4, 4), (4, 8), (4, 16), (8, 32)]
TIMES = [
    Times(1, 1, 1),
    Times(2, 2, 1),
    Times(1, 2, 1),
    Times(3, 2, 1),
    Times(1, 2, 2),
    Times(5, 7, 3),
    Times(1, 4, 1),
]

BUBBLES: dict[str, Callable[[int, int, Times], Fraction]] = {
    "naive": lambda p, m, t: Fraction(m * (p - 1) * sum(t)),
    "gpipe": lambda p, m, t: Fraction((p - 1) * sum(t)),
    "1f1b": lambda p, m, t: Fraction((p - 1) * sum(t)),
    "interleaved": lambda p, m, t: Fraction((p - 1) * sum(t), 2),
    # W fills the gap of an F, but no more of it than the F takes
    "zb_h1": lambda p, m, t: Fraction((p - 1) * (t.f + t.i - min(t.f, t.w))),
}


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("p, m", SIZES)
@pytest.mark.parametrize("name", BUBBLES)
def test_bubbles_are_those_of_the_formulas(name: str, p: int, m: int, times: Times) -> None:
    assert replay(order(name, p, m), times).bubble == BUBBLES[name](p, m, times)


@pytest.mark.parametrize("p, m", [(2, 4), (4, 7), (4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("name, skew", [("zb_h2", 1), ("zbv", Fraction(1, 2))])
def test_zero_bubble_schedules_have_only_the_skew_of_the_first_forward_passes(
    name: str, skew: Fraction, p: int, m: int
) -> None:
    """With equal times no device waits between its first and its last action."""
    played = replay(order(name, p, m))
    assert played.bubble == (p - 1) * skew
    assert played.spans == played.busy


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_the_bubble_of_zb_h2_is_the_skew_or_what_two_ws_do_not_fill(p: int, m: int, times: Times) -> None:
    f, i, w = times
    assert replay(order("zb_h2", p, m), times).bubble == (p - 1) * max(f, f + i - 2 * w)


PEAKS: dict[str, Callable[[int, int, int], Fraction]] = {
    "naive": lambda i, p, m: Fraction(1),
    "gpipe": lambda i, p, m: Fraction(m),
    "1f1b": lambda i, p, m: Fraction(min(p - i, m)),
    "interleaved": lambda i, p, m: Fraction(min(2 * (p - i - 1) + p + 1, 2 * m), 2),
    "zb_h1": lambda i, p, m: Fraction(p),
    "zb_h2": lambda i, p, m: Fraction(min(2 * p - 1, m)),
}


@pytest.mark.parametrize("p, m", SIZES)
@pytest.mark.parametrize("name", PEAKS)
def test_activations_are_those_of_the_formulas(name: str, p: int, m: int) -> None:
    assert replay(order(name, p, m)).peaks == tuple(PEAKS[name](i, p, m) for i in range(p))


@pytest.mark.parametrize("p, m", [(2, 4), (4, 7), (4, 16), (8, 32)])
def test_zbv_holds_as_much_as_1f1b_on_its_first_device(p: int, m: int) -> None:
    assert replay(order("zbv", p, m)).peaks == (p,) * p


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("p, m", [(2, 5), (3, 7), (4, 4), (4, 9), (4, 11), (5, 13)])
def test_interleaved_divides_its_bubble_by_the_chunks_also_if_p_does_not_divide_m(
    p: int, m: int, chunks: int
) -> None:
    assert replay(order("interleaved", p, m, chunks)).bubble == Fraction((p - 1) * 3, chunks)


@pytest.mark.parametrize("name", TABLE)
def test_every_size_has_a_valid_schedule(name: str) -> None:
    several = len(TABLE[name].chunks) > 1
    for p in range(1, 7):
        for m in range(1, 14):
            for chunks in (2, 3, 5) if several else (None,):
                validate(order(name, p, m, chunks))


@pytest.mark.parametrize("name", TABLE)
def test_the_order_is_the_golden_one(name: str) -> None:
    """Goldens are written by `format_schedule`; a change of one is a change of what users' devices run."""
    text = (GOLDEN / f"{name}_4x8.txt").read_text()
    assert format_schedule(order(name, 4, 8)) == text
    assert parse_schedule(text, name) == order(name, 4, 8)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("1f1", 4, 8), "schedule: expected one of naive, .*; got '1f1'. Nearest: 1f1b"),
        (("1f1b", 0, 8), "schedule '1f1b': devices: expected an integer >= 1; got 0"),
        (("1f1b", 4, 2.0), "schedule '1f1b': micro_batches: expected an integer >= 1; got 2.0"),
        (("gpipe", 4, 8, 0), "schedule 'gpipe': chunks: expected an integer >= 1; got 0"),
        (("1f1b", 4, 8, 2), "schedule '1f1b': chunks: expected 1; got 2"),
        (("zbv", 4, 8, 1), "schedule 'zbv': chunks: expected 2; got 1"),
        (("interleaved", 4, 8, 1), "schedule 'interleaved': chunks: expected at least 2; got 1"),
    ],
)
def test_a_schedule_that_is_none(arguments: tuple, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidArgumentError, match=message):
        order(*arguments)


def test_many_actions_take_no_search() -> None:
    """Each action is looked at once: 49,152 on 16 devices."""
    schedule = order("zbv", 16, 512)
    assert sum(map(len, schedule.actions)) == 16 * 2 * 512 * 3
    assert replay(schedule).bubble == Fraction(15, 2)
