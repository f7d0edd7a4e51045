"""Two processes that save together, of which one fails or is killed at any file-system call: what is left is
one whole checkpoint, and both learn of an error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives.group import Group, join
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.dtypes import float64
from flowrt.errors import OpError, ResourceExhaustedError, UnavailableError
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.passes.layouts.processes import Own
from flowrt.train.checkpoints.checkpoint import write_checkpoint, write_pieces
from flowrt.train.checkpoints.open_checkpoint import read_checkpoint
from flowrt.train.checkpoints.shard_file import HeldPiece
from flowrt.train.checkpoints.together import Together
from tests.each import nightly
from tests.forks import FORKS
from tests.train.checkpoint_cases import files, named_files, shard_files
from tests.train.test_checkpoint_crash import FileSystem, disk_full, kill

W, MORE = np.arange(12.0).reshape(6, 2), np.ones(3)
MESH = Mesh([("dp", 2)], [f"/job:crash/task:{task}/device:CPU:0" for task in (0, 1)])

ENDED, FULL, LOST = 10, 11, 12
"""Exit statuses of a process: it saved, or raised the error of a full disk, or that the other one is lost."""


def held(task: int) -> list[HeldPiece]:
    """The rows of ``W`` that a process has; the second one has another tensor, too."""
    rows = W[3 * task : 3 * task + 3]
    piece = HeldPiece("w", float64, (6, 2), (3 * task, 0), (3, 2), rows.nbytes, lambda: nullcontext(rows))
    return [piece, HeldPiece.of_array("more", MORE)] if task else [piece]


def saves(task: int, addresses: list[str], prefix: str, fail_at: int, fail: Callable[[], None]) -> None:
    """What the process ``task`` does: it ends with a status. One of two shards is written by each."""
    joined = join(Group("crash", 2, (task,)), addresses, timeout_s=60)
    with pytest.MonkeyPatch.context() as patch:
        counted = FileSystem(patch, fail_at, fail)
        try:
            write_pieces(prefix, lambda: held(task), Together(Own(MESH, "crash", (task,)), "save"), 30)
            status = ENDED
        except ResourceExhaustedError:
            status = FULL
        except UnavailableError:
            status = LOST
    if fail is nothing:
        Path(f"{prefix}.calls{task}").write_text(str(counted.calls))
    joined.close()
    os._exit(status)


def nothing() -> None:
    """What happens where calls are only counted."""


def save(prefix: str, victim: int, fail_at: int, fail: Callable[[], None]) -> list[int]:
    """The statuses of two processes, of which ``victim`` fails at that call."""
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        given = [(t, addresses, prefix, fail_at if t == victim else 0, fail) for t in (0, 1)]
        return statuses(saves, given)


def statuses(function: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[int]:
    """The exit statuses of processes that call ``function``, one for each of ``arguments``."""
    children = [FORKS.Process(target=function, args=each) for each in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode or 0 for child in children]


def calls_of_a_save(tmp_path: Path) -> list[int]:
    prefix = str(tmp_path / "counted" / "m")
    assert save(prefix, 0, 0, nothing) == [ENDED, ENDED]
    return [int(Path(f"{prefix}.calls{task}").read_text()) for task in (0, 1)]


def is_new(prefix: str) -> bool:
    """Whether the checkpoint is the new one; otherwise it is the old one. Either is whole."""
    found = read_checkpoint(prefix)
    if "old" in found:
        assert found.keys() == {"old"}
        np.testing.assert_array_equal(found["old"], MORE)
        return False
    np.testing.assert_array_equal(found["w"], W)
    np.testing.assert_array_equal(found["more"], MORE)
    return True


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "model")


def test_each_process_writes_its_own_files_and_the_first_one_the_manifest(prefix: str) -> None:
    write_checkpoint(prefix, {"old": MORE})
    assert save(prefix, 0, 0, kill) == [ENDED, ENDED]
    assert is_new(prefix)
    assert len(shard_files(prefix)) == 3
    assert files(prefix) == named_files(prefix)


@pytest.mark.parametrize("victim", nightly([1, 0], 1))
def test_an_error_at_any_call_is_an_error_in_both_and_leaves_one_whole_checkpoint(tmp_path, prefix, victim):
    old = new = 0
    for call in range(1, calls_of_a_save(tmp_path)[victim] + 1):
        write_checkpoint(prefix, {"old": MORE})
        before = files(prefix)
        first, second = save(prefix, victim, call, disk_full)
        assert first == second, call
        if first == ENDED:  # in the sweep, after the save was committed
            assert is_new(prefix)
            new += 1
            continue
        assert first == FULL
        if is_new(prefix):  # only the directory was not synced after the rename
            new += 1
        else:
            assert files(prefix) == before
            old += 1
    assert old >= (10, 6)[victim]
    assert new >= (3, 0)[victim]


@pytest.mark.parametrize("victim", nightly([0, 1], 1))
def test_a_process_killed_at_any_call_leaves_one_whole_checkpoint(tmp_path, prefix, victim):
    left = 0
    for call in range(1, calls_of_a_save(tmp_path)[victim] + 1):
        write_checkpoint(prefix, {"old": MORE})
        statuses = save(prefix, victim, call, kill)
        assert statuses[victim] == -signal.SIGKILL
        if is_new(prefix):
            assert statuses[1 - victim] in (ENDED, LOST)
        else:
            assert statuses[1 - victim] == LOST
        left += bool(set(shard_files(prefix)) - set(named_files(prefix)))
        write_checkpoint(prefix, {"old": MORE})
        assert [n for n in files(prefix) if n.endswith("safetensors")] == shard_files(prefix)
        assert shard_files(prefix) == [n for n in named_files(prefix) if n.endswith("safetensors")]
        for pending in Path(prefix).parent.glob("*.pending"):  # of a kill before the first shard
            pending.unlink()
    assert left > (10, -1)[victim]


def saves_elsewhere(task: int, addresses: list[str], prefix: str) -> None:
    joined = join(Group("crash", 2, (task,)), addresses, timeout_s=60)
    name, processes = prefix + "1" * task, Together(Own(MESH, "crash", (task,)), "save")
    with pytest.raises(OpError, match=r"one prefix in all .* got '.*/model', and '.*/model1'"):
        write_pieces(name, lambda: held(task), processes)
    joined.close()
    os._exit(ENDED)


def test_processes_that_name_two_prefixes_learn_of_both(prefix: str) -> None:
    with ReservedPorts(2) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        assert statuses(saves_elsewhere, [(t, addresses, prefix) for t in (0, 1)]) == [ENDED, ENDED]
    assert files(prefix) == []
