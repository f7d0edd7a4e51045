"""What a task keeps for people: records of steps that failed, reports of steps that wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.distribute.observe.flight_recorder import What, read_records
from flowrt.distribute.observe.missing_sender import explain
from flowrt.distribute.observe.observer import Observer
from flowrt.distribute.observe.stalls import STALL_S, StallWatch
from flowrt.rendezvous.matching.key import create_key
from flowrt.rendezvous.remote import RemoteRendezvous
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import SOON_S, cluster

HERE, THERE = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"
KEY = create_key(f"{THERE}/device:CPU:0", 1, f"{HERE}/device:CPU:0", "loss", 0, 0)


def test_a_step_that_fails_leaves_records_that_tell_what_was_missing(tmp_path: Path) -> None:
    """Of two processes; what task 0 asks for never comes to task 1."""
    faults = {"FLOWRT_FAULTS": "RecvTensor:drop=1"}
    with cluster(0, 2, "--log-dir", str(tmp_path), environ=faults) as tasks, tf.Graph():
        with tf.device("/job:worker/task:1"):
            there = tf.identity(tf.placeholder_with_default(1.0, []), name="there")
        with tf.device("/job:worker/task:0"):
            here = there + 1.0
        with tf.Session(tasks.target) as session:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(here, options=tf.RunOptions(timeout_in_ms=2000))  # the graph comes, too
    records = {record.task: record for record in read_records(tmp_path)}
    assert [event.what for event in records[HERE].events[:3]] == [What.STARTED, What.ASKED, What.ABORTED]
    text = "\n".join(explain(records.values()))
    assert "for 'PlaceholderWithDefault:0': the request never arrived at worker 1" in text


def test_a_step_that_waits_is_reported_with_the_producers_last_sign(caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer(HERE, 1)
    rendezvous = RemoteRendezvous(HERE, lambda task, keys: observer.note(What.ASKED, 7, keys[0], task))
    rendezvous.ask([KEY])
    observer.look(100.0, [(7, rendezvous)])
    observer.look(100.0 + STALL_S - 1, [(7, rendezvous)])
    assert not caplog.messages
    observer.look(100.0 + STALL_S, [(7, rendezvous)])
    (report,) = caplog.messages
    for words in ("step 7", f"waited {STALL_S:.0f} s", "'loss'", THERE, "s ago"):
        assert words in report
    rendezvous.arrived(KEY, 1.0)
    observer.look(100.0 + 10 * STALL_S, [(7, rendezvous)])
    assert len(caplog.messages) == 1


def test_a_step_that_waits_is_told_what_its_producer_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Task 1 waits for task 0, which is in a user's function; and task 2 for task 1."""
    may_go = threading.Event()

    def hold(x: Any) -> Any:
        assert may_go.wait(SOON_S)
        return x

    with cluster(3, 0) as tasks, tf.Graph(), ThreadPoolExecutor(1) as pool:
        for server in tasks.servers:
            monkeypatch.setattr(server._observer, "_watch", StallWatch(after_s=0.1))
        with tf.device("/job:worker/task:0"):
            held = tf.py_func(hold, [tf.placeholder_with_default(1.0, [])], tf.float32, name="held")
        with tf.device("/job:worker/task:1"):
            passed = tf.identity(held * 2.0, name="passed")
        with tf.device("/job:worker/task:2"):
            last = passed + 1.0
        with tf.Session(tasks.target) as session:
            step = pool.submit(session.run, last)
            at, waits = f"{HERE} is at PyFunc 'held' (", f"{THERE} waits for 'held:0' of {HERE}"
            wait_until(lambda: at in caplog.text and waits in caplog.text, "both are reported", SOON_S)
            may_go.set()
            assert step.result(SOON_S) == 3.0


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    Observer(HERE, 1, tmp_path / "file").aborted(3, tf.errors.AbortedError("x"))
    assert "could not be written" in caplog.text


def test_the_graph_of_another_process_is_checked() -> None:
    with cluster(0, 1) as tasks, tf.Graph(), tf.Session(tasks.target) as session:
        long = tf.add(tf.placeholder_with_default(1.0, []), 1.0, name="x" * 2000)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="characters in a name"):
            session.run(long)
        assert session.run(tf.placeholder_with_default(1.0, []) + 1.0) == 2.0


def test_the_folder_of_records_may_be_a_string(tmp_path: Path) -> None:
    observer = Observer(HERE, 1, str(tmp_path / "records"))
    observer.aborted(3, tf.errors.AbortedError("x"))
    assert [record.task for record in read_records(tmp_path / "records")] == [HERE]
