"""Spans of played steps: their seconds by kind are those that the replay counts."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import pairwise

import pytest

from flowrt.graph.pipeline.actions import Action
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.spans import Row, Span, merged, spans_of
from flowrt.plan.replay.trace import trace_of
from tests.each import nightly
from tests.plan.programs import ConstantLinks, UnequalLinks, random_programs

REDUCE = Meeting("all_reduce", ("dp",), 8)


def test_what_a_device_waits_for() -> None:
    works = (Work("f", 3.0), Work("r", after=(0,), meets=REDUCE), Work("u", 1.0, (1,)))
    program = ClassProgram(0, works)
    slow = {0: [1.0, 2.0]}
    played = play([program], {"dp": 2}, ConstantLinks(meeting=2), slow, is_detailed=True)
    (row,) = spans_of([program], played)
    assert row == Row(0, 1, (Span("computing", 0, 6, "f"), Span("all_reduce", 6, 8, "r"),
                             Span("computing", 8, 10, "u")))  # fmt: skip


def test_a_stage_waits_for_the_one_before() -> None:
    first = (Work("f", 2.0), Work("send", after=(0,), meets=Message(1, "x", 5, True)))
    second = (Work("receive", meets=Message(0, "x", 5, False)), Work("g", 4.0, (0,)))
    programs = [ClassProgram(0, first), ClassProgram(1, second)]
    played = play(programs, {}, ConstantLinks(message=1), is_detailed=True)
    rows = spans_of(programs, played)
    assert rows[1].spans == (Span("bubble", 0, 2, "receive"), Span("message", 2, 3, "receive"),
                             Span("computing", 3, 7, "g"))  # fmt: skip
    assert rows[0].spans[-1] == Span("bubble", 3, 7, "the end of the step")


@pytest.mark.parametrize("seed", nightly(range(60), 10))
def test_spans_have_no_gaps_and_the_seconds_of_the_replay(seed: int) -> None:
    rng = random.Random(seed)
    mesh = {"dp": 2, "tp": 3}
    programs = random_programs(rng, rng.randint(1, 3), list(mesh), 60)
    slow = {position: [[1, 2, 1], [1, 1, 3]] for position in range(len(programs))}
    played = play(programs, mesh, UnequalLinks(mesh), slow, is_detailed=True)
    for row, each in zip(spans_of(programs, played), played.classes, strict=True):
        seconds: dict[str, float] = defaultdict(float)
        for span in row.spans:
            seconds[span.kind] += span.end - span.start
        assert all(a.end == b.start for a, b in pairwise(row.spans))
        assert sum(seconds.values()) == pytest.approx(played.makespan)
        assert seconds.pop("computing", 0.0) == pytest.approx(each.busy[row.device])
        assert seconds.pop("others", 0.0) == pytest.approx(each.skew[row.device])
        assert seconds.keys() <= {*each.exposed, "bubble"}
        for kind, waits in each.exposed.items():
            assert seconds[kind] == pytest.approx(waits[row.device])


def test_short_neighbours_are_one() -> None:
    row = Row(0, 0, tuple(Span("computing", k, k + 1, f"{k}") for k in range(4)))
    spans = merged(row, 2.5).spans
    assert [(span.start, span.end) for span in spans] == [(0, 2), (2, 4)]


def test_passes_of_a_pipeline_and_what_is_outside_of_them() -> None:
    works = (
        Work("f", 1.0, action=Action("F", 0, 0)),
        Work("w", 1.0, action=Action("W", 0, 0)),
        Work("u", 1.0),
    )
    program = ClassProgram(0, works)
    played = play([program], {}, ConstantLinks(), is_detailed=True)
    (row,) = spans_of([program], played)
    assert [span.kind for span in row.spans] == ["forward", "backward", "outside"]


def test_a_trace_has_the_spans_and_the_links() -> None:
    works = (Work("f", 3.0), Work("r", after=(0,), meets=REDUCE), Work("u", 1.0, (1,)))
    program = ClassProgram(0, works)
    played = play([program], {"dp": 2}, ConstantLinks(meeting=2), is_detailed=True)
    content = json.loads(trace_of([program], played))
    slices = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in content["traceEvents"] if e["ph"] == "X"]
    assert slices == [(1, "computing", 0, 3e6), (1, "all_reduce", 3e6, 2e6), (1, "computing", 5e6, 1e6),
                      (2, "all_reduce dp 8 bytes", 3e6, 2e6)]  # fmt: skip
