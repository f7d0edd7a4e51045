"""Saves that fail, are killed, or run at once: what is left is one whole checkpoint."""

import builtins
import errno
import fcntl
import io
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from flowrt.errors import DataLossError, NotFoundError, ResourceExhaustedError
from flowrt.train.checkpoints.checkpoint import write_checkpoint
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, read_checkpoint, remove_checkpoint
from flowrt.train.checkpoints.shard_reader import ShardReader
from tests.train.checkpoint_cases import OTHER, SMALL, assert_equal, files, named_files, shard_files


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "model.ckpt-1")


# Crashes: every file-system call of a save, in turn, is the one that fails


class FileSystem:
    """Counts the file-system calls of this thread and lets the n-th one fail, half done where it can be."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int, fail: Callable[[], None]) -> None:
        self.calls, self.fail_at, self.fail = 0, fail_at, fail
        self.thread = threading.get_ident()
        for owner, name in [
            (os, "fsync"), (os, "replace"), (os, "open"), (os, "close"), (os, "mkdir"), (os, "unlink"),
            (os, "listdir"), (fcntl, "flock"), (os, "fstat"),
        ]:  # fmt: skip
            patch.setattr(owner, name, self.counted(getattr(owner, name)))
        patch.setattr(builtins, "open", self.counted(self.open_with(open)))

    def step(self) -> None:
        if threading.get_ident() != self.thread:
            return
        self.calls += 1
        if self.calls == self.fail_at:
            self.fail()

    def counted(self, function: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            self.step()
            return function(*args, **kwargs)

        return call

    def open_with(self, real_open: Callable) -> Callable:
        step = self.step

        class Raw(io.FileIO):
            def write(self, data: memoryview) -> int:
                half = bytes(data)[: (len(data) + 1) // 2]
                super().write(half)
                step()
                return len(half) + super().write(bytes(data)[len(half) :])

        def opened(path: object, mode: str) -> object:
            return io.BufferedWriter(Raw(path, mode)) if mode == "xb" else real_open(path, mode)

        return opened


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save_failing_at(call: int, fail: Callable[[], None], prefix: str) -> int:
    """Save OTHER with the ``call``-th file-system call failing; the number of calls made."""
    with pytest.MonkeyPatch.context() as patch:
        fs = FileSystem(patch, call, fail)
        with suppress(ResourceExhaustedError, KeyboardInterrupt):
            write_checkpoint(prefix, OTHER, max_shard_bytes=40)
        return fs.calls


def calls_of_a_save(tmp_path: Path) -> int:
    counted = str(tmp_path / "counted")
    write_checkpoint(counted, SMALL, max_shard_bytes=40)
    calls = save_failing_at(0, disk_full, counted)
    remove_checkpoint(counted)
    assert calls > 25
    return calls


@pytest.mark.parametrize("fail", [disk_full, interrupt])
def test_a_save_that_fails_at_any_call_leaves_one_whole_checkpoint_and_no_other_file(tmp_path, prefix, fail):
    old = new = 0
    for call in range(1, calls_of_a_save(tmp_path) + 1):
        write_checkpoint(prefix, SMALL, max_shard_bytes=40)
        before = files(prefix)
        save_failing_at(call, fail, prefix)
        step = read_checkpoint(prefix, ["step"])["step"]
        old, new = old + (step == 7), new + (step == 8)
        assert_equal(read_checkpoint(prefix), SMALL if step == 7 else OTHER)
        if step == 7:
            assert files(prefix) == before
        write_checkpoint(prefix, SMALL)  # whatever an interrupted sweep left
        assert files(prefix) == named_files(prefix)
    assert old >= 15
    assert new >= 8


def test_a_save_is_on_the_disk_before_its_rename_and_the_rename_before_the_sweep(prefix, monkeypatch):
    write_checkpoint(prefix, SMALL)
    events: list[str] = []  # the two unlinks: of the old shard, and of its pending manifest, if it were there
    for name in ("fsync", "replace", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, n=name, f=real: (events.append(n), f(*args))[1])
    write_checkpoint(prefix, OTHER, max_shard_bytes=40)
    shards, manifest, directory = 3, 1, 1
    assert events == ["fsync"] * (shards + manifest + directory) + ["replace", "fsync", "unlink", "unlink"]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_the_disk_fails_to_write_early_fails_the_save(prefix, monkeypatch, failing):
    write_checkpoint(prefix, SMALL)
    before = files(prefix)
    calls: list[int] = []

    def fdatasync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(DataLossError, match="Input/output error"):
        write_checkpoint(prefix, {"large": np.zeros(40 << 20, np.uint8)})
    assert len(calls) == failing + 1
    assert files(prefix) == before


def test_a_first_save_that_fails_leaves_nothing(tmp_path):
    for call in range(1, 15):
        prefix = str(tmp_path / f"{call}" / "m")
        save_failing_at(call, disk_full, prefix)
        assert not checkpoint_exists(prefix)
        assert not os.path.isdir(tmp_path / f"{call}") or os.listdir(tmp_path / f"{call}") == []


def test_a_save_killed_at_any_call_leaves_one_whole_checkpoint_and_the_next_save_cleans_up(tmp_path, prefix):
    killed_with_files = 0
    for call in range(1, calls_of_a_save(tmp_path) + 1):
        write_checkpoint(prefix, SMALL, max_shard_bytes=40)
        assert in_child(lambda n=call: save_failing_at(n, kill, prefix)) == -signal.SIGKILL
        step = read_checkpoint(prefix, ["step"])["step"]
        assert_equal(read_checkpoint(prefix), SMALL if step == 7 else OTHER)
        killed_with_files += bool(set(shard_files(prefix)) - set(named_files(prefix)))
        write_checkpoint(prefix, SMALL)
        assert shard_files(prefix) == [n for n in named_files(prefix) if n.endswith("safetensors")]
        for pending in Path(prefix).parent.glob("*.pending"):  # of a kill before the first shard
            assert pending.stat().st_size == 0
            pending.unlink()
    assert killed_with_files > 10


def in_child(function: Callable[[], object]) -> int:
    """Run ``function`` in a forked process; its exit status: 0, 1 for an exception, minus the signal."""
    return waited(start(function))


def start(function: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12's, of threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return child


def waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_real_file_size_limit_is_resource_exhausted_and_keeps_the_checkpoint(prefix):
    write_checkpoint(prefix, SMALL)
    before = files(prefix)

    def save_too_much() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(ResourceExhaustedError, match=r"saving checkpoint .*model.ckpt-1"):
            write_checkpoint(prefix, {"a": np.zeros(1000), "b": np.zeros(10**6)}, max_shard_bytes=10_000)

    assert in_child(save_too_much) == 0
    assert files(prefix) == before
    assert_equal(read_checkpoint(prefix), SMALL)


# Several processes under one prefix


def versions(number: int) -> dict[str, np.ndarray]:
    return {f"t{i}": np.full(1000, number) for i in range(4)}


def test_processes_that_save_at_once_never_mix_their_checkpoints(prefix):
    write_checkpoint(prefix, versions(0), max_shard_bytes=8000)

    def save_often(first: int) -> None:
        for number in range(first, first + 40):
            write_checkpoint(prefix, versions(number), max_shard_bytes=8000)

    children = [start(lambda n=first: save_often(n)) for first in (1000, 2000)]
    seen = set()
    while children:
        got = read_checkpoint(prefix)
        values = {int(v) for array in got.values() for v in np.unique(array)}
        assert len(values) == 1
        seen |= values
        for child in list(children):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0
                children.remove(child)
    assert len(seen) > 1
    assert read_checkpoint(prefix)["t0"][0] in (1039, 2039)
    assert files(prefix) == named_files(prefix)


def test_a_save_in_progress_survives_another_save_and_a_removal(prefix, monkeypatch):
    replace = os.replace
    reached: list[str] = []

    def while_pending(source: str, target: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        reached.extend(shard_files(prefix))
        write_checkpoint(prefix, versions(2))  # as another process would, just before the rename
        remove_checkpoint(prefix)
        replace(source, target)

    monkeypatch.setattr(os, "replace", while_pending)
    write_checkpoint(prefix, versions(1))
    assert len(reached) == 1
    assert_equal(read_checkpoint(prefix), versions(1))
    assert files(prefix) == named_files(prefix)


def test_a_reader_keeps_to_the_checkpoint_it_has_opened(prefix):
    write_checkpoint(prefix, versions(1), max_shard_bytes=16000)
    reader = ShardReader(prefix)
    reader.get_tensor("t0")
    write_checkpoint(prefix, versions(2), max_shard_bytes=16000)
    assert reader.get_tensor("t1")[0] == 1  # of the shard that it holds open
    with pytest.raises(NotFoundError, match="00001-of-00002"):
        reader.get_tensor("t2")
