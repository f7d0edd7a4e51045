"""``flowrt debug hang``: from the records of several tasks to the one that kept the others waiting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from flowrt.cli.main import main
from flowrt.distribute.observe.flight_recorder import Event, Record, What, write_record
from flowrt.distribute.observe.missing_sender import Cause, MissingTensor, describe, explain, find_missing
from flowrt.rendezvous.matching.key import create_key

W0, W1, PS = (f"/job:{job}/replica:0/task:{n}" for job, n in (("worker", 0), ("worker", 1), ("ps", 0)))
LIFE = 5
STEP = 0xABC


def key(edge: str, src: str, dst: str = W0) -> str:
    return create_key(f"{src}/device:CPU:0", LIFE, f"{dst}/device:CPU:0", edge, 0, 0)


W_KEY, X_KEY = key("w", W1), key("x", PS, W1)
Row = tuple[float, What, int, str, str]


def record(
    task: str, rows: Iterable[Row], *, life: int = LIFE, dropped: int = 0, at: float = 100.0
) -> Record:
    return Record(task, life, dropped, at, tuple(itertools.starmap(Event, rows)))


def started(time: float = 0.0, step: int = STEP) -> Row:
    return (time, What.STARTED, step, "", "")


def waits_for_w() -> Record:
    return record(W0, [started(), (1.0, What.ASKED, STEP, W_KEY, W1)])


def was_asked(time: float = 1.5) -> Row:
    return (time, What.REQUESTED, STEP, W_KEY, W0)


def causes(*records: Record) -> dict[str, Cause]:
    return {missing.key: missing.cause for missing in find_missing(records)}


@pytest.mark.parametrize(
    ("producer", "cause"),
    [
        ([], Cause.SILENT),
        ([record(W1, [started(), was_asked()])], Cause.NOT_SENT),
        ([record(W1, [started()])], Cause.NOT_REQUESTED),
        ([record(W1, [started(0.0, STEP - 1)])], Cause.NOT_STARTED),
        ([record(W1, [was_asked()])], Cause.NOT_STARTED),
        ([record(W1, [started(), was_asked(), (2.0, What.SENT, STEP, W_KEY, W0)])], Cause.LOST),
        ([record(W1, [started(), was_asked()], life=LIFE + 1)], Cause.RESTARTED),
        ([record(W1, [], dropped=10)], Cause.NOT_SENT),
    ],
)
def test_what_the_producers_record_says(producer: list[Record], cause: Cause) -> None:
    (missing,) = find_missing([waits_for_w(), *producer])
    last = producer[0].events[-1] if producer and producer[0].events else None
    assert missing == MissingTensor(STEP, W_KEY, W0, W1, 1.0, cause, last)


def test_the_end_of_the_chain_comes_first() -> None:
    middle = record(W1, [started(), (0.5, What.ASKED, STEP, X_KEY, PS), was_asked()])
    assert list(causes(waits_for_w(), middle).items()) == [(X_KEY, Cause.SILENT), (W_KEY, Cause.WAITS)]


def test_what_arrived_is_not_missed() -> None:
    record_ = record(
        W0, [started(), (1.0, What.ASKED, STEP, W_KEY, W1), (2.0, What.ARRIVED, STEP, W_KEY, W1)]
    )
    assert causes(record_) == {}
    assert list(explain([record_])) == ["no task waits for another's tensor"]


def test_the_waits_of_an_abort_that_was_survived_do_not_count() -> None:
    rows: list[Row] = [started(), (1.0, What.ASKED, STEP, W_KEY, W1), (2.0, What.ABORTED, STEP, "boom", "")]
    assert causes(record(W0, rows)) == {W_KEY: Cause.SILENT}
    assert causes(record(W0, [*rows, started(3.0, STEP + 1)])) == {}


def test_a_wait_that_goes_on_beside_other_steps_counts() -> None:
    rows: list[Row] = [started(), (1.0, What.ASKED, STEP, W_KEY, W1), started(3.0, STEP + 1)]
    assert causes(record(W0, [*rows, (4.0, What.ENDED, STEP + 1, "", "")])) == {W_KEY: Cause.SILENT}


def test_the_latest_record_of_a_task_counts() -> None:
    old = record(W1, [started(), was_asked()], life=LIFE - 1, at=50.0)
    now = record(W1, [started(), was_asked()])
    for order in ([old, now], [now, old]):
        assert causes(waits_for_w(), *order) == {W_KEY: Cause.NOT_SENT}


def test_every_event_has_words() -> None:
    for what in What:
        event = Event(0.0, what, STEP, "boom" if what is What.ABORTED else W_KEY, W1)
        assert "step abc" in describe(event)


def test_the_command_names_who_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    middle = [started(), was_asked(), (2.0, What.ASKED, STEP, X_KEY, PS)]
    for task, rows in (
        (W0, [started(), (1.0, What.ASKED, STEP, W_KEY, W1), (32.0, What.ABORTED, STEP, "deadline", "")]),
        (W1, [*middle, (33.0, What.ABORTED, STEP, "worker 0: deadline", "")]),
        (PS, [(0.0, What.ENDED, STEP - 1, "", "")]),
    ):
        write_record(tmp_path, record(task, rows, at=34.0))
    assert main(["debug", "hang", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ps 0: 1 events, 0 earlier ones dropped",
        "worker 0: 3 events, 0 earlier ones dropped",
        "worker 1: 4 events, 0 earlier ones dropped",
        "step abc: worker 1 has waited 32.0 s for 'x': ps 0 never started the step",
        f"  key {X_KEY}",
        "  ps 0's last: ended step abb, -2.0 s",
        "step abc: worker 0 has waited 33.0 s for 'w': worker 1 is itself waiting for another task",
        f"  key {W_KEY}",
        "  worker 1's last: aborted step abc: worker 0: deadline, +32.0 s",
        "step abc was aborted first in worker 0: deadline",
    ]
    assert main(["debug", "hang", str(tmp_path / "none")]) == 2
