"""A `Saver` that keeps two checkpoints is killed, or the disk is full, at each system call of a save: the
directory names one whole checkpoint, the one before or the new one.

strace does that to a real process. It needs to be installed, and the right to trace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import flowrt as tf
from tests.contracts.check_transport import wait_until
from tests.forks import FORKS

CALLS = (
    "openat,write,pwrite64,fsync,fdatasync,rename,renameat2,unlink,unlinkat,flock,mkdir,getdents64,ftruncate"
)
SIZE, DEADLINE_S = 1000, 60.0
SAVED, FULL = 0, 11
"""Exit statuses of the process: it saved, or raised the error of a full disk."""


def _why_not() -> str:
    """Why this machine cannot trace, or nothing."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


@pytest.fixture(scope="module", autouse=True)
def can_trace() -> None:
    if reason := _why_not():
        pytest.skip(reason)


def save(directory: str, number: int, is_traced: bool) -> None:
    """What the process does: a checkpoint of ``w``, all of whose elements are ``number``. Two stay."""
    with tf.Graph().as_default():
        w = tf.get_variable("w", [SIZE], tf.int64, tf.zeros_initializer())
        saver = tf.train.Saver(max_to_keep=2)
        with tf.Session() as session:
            session.run(w.assign(np.full(SIZE, number)))
            state = tf.train.get_checkpoint_state(directory)
            if state is not None:
                saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
            if is_traced:
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                saver.save(session, os.path.join(directory, "model"), number)
                status = SAVED
            except tf.errors.ResourceExhaustedError:
                status = FULL
            os._exit(status)


class Traced(NamedTuple):
    """``status`` as of `multiprocessing.Process.exitcode`; ``calls`` are those of the process, one a line."""

    status: int
    calls: list[str]


def save_traced(directory: Path, number: int, inject: str, log: Path) -> Traced:
    """Save checkpoint ``number`` with ``inject`` of strace's into its system calls."""
    child = FORKS.Process(target=save, args=(str(directory), number, True))
    child.start()
    assert child.pid is not None
    stat = Path(f"/proc/{child.pid}/stat")  # the fork server is its parent, who alone could wait for it
    wait_until(lambda: ") T " in stat.read_text(), "the process stops", DEADLINE_S)
    command = ["strace", "-f", "-o", str(log), "-e", f"trace={CALLS}", *inject.split(), "-p", str(child.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        while "attached" not in (line := tracer.stderr.readline()):
            assert line, "strace did not attach"
        os.kill(child.pid, signal.SIGCONT)
        child.join(DEADLINE_S)
        assert child.exitcode is not None
        tracer.wait(DEADLINE_S)
    return Traced(child.exitcode, [line for line in log.read_text().splitlines() if "(" in line])


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with the checkpoints 1 and 2."""
    directory = tmp_path / "two"
    directory.mkdir()
    for number in (1, 2):
        child = FORKS.Process(target=save, args=(str(directory), number, False))
        child.start()
        child.join(DEADLINE_S)
        assert child.exitcode == SAVED
    return directory


def latest_of(directory: Path) -> int:
    """The number of the checkpoint that the directory names, which is whole."""
    latest = tf.train.latest_checkpoint(str(directory))
    assert latest is not None
    values = tf.train.load_variable(latest, "w")
    number = int(latest.rpartition("-")[2])
    np.testing.assert_array_equal(values, np.full(SIZE, number))
    return number


def is_committed(calls: list[str]) -> bool:
    """Whether the state file names the new checkpoint: its rename was made, and had not failed."""
    return any("rename(" in line and line.endswith('/checkpoint") = 0') for line in calls)


def calls_of_a_save(two: Path, tmp_path: Path) -> list[tuple[str, int]]:
    """The system calls of the third save, which ends with the removal of the first checkpoint: of each its
    name, and a number among those of that name.
    """
    copied = shutil.copytree(two, tmp_path / "counted")
    status, calls = save_traced(copied, 3, "", tmp_path / "trace")
    assert status == SAVED
    assert latest_of(copied) == 3
    assert is_committed(calls)
    seen = Counter[str]()
    found = []
    for name in (line.split()[1].partition("(")[0] for line in calls):
        seen[name] += 1
        found.append((name, seen[name]))
    assert len(found) > 25
    return found


@pytest.mark.slow
def test_a_process_killed_at_any_system_call_of_a_save_leaves_one_whole_checkpoint(
    two: Path, tmp_path: Path
) -> None:
    """(11)"""
    found = []
    for name, number in calls_of_a_save(two, tmp_path):
        directory = shutil.copytree(two, tmp_path / f"killed-{name}-{number}")
        inject = f"-e inject={name}:signal=KILL:when={number}"
        status, calls = save_traced(directory, 3, inject, tmp_path / "trace")
        assert status == -signal.SIGKILL, f"{name} {number} was not its last call: {calls[-1]}"
        assert f" {name}(" in calls[-1]
        found.append(latest_of(directory))
        assert found[-1] == (3 if is_committed(calls) else 2), calls[-1]
        child = FORKS.Process(target=save, args=(str(directory), 4, False))  # the job goes on from there
        child.start()
        child.join(DEADLINE_S)
        assert child.exitcode == SAVED
        assert latest_of(directory) == 4
    assert found == sorted(found)
    assert set(found) == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "openat"])
def test_a_disk_that_is_full_at_any_system_call_is_one_error_and_leaves_the_last_checkpoint(
    two: Path, tmp_path: Path, call: str
) -> None:
    """(10)"""
    before = sorted(os.listdir(two))
    for number in range(1, 20):
        directory = shutil.copytree(two, tmp_path / f"full{number}")
        inject = f"-e inject={call}:error=ENOSPC:when={number}"
        status, calls = save_traced(directory, 3, inject, tmp_path / "trace")
        if not any("INJECTED" in line for line in calls):
            break
        assert status in (SAVED, FULL)
        assert latest_of(directory) == (3 if is_committed(calls) else 2)
        if status == FULL and not is_committed(calls):
            left = set(os.listdir(directory)) - set(before)
            assert all(name.startswith("model-3.") for name in left)
            assert not [name for name in left if name.endswith((".pending", ".tmp"))], left
    assert number > 1
