"""Elastic jobs of real processes: `elastic_script.py` in each of them, the coordinator in the test."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.elastic import coordinator, coordinator_server
from flowrt.distribute.elastic.coordinator import State
from flowrt.distribute.elastic.coordinator_client import ElasticPlace, format_place
from flowrt.distribute.elastic.coordinator_server import CoordinatorServer
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers.flowrt_variables import CLUSTER, EPOCH, TASK
from flowrt.errors import FailedPreconditionError
from flowrt.rendezvous.transport import new_transport
from flowrt.train.elastic import elastic_run
from flowrt.train.elastic.commits import checkpointed_step
from flowrt.train.elastic.elastic_run import _Leaving, run_elastic
from tests.contracts.check_transport import wait_until
from tests.forks import ForkedScript

SCRIPT = Path(__file__).with_name("elastic_script.py")
STEPS, RECORDS, BATCH = 20, 60, 12
SOON_S = 60.0


@pytest.fixture(autouse=True)
def first_groups_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long workers take to start."""
    monkeypatch.setattr(coordinator_server, "LAST_CALL_S", SOON_S)


class Job:
    """A coordinator, and workers that tests start, hurt and wait for."""

    def __init__(self, stack: ExitStack, least: int, most: int, places: int, directory: Path | None) -> None:
        self._stack, self._directory = stack, directory
        self._ports = stack.enter_context(ReservedPorts(places + 1)).ports
        self.notes: list[str] = []
        self._noted = threading.Condition()
        address = f"127.0.0.1:{self._ports[0]}"
        self.coordinator = CoordinatorServer(address, new_transport(), least, most, self._note)
        stack.callback(self.coordinator.close)

    def _note(self, text: str) -> None:
        with self._noted:
            self.notes.append(text)
            self._noted.notify_all()

    def start(self, number: int, host: str = "here", steps: int = STEPS, **events: Any) -> ForkedScript:
        """Worker ``number``. ``events`` are those of `elastic_script`."""
        place = self.place(number, host)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FLOWRT_ELASTIC", format_place(place))
            patch.setenv("EVENTS", json.dumps({place.name: events}))
            arguments = [str(steps), *([str(self._directory)] if self._directory else [])]
            return self._stack.enter_context(ForkedScript(SCRIPT, *arguments))

    def place(self, number: int, host: str = "here") -> ElasticPlace:
        address = f"127.0.0.1:{self._ports[1 + number]}"
        return ElasticPlace(self.coordinator.address, f"worker {number}", host, address)

    def wait_for(self, pattern: str) -> str:
        """The first note that has ``pattern``, once there is one."""

        def found() -> list[str]:
            return [note for note in self.notes if re.search(pattern, note)]

        with self._noted:
            assert self._noted.wait_for(found, SOON_S), f"no note {pattern!r}; got {self.notes}"
            return found()[0]


@contextmanager
def job(least: int, most: int, places: int | None = None, directory: Path | None = None) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(stack, least, most, places or most, directory)


def printed(process: ForkedScript) -> list[Any]:
    """The lines of a worker that has ended: one for each of its epochs, and the result if it has one."""
    return [json.loads(line) for line in process.printed().splitlines()]


def epochs_of(lines: list[Any]) -> list[Any]:
    """What a worker said of its epochs: its name, the epoch, its rank, the size, the first step of each."""
    return [line for line in lines if isinstance(line[0], str)]


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    """The result of one worker that has no cluster."""
    with ForkedScript(SCRIPT, str(STEPS)) as process:
        return printed(process)[-1]


def check_result(lines: list[Any], undisturbed: Any) -> None:
    """That the job has the weights of the undisturbed run, and that each record counted once an epoch."""
    weights, seen, total = lines[-1]
    np.testing.assert_allclose(weights, undisturbed[0], rtol=1e-9)
    assert seen == [STEPS * BATCH / RECORDS] * RECORDS
    assert total == [STEPS * BATCH]


@pytest.mark.slow
def test_batches_that_the_workers_do_not_divide_are_shared_out(undisturbed: Any) -> None:
    """12 rows are 3, 3, 3, 3 and none for five workers; for seven, 2 each and none for the last one."""
    for count in (5, 7):
        with job(count, count) as elastic:
            for process in [elastic.start(number) for number in range(count)]:
                check_result(printed(process), undisturbed)


@pytest.fixture
def until(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, until which worker 0 waits before step 8."""
    path = tmp_path / "until"
    monkeypatch.setenv("HOLD", "worker 0 8")
    monkeypatch.setenv("UNTIL", str(path))
    return path


def test_three_go_on_when_one_of_four_is_killed(undisturbed: Any) -> None:
    with job(2, 4) as elastic:
        others = [elastic.start(number) for number in (0, 2, 3)]
        elastic.start(1, kill=7)
        found = [printed(process) for process in others]
        elastic.wait_for("worker 1 was lost")
    for lines in found:
        check_result(lines, undisturbed)
        first, second = epochs_of(lines)
        assert first[1:2] + first[3:] == [1, 4, 0]
        assert second[1] == 2
        assert second[3] == 3
        assert second[4] in (6, 7)
    assert {epochs_of(lines)[1][2] for lines in found} == {0, 1, 2}


def test_who_comes_is_taken_in_and_has_the_state(
    undisturbed: Any, until: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_server, "LAST_CALL_S", 0.5)
    with job(2, 3) as elastic:
        first = [elastic.start(number) for number in (0, 1)]
        elastic.wait_for("epoch 1: 2 workers")
        late = elastic.start(2)
        elastic.wait_for("worker 2 came")
        until.touch()
        found = [printed(process) for process in (*first, late)]
    for lines in found:
        check_result(lines, undisturbed)
    ((_, epoch, rank, size, step),) = epochs_of(found[2])
    assert (epoch, rank, size) == (2, 2, 3)
    assert 1 <= step <= 9  # a commit of the two, not the beginning


def test_the_first_one_may_be_the_one_that_is_killed(undisturbed: Any) -> None:
    with job(1, 2) as elastic:
        workers = {f"worker {number}": elastic.start(number, pause_s=0.1) for number in (0, 1)}
        first = re.findall(r"worker \d", elastic.wait_for("epoch 1: 2 workers"))[0]
        time.sleep(0.5)  # of 2 s: in the midst of the steps
        workers.pop(first).kill()
        (other,) = workers.values()
        check_result(printed(other), undisturbed)


def test_a_spare_takes_the_place_of_a_lost_one(undisturbed: Any, until: Path) -> None:
    with job(2, 2, places=3) as elastic:
        first = [elastic.start(0), elastic.start(1, kill=9)]
        elastic.wait_for("epoch 1: 2 workers")
        spare = elastic.start(2)
        wait_until(lambda: len(elastic.coordinator._machine._members) == 3, "it has joined")
        until.touch()
        for process in (first[0], spare):
            lines = printed(process)
            check_result(lines, undisturbed)
            assert epochs_of(lines)[-1][1:4:2] == [2, 2]


@pytest.mark.slow
def test_a_spare_that_was_not_needed_ends_with_the_job() -> None:
    with job(1, 1, places=2) as elastic:
        workers = [elastic.start(0, pause_s=0.05)]
        elastic.wait_for("epoch 1: 1 worker,")
        spare = elastic.start(1)
        assert len(printed(workers[0])) == 2
        assert printed(spare) == []
        assert spare.status() == 0


def test_commits_may_be_rare(undisturbed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERY", "6")
    with job(1, 2) as elastic:
        process = elastic.start(0)
        elastic.start(1, kill=11)
        lines = printed(process)
    check_result(lines, undisturbed)
    assert [line[-1] for line in epochs_of(lines)] == [0, 6]


@pytest.mark.slow
def test_who_is_told_to_end_leaves_after_a_commit_and_is_no_failure(undisturbed: Any) -> None:
    with job(1, 3) as elastic:
        others = [elastic.start(number) for number in (0, 1)]
        leaver = elastic.start(2, terminate=8)
        for process in others:
            lines = printed(process)
            check_result(lines, undisturbed)
            assert epochs_of(lines)[-1][3] == 2
        assert leaver.status() == 0
        assert not [note for note in elastic.notes if "worker 2 was lost" in note]


@pytest.mark.slow
def test_who_stopped_is_left_behind_and_disturbs_nobody_when_it_wakes(
    undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_HEARTBEAT", "0.2")
    monkeypatch.setenv("FLOWRT_LOST_AFTER", "3")
    with job(1, 3) as elastic:
        others = [elastic.start(number, pause_s=0.05) for number in (0, 1)]
        stopped = elastic.start(2, stop=6)
        elastic.wait_for("worker 2 was lost: it was silent for 3 s")
        elastic.wait_for("epoch 2: 2 workers")
        stopped.send_signal(signal.SIGCONT)
        for process in others:
            check_result(printed(process), undisturbed)
        assert len(printed(stopped)) == 1
        assert stopped.status() == 1


def test_a_mistake_of_the_script_is_raised_in_the_worker_that_made_it(undisturbed: Any) -> None:
    with job(1, 2) as elastic:
        process = elastic.start(0)
        other = elastic.start(1, **{"raise": 4})
        check_result(printed(process), undisturbed)
        assert len(printed(other)) == 1
        assert other.status() == 1


@pytest.mark.slow
def test_too_few_workers_end_the_job_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "5")
    with job(2, 2) as elastic:
        process = elastic.start(0)
        elastic.start(1, kill=4)
        assert len(printed(process)) == 1
        assert process.status() == 1
        assert elastic.coordinator.is_over
        why = elastic.coordinator.why_failed
        assert why is not None
        assert why.startswith("expected at least 2 workers within 5 s; got 1; worker 1 was lost: ")


def test_the_end_of_the_coordinator_ends_its_workers_with_a_checkpoint_of_their_last_commit(
    undisturbed: Any, tmp_path: Path, until: Path
) -> None:
    with job(2, 2, directory=tmp_path) as elastic:
        processes = [elastic.start(number) for number in (0, 1)]
        wait_until(until.with_name("held").exists, "worker 0 is before step 8")
        elastic.coordinator.close()
        until.touch()
        for process in processes:
            assert len(printed(process)) == 1
            assert process.status() == 1
    with job(1, 1, directory=tmp_path) as elastic:
        lines = printed(elastic.start(0))
        check_result(lines, undisturbed)
        assert epochs_of(lines)[0][4] == 8


def test_who_is_told_to_end_while_it_waits_for_others_leaves_a_checkpoint(tmp_path: Path) -> None:
    with job(2, 2, directory=tmp_path) as elastic:
        process = elastic.start(0)
        elastic.start(1, kill=8)
        elastic.wait_for("worker 1 was lost")
        (member,) = elastic.coordinator._machine._members.values()
        wait_until(lambda: member.state is State.WAITING, "it waits")
        process.send_signal(signal.SIGTERM)
        assert process.status() == 0
        wait_until(lambda: not elastic.coordinator._machine._members, "it has left")
        assert not any("worker 0 was lost" in note for note in elastic.notes)
    assert checkpointed_step(str(tmp_path)) in (8, 9)


def test_a_wish_to_leave_that_comes_after_the_last_step_is_granted_before_the_wait() -> None:
    """Between a step and the wait for the next epoch a worker reports; no commit follows."""
    leaving = _Leaving()
    leaving._told(signal.SIGTERM, None)
    assert leaving.is_wanted
    with pytest.raises(SystemExit) as ending, leaving.at_once():
        pytest.fail("it waits for an epoch")
    assert ending.value.code == 0
    with pytest.raises(SystemExit) as ending:
        leaving._told(signal.SIGTERM, None)
    assert ending.value.code == 128 + signal.SIGTERM


def test_a_wish_to_leave_that_comes_after_the_last_wait_is_granted_at_the_end() -> None:
    with pytest.raises(SystemExit) as ending, _Leaving() as leaving:
        leaving._told(signal.SIGTERM, None)
    assert ending.value.code == 0


@contextmanager
def here(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of which this process is the only worker."""
    with ExitStack() as stack:
        work = Job(stack, 1, 1, 1, None)
        patch.setenv("FLOWRT_ELASTIC", format_place(work.place(0)))
        for name in (CLUSTER, TASK, EPOCH, "RANK", "WORLD_SIZE", "MASTER_ADDR"):  # those that an epoch sets
            patch.setenv(name, "")
        yield


def test_a_second_call_is_an_error_when_the_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an exit with 0, as of a worker that was not needed: what it should train would be left out."""
    with here(monkeypatch):
        assert run_elastic(lambda job: job.size) == 1
        with pytest.raises(FailedPreconditionError, match=r"one call in a process.*by job.step"):
            run_elastic(lambda job: job.size)


def test_a_wish_to_leave_does_not_wait_long_for_a_rare_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flowrt-run would kill it, and the last commit would be lost."""
    monkeypatch.setattr(elastic_run, "LEAVE_S", 0.0)
    runs = 0

    def train(job: Any) -> None:
        nonlocal runs
        step = tf.train.get_or_create_global_step()
        count = step.assign_add(1)
        with job.session(commit_every=2, save_checkpoint_secs=None, save_summaries_steps=None) as session:
            while True:
                if runs == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.run(count)
                runs += 1

    with here(monkeypatch), pytest.raises(SystemExit):
        run_elastic(train, str(tmp_path))
    assert (runs, checkpointed_step(str(tmp_path))) == (4, 4)


def test_when_all_are_killed_the_checkpoint_counts(
    undisturbed: Any, tmp_path: Path, until: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLD", "worker 0 13")
    with job(2, 2, directory=tmp_path) as elastic:
        processes = [elastic.start(number) for number in (0, 1)]
        wait_until(until.with_name("held").exists, "worker 0 is before step 13")
        for process in processes:
            process.kill()
        for process in processes:
            assert len(printed(process)) == 1
        until.touch()
        for process in [elastic.start(number) for number in (0, 1)]:
            lines = printed(process)
            check_result(lines, undisturbed)
            assert epochs_of(lines)[0][4] in (10, 11)


def test_a_job_that_is_told_to_end_leaves_a_checkpoint_of_its_last_commit(
    undisturbed: Any, tmp_path: Path
) -> None:
    """As before a requeue. Then it goes on with another number of workers."""
    with job(2, 2, directory=tmp_path) as elastic:
        for process in [elastic.start(number, terminate=8) for number in (0, 1)]:
            assert len(printed(process)) == 1
            assert process.status() == 0
    with job(3, 3, directory=tmp_path) as elastic:
        for process in [elastic.start(number) for number in (0, 1, 2)]:
            lines = printed(process)
            check_result(lines, undisturbed)
            assert epochs_of(lines)[0][3:] in ([3, 8], [3, 9])


@pytest.mark.slow
def test_a_host_that_fails_three_times_is_left_out(undisturbed: Any) -> None:
    with job(1, 2) as elastic:
        first = elastic.start(0, host="good", pause_s=0.4)
        for epoch in (1, 3, 5):
            bad = elastic.start(1, host="bad")
            elastic.wait_for(f"epoch {epoch}: 2 workers")
            bad.kill()
            elastic.wait_for(f"epoch {epoch + 1}: 1 worker,")
        assert printed(elastic.start(1, host="bad")) == []
        elastic.wait_for("refused: host bad is left out, since workers failed there in 3 epochs")
        check_result(printed(first), undisturbed)


@pytest.mark.slow
def test_random_kills_and_comers_for_a_minute_leave_the_result() -> None:
    """Four workers, one killed about every 3 s, which comes back after a random time; the seed is printed."""
    seed, steps = time.time_ns() % 1_000_000, 600
    print("seed", seed)
    random, end = np.random.default_rng(seed), time.monotonic() + 60.0
    with job(2, 4) as elastic:
        running = {number: elastic.start(number, steps=steps, pause_s=0.05) for number in range(4)}
        elastic.wait_for("epoch 1")
        while time.monotonic() < end and not elastic.coordinator.is_over:
            time.sleep(random.uniform(1.0, 3.0))
            number = int(random.choice([*running]))
            running[number].kill()
            time.sleep(random.uniform(0.0, 2.0))
            running[number] = elastic.start(number, steps=steps, pause_s=0.05)
        found = [lines for process in running.values() if len(lines := printed(process)) > 1]
        print(elastic.notes)
    assert found
    for lines in found:
        weights, seen, total = lines[-1]
        np.testing.assert_allclose(weights, np.arange(1.0, 6.0), atol=0.01)
        assert seen == [steps * BATCH / RECORDS] * RECORDS
        assert total == [steps * BATCH]


# --- variables in parts


@pytest.mark.slow
def test_variables_in_parts_go_on_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND", "parts")
    monkeypatch.setenv("EVERY", "0")
    with job(2, 3, directory=tmp_path) as elastic:
        others = [elastic.start(number) for number in (0, 1)]
        elastic.start(2, kill=10)
        found = [printed(process) for process in others]
    w, slope = np.zeros((12, 2)), np.zeros((12, 2))
    for _ in range(STEPS):
        slope = 0.5 * slope + 2 * (w - np.arange(24.0).reshape(12, 2))
        w = w - 0.1 * slope
    for lines in found:
        np.testing.assert_allclose(lines[-1], w.ravel(), rtol=1e-9)
        assert [line[3:] for line in epochs_of(lines)] == [[3, 0], [2, 8]]


@pytest.mark.slow
def test_a_checkpoint_is_progress_where_there_are_no_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND", "parts")
    monkeypatch.setenv("EVERY", "0")
    monkeypatch.setattr(coordinator, "MAX_STALLS", 1)
    with job(2, 2, directory=tmp_path) as elastic:
        processes = [elastic.start(0), elastic.start(1, lose=6)]
        for process in processes:
            assert [line[4] for line in epochs_of(printed(process))] == [0, 4]
            assert process.status() == 0


def test_commits_of_variables_in_parts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first one that gets there; another may see its end instead."""
    monkeypatch.setenv("KIND", "parts")
    monkeypatch.setenv("EVERY", "1")
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "3")
    with job(2, 2, directory=tmp_path) as elastic:
        found = [printed(process)[-1] for process in [elastic.start(number) for number in (0, 1)]]
    messages = [line[0] for line in found if len(line) == 1]
    assert messages
    assert all("expected variables that each worker has as a whole" in message for message in messages)


# --- without a coordinator


@contextmanager
def launched_by_torchrun(count: int, directory: Path, **events: Any) -> Iterator[list[ForkedScript]]:
    """Processes with torchrun's variables. ``events``: of rank 0."""
    with ReservedPorts(count + 1) as reserved, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        first = reserved.ports[0]
        patch.setenv("FLOWRT_CLUSTER", json.dumps({"worker": [f"127.0.0.1:{p}" for p in reserved.ports[1:]]}))
        patch.setenv("WORLD_SIZE", str(count))
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(first))
        patch.setenv("EVENTS", json.dumps({"rank 0": events}))
        processes = []
        for rank in range(count):
            patch.setenv("RANK", str(rank))
            processes.append(stack.enter_context(ForkedScript(SCRIPT, str(STEPS), str(directory))))
        yield processes


@pytest.mark.slow
def test_a_launcher_that_starts_all_again_goes_on_from_the_checkpoint(
    undisturbed: Any, tmp_path: Path
) -> None:
    with launched_by_torchrun(3, tmp_path, kill=12) as processes:
        for process in processes[1:]:
            assert len(printed(process)) == 1
            assert process.status() == 1
    with launched_by_torchrun(2, tmp_path) as processes:
        for process in processes:
            lines = printed(process)
            check_result(lines, undisturbed)
            assert epochs_of(lines)[0][3:] == [2, 10]
