"""Faults, and whether they did anything: `Missed` where they did not, `SoakError` where they went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeAlias

from tests.soak.network import Network
from tests.soak.tasks import Tasks

SHORT_S, LONG_S = (1.0, 4.0), (13.0, 16.0)
"""For how long a process is stopped: others believe that it lives, or that it is lost."""
IDLE_S = 60.0
"""Time in which a process that was told to end asks for no processor, and stays: it hangs."""
POLL_S = 0.02
FLIP_S = 5.0


class SoakError(Exception):
    """The machinery of the soak, not the job, did something wrong."""


class Missed(Exception):
    """A fault did nothing: it found no process, or no bytes."""


Fault: TypeAlias = Callable[[Tasks, Network, Random], str]
"""Does harm, and says what it did. Raises `Missed` or `SoakError`."""


def _victim(tasks: Tasks, random: Random, first: int = 0) -> int:
    """A task that runs. The chief is chosen less often: the others end with it, and all start again."""
    number = random.randrange(first, len(tasks.processes))
    if number == 0 and random.random() < 0.5:
        number = random.randrange(1, len(tasks.processes))
    if tasks.processes[number].poll() is not None:
        raise Missed(f"{tasks.name(number)} was not running")
    return number


def kill(tasks: Tasks, network: Network, random: Random) -> str:
    """SIGKILL."""
    with tasks.lock:
        number = _victim(tasks, random)
        process = tasks.processes[number]
        process.send_signal(signal.SIGKILL)
        status = _end_of(process, tasks.name(number))
    if status != -signal.SIGKILL:
        raise Missed(f"{tasks.name(number)} had just ended, with {status}")
    return tasks.name(number)


def _end_of(process: subprocess.Popen[bytes], name: str) -> int:
    """The status with which it ends. One that hangs is aborted, which writes the stacks of its threads to its
    log. On a busy machine a process may wait for the processor for minutes: that is no hang.
    """
    idle_s = 0.0
    while (status := process.poll()) is None:
        time.sleep(POLL_S)
        idle_s += 0.0 if _wants_processor(process.pid) else POLL_S  # not more, if this one had to wait itself
        if idle_s > IDLE_S:
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise SoakError(
                f"{name} was told to end and did nothing for {IDLE_S:g} s; its log has its stacks"
            )
    return status


def _wants_processor(pid: int) -> bool:
    """Whether one of its threads runs, could run, or is in a call of the kernel that ends by itself."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            states.append(thread.read_text().rpartition(") ")[2][0])
    return any(state in "RD" for state in states)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _stop(seconds: tuple[float, float], tasks: Tasks, random: Random) -> str:
    number = _victim(tasks, random)
    process, pause_s = tasks.processes[number], random.uniform(*seconds)
    process.send_signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + pause_s
        while process.poll() is None and _state(process.pid) != "T":
            if time.monotonic() > end:
                raise SoakError(f"{tasks.name(number)} did not stop")
            time.sleep(0.01)
        if process.poll() is not None:
            raise Missed(f"{tasks.name(number)} had just ended")
        time.sleep(max(0.0, end - time.monotonic()))
        if _state(process.pid) != "T":
            raise SoakError(f"{tasks.name(number)} did not stay stopped")
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
    return f"{tasks.name(number)} for {pause_s:.1f} s"


def pause(tasks: Tasks, network: Network, random: Random) -> str:
    """SIGSTOP, for less time than a silent task is believed to live."""
    return _stop(SHORT_S, tasks, random)


def sleep(tasks: Tasks, network: Network, random: Random) -> str:
    """SIGSTOP, for longer than that."""
    return _stop(LONG_S, tasks, random)


def drain(tasks: Tasks, network: Network, random: Random) -> str:
    """SIGTERM to a worker, which lets its step end, and ends."""
    with tasks.lock:
        number = _victim(tasks, random, first=1)
        process = tasks.processes[number]
        if not _serves(process.pid):
            raise Missed(f"{tasks.name(number)} was not up yet")
        process.send_signal(signal.SIGTERM)
        status = _end_of(process, tasks.name(number))
    if status != 0:
        raise Missed(f"{tasks.name(number)} ended with {status}: for another reason, or before it was up")
    return tasks.name(number)


def _serves(pid: int) -> bool:
    """Whether a process handles SIGTERM itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def delay(tasks: Tasks, network: Network, random: Random) -> str:
    """20 to 200 ms more to and from a task, for some seconds."""
    number = random.randrange(len(tasks.processes))
    delay_s = random.uniform(0.02, 0.2)
    network.delay(number, delay_s)
    time.sleep(random.uniform(2.0, 5.0))
    held = network.delay(number, 0.0)
    if not held:
        raise Missed(f"nothing went to or from {tasks.name(number)}")
    return f"{tasks.name(number)} by {1000 * delay_s:.0f} ms, {held} pieces"


def flip(tasks: Tasks, network: Network, random: Random) -> str:
    """One bit on the way to or from a task."""
    number = random.randrange(len(tasks.processes))
    network.flip(number, Random(random.random()))
    end = time.monotonic() + FLIP_S
    while not network.flips(number) and time.monotonic() < end:
        time.sleep(0.05)
    flipped = network.flip(number, None)
    if not flipped:
        raise Missed(f"nothing large went to or from {tasks.name(number)}")
    (one,) = flipped
    if (one.before ^ one.after).bit_count() != 1:
        raise SoakError(f"expected one flipped bit; got {one}")
    return f"{tasks.name(number)}, byte {one.at} of {one.size}: {one.before:02x} to {one.after:02x}"


FAULTS: Mapping[Fault, int] = {kill: 3, pause: 2, sleep: 1, drain: 3, delay: 2, flip: 4}
"""With their weights."""


def draw(random: Random) -> Fault:
    return random.choices(list(FAULTS), list(FAULTS.values()))[0]


def still_stopped(tasks: Tasks) -> list[str]:
    """Tasks that a fault has left stopped."""
    running = [(n, p.pid) for n, p in enumerate(tasks.processes) if p.poll() is None]
    return [
        tasks.name(number) for number, pid in running if os.path.exists(f"/proc/{pid}") and _state(pid) == "T"
    ]
