"""The machinery of the soak: a fault that did nothing is told from one that did, a wrong result is found."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.launch.local_cluster import ReservedPorts
from tests.soak import faults
from tests.soak.__main__ import differences, soak
from tests.soak.faults import FAULTS, Missed, SoakError, draw, still_stopped
from tests.soak.network import Network

SIZE = 10_000


@pytest.fixture
def tasks() -> Iterator[Any]:
    """Two real processes that do nothing."""
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(100)"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield SimpleNamespace(processes=processes, lock=threading.Lock(), name=lambda number: f"task {number}")
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


NO_NETWORK: Any = None


def test_a_kill_kills(tasks: Any) -> None:
    assert faults.kill(tasks, NO_NETWORK, Random(1)) in ("task 0", "task 1")
    assert sorted(str(process.poll()) for process in tasks.processes) == ["-9", "None"]


def test_who_has_ended_is_neither_killed_nor_stopped_nor_drained(tasks: Any) -> None:
    for process in tasks.processes:
        process.kill()
        process.wait()
    for fault in (faults.kill, faults.pause, faults.drain):
        with pytest.raises(Missed, match="was not running"):
            fault(tasks, NO_NETWORK, Random(1))


def test_a_pause_ends(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SHORT_S", (0.1, 0.2))
    faults.pause(tasks, NO_NETWORK, Random(1))
    assert not still_stopped(tasks)
    tasks.processes[1].send_signal(signal.SIGSTOP)
    tasks.processes[1].send_signal(signal.SIGSTOP)
    while not still_stopped(tasks):
        pass
    assert still_stopped(tasks) == ["task 1"]


def test_a_process_that_does_not_drain_is_no_result(tasks: Any) -> None:
    """It does not handle SIGTERM."""
    with pytest.raises(Missed, match="task 1 was not up yet"):
        faults.drain(tasks, NO_NETWORK, Random(1))


STUBBORN = "while True: time.sleep(0.01)"
BUSY = "while not told: time.sleep(0.01)\nwhile time.process_time() < 1.0: pass"


@pytest.mark.parametrize("program", [STUBBORN, BUSY], ids=["stubborn", "busy"])
def test_a_process_that_is_told_to_end_hangs_if_it_does_nothing(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to get the processor time for its end."""
    monkeypatch.setattr(faults, "IDLE_S", 0.3)
    head = "import signal, time\ntold = []\nsignal.signal(signal.SIGTERM, lambda *_: told.append(1))\n"
    command = [sys.executable, "-c", f"{head}print(flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tasks: Any = SimpleNamespace(processes=[None, process], lock=threading.Lock(), name=str)
        if program == BUSY:
            assert faults.drain(tasks, NO_NETWORK, Random(1)) == "1"
        else:
            with pytest.raises(SoakError, match="1 was told to end and did nothing for"):
                faults.drain(tasks, NO_NETWORK, Random(1))
            assert process.poll() == -signal.SIGABRT


@pytest.fixture
def line() -> Iterator[tuple[Network, socket.socket, socket.socket]]:
    """A network of two tasks, and the ends of a connection to the first one."""
    with ReservedPorts(4) as reserved:
        at = [f"127.0.0.1:{port}" for port in reserved.ports]
        with (
            socket.create_server(("127.0.0.1", reserved.ports[2])) as server,
            Network(at[:2], at[2:]) as network,
        ):
            with (
                socket.create_connection(("127.0.0.1", reserved.ports[0])) as here,
                server.accept()[0] as there,
            ):
                yield network, here, there


def send(here: socket.socket, there: socket.socket) -> bytes:
    here.sendall(bytes(SIZE))
    came = b""
    while len(came) < SIZE:
        came += there.recv(SIZE)
    return came


def test_a_flip_is_one_bit_and_is_told(line: Any) -> None:
    network, here, there = line
    assert send(here, there) == bytes(SIZE)
    network.flip(0, Random(1))
    came = send(here, there)
    (one,) = network.flip(0, None)
    assert sum(byte.bit_count() for byte in came) == 1
    assert one.before == 0
    assert one.after == max(came)
    assert send(here, there) == bytes(SIZE)
    assert not network.flip(0, None)


def test_a_delay_is_told(line: Any) -> None:
    network, here, there = line
    network.delay(0, 0.01)
    send(here, there)
    assert network.delay(0, 0.0) > 0
    send(here, there)
    assert network.delay(0, 0.0) == 0


def test_a_flip_or_a_delay_of_nothing_is_missed(
    line: Any, tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "FLIP_S", 0.1)
    monkeypatch.setattr(faults.time, "sleep", lambda seconds: None)
    for fault in (faults.flip, faults.delay):
        with pytest.raises(Missed, match="nothing"):
            fault(tasks, line[0], Random(1))


def test_a_seed_draws_all_kinds_of_faults() -> None:
    assert {draw(Random(seed)) for seed in range(100)} == set(FAULTS)


def test_a_bit_makes_a_difference() -> None:
    values = {"a": np.zeros(3, np.float32), "b": np.array(-0.0)}
    assert not differences(values, dict(values))
    assert differences(values, {"a": values["a"]}) == ["b"]
    assert differences(values, values | {"b": np.array(0.0)}) == ["b: 0 of 1 elements"]
    assert differences(values, values | {"a": np.array([0, 0, 1], np.float32)}) == ["a: 1 of 3 elements"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_soak_is_equal(tmp_path: Path) -> None:
    assert soak(1.0, Random().randrange(1 << 32), tmp_path / "soak") == 0
    log = (tmp_path / "soak/events.log").read_text()
    assert "same=True" in log
