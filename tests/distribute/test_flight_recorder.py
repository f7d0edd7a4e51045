"""The flight recorder's ring and files, and the stall watch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.observe.flight_recorder import FlightRecorder, What, read_records, write_record
from flowrt.distribute.observe.stalls import STALL_S, Stall, StallWatch, report_stall
from flowrt.errors import DataLossError, NotFoundError
from flowrt.rendezvous.matching.key import create_key

TASK, PEER = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"


def key(edge: str, src: str = PEER, life: int = 1) -> str:
    return create_key(f"{src}/device:CPU:0", life, f"{TASK}/device:CPU:0", edge, 0, 0)


# --- the recorder


@given(st.integers(0, 25))
def test_the_last_events_stay_and_the_others_are_counted(count: int) -> None:
    recorder = FlightRecorder(capacity=10)
    for step in range(count):
        recorder.record(What.ASKED, step, f"key {step}", PEER)
    record = recorder.read(TASK, 7)
    assert [event.step for event in record.events] == list(range(max(0, count - 10), count))
    assert record.dropped == max(0, count - 10)
    times = [event.time for event in record.events]
    assert times == sorted(times)
    assert all(time <= record.written_at for time in times)


def test_the_last_sign_of_a_peer() -> None:
    recorder = FlightRecorder()
    assert recorder.last_of(PEER) is None
    recorder.record(What.ASKED, 1, "a", PEER)
    recorder.record(What.ARRIVED, 1, "a", PEER)
    recorder.record(What.ENDED, 1)
    last = recorder.last_of(PEER)
    assert last is not None
    assert (last.what, last.key) == (What.ARRIVED, "a")


def test_threads_record_at_once_and_nothing_is_lost() -> None:
    recorder = FlightRecorder(capacity=4000)

    def work(peer: str) -> None:
        for step in range(1000):
            recorder.record(What.SENT, step, "k", peer)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        recorder.read(TASK, 1)
    for thread in threads:
        thread.join()
    events = recorder.read(TASK, 1).events
    assert all([e.step for e in events if e.peer == str(n)] == list(range(1000)) for n in range(4))


# --- files


def test_a_record_reads_back_and_replaces_the_one_before(tmp_path: Path) -> None:
    recorder = FlightRecorder()
    for text in ('"quoted"', "line\nbreak", "ü\u2028\ud7ff", ""):
        recorder.record(What.ABORTED, 2**63, text)
        write_record(tmp_path / "logs", recorder.read(TASK, 2**64 - 1))
    other = write_record(tmp_path / "logs", FlightRecorder().read(PEER, 1))
    first, second = read_records(tmp_path / "logs")
    assert [event.key for event in first.events] == ['"quoted"', "line\nbreak", "ü\u2028\ud7ff", ""]
    assert (first.task, first.incarnation) == (TASK, 2**64 - 1)
    assert (second.task, second.events) == (PEER, ())
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "worker_0_ffffffffffffffff.flight.jsonl",
        other.name,
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace("asked", "axed"),
        lambda text: text.replace('"step"', '"stop"'),
        lambda text: "",
        lambda text: "[1, 2]\n" + text,
        lambda text: text + "7\n",
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, damage: object) -> None:
    recorder = FlightRecorder()
    recorder.record(What.ASKED, 1, "k", PEER)
    path = write_record(tmp_path, recorder.read(TASK, 1))
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(DataLossError, match=path.name):
        read_records(tmp_path)


def test_no_records_is_an_error_that_says_how_to_have_some(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--log-dir"):
        read_records(tmp_path)


# --- stalls


def test_a_stall_is_reported_after_a_while_and_then_ever_more_rarely() -> None:
    watch = StallWatch()
    reported = [now for now in range(300) if watch.observe(now, {7: ["a", "b"]})]
    assert reported == [STALL_S, 2 * STALL_S, 4 * STALL_S, 8 * STALL_S]
    assert watch.observe(16 * STALL_S, {7: ["b", "a"]}) == [Stall(7, 16 * STALL_S, ("a", "b"))]


WAITS = st.tuples(st.frozensets(st.sampled_from("abc"), max_size=2), st.integers(1, 45))


@given(st.lists(WAITS, min_size=1, max_size=5))
def test_a_stall_is_what_has_not_changed_for_so_long(runs: list[tuple[frozenset[str], int]]) -> None:
    watch, waits = StallWatch(after_s=10.0), [keys for keys, seconds in runs for _ in range(seconds)]
    for now, keys in enumerate(waits):
        same = next((i for i, before in enumerate(reversed(waits[:now])) if before != keys), now)  # seconds
        stalls = watch.observe(float(now), {1: keys})
        if stalls:
            assert stalls == [Stall(1, float(same), tuple(sorted(keys)))]
        assert bool(stalls) == (bool(keys) and same in (10, 20, 40, 80, 160))


def test_a_step_that_is_over_is_forgotten() -> None:
    watch = StallWatch(after_s=1.0)
    assert watch.observe(0.0, {1: ["a"], 2: ["a"]}) == []
    assert [stall.step for stall in watch.observe(1.0, {2: ["a"]})] == [2]
    assert watch.observe(2.0, {1: ["a"]}) == []


def test_the_report_names_step_key_producer_and_its_last() -> None:
    stall = Stall(0x2A, 31.4, (key("w"), key("x", TASK)))
    report = report_stall(stall, TASK, {PEER: "sent 'v' of step 29"}.get)
    assert report == (
        f"step 2a in {TASK} has waited 31 s for 2 tensors:\n"
        f"  'w' of {PEER}; its last: sent 'v' of step 29 (key {key('w')})\n"
        f"  'x' of {TASK}; its last: no sign of life (key {key('x', TASK)})"
    )


def test_a_report_of_many_keys_stays_short() -> None:
    stall = Stall(1, 30.0, tuple(key(f"e{i}") for i in range(200)))
    lines = report_stall(stall, TASK, lambda task: None).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "  and 195 more"
