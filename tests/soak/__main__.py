"""``python -m tests.soak``: see the package."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, final

import numpy as np

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from tests.soak.faults import FAULTS, Missed, SoakError, draw, still_stopped
from tests.soak.job import STEPS, TASKS
from tests.soak.network import Network
from tests.soak.tasks import ROOT, Tasks

MEAN_PAUSE_S = 6.0
"""Between two faults."""
STALL_S = 600.0
"""A job that has made no step for so long, with time to recover between faults, hangs. With 40 others on two
cores, one did not for 126 s.
"""
START_S = 600.0
LONG_MINUTES = 15.0
"""A soak as long as that has had faults of all kinds."""


@final
class Log:
    """Events in ``path``, one a line, and on the console. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._began, self._path = time.monotonic(), path
        self._lock = threading.Lock()

    def say(self, event: str, **facts: Any) -> None:
        said = " ".join(f"{name}={value!r}" for name, value in facts.items())
        line = f"{time.monotonic() - self._began:8.1f} {event:8} {said}"
        with self._lock:
            print(line, flush=True)
            with self._path.open("a") as file:
                file.write(line + "\n")


@final
class Progress:
    """Whether the job makes steps."""

    def __init__(self, path: Path) -> None:
        self._path, self._step, self._since = path, -1, time.monotonic()

    def step(self) -> int:
        """The last step that the chief told of, or -1."""
        try:
            return int(self._path.read_text())
        except (FileNotFoundError, ValueError):  # it is being written
            return self._step

    def check(self) -> None:
        step = self.step()
        if step != self._step:
            self._step, self._since = step, time.monotonic()
        elif time.monotonic() - self._since > STALL_S:
            raise SystemExit(f"the job hangs: it is at step {step} since {STALL_S:g} s")


def disturb(
    tasks: Tasks, network: Network, seconds: float, seed: int, log: Log, progress: Progress
) -> Counter[str]:
    """Do harm for so long. How often each fault did something, and, as ``missed``, nothing."""
    source, done, end = Random(seed), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(source.expovariate(1 / MEAN_PAUSE_S), 3 * MEAN_PAUSE_S))
        progress.check()
        fault = draw(source)
        try:
            log.say(fault.__name__, did=fault(tasks, network, Random(source.random())), step=progress.step())
            done[fault.__name__] += 1
        except Missed as missed:
            log.say("missed", fault=fault.__name__, why=str(missed))
            done["missed"] += 1
    return done


def final_values(directory: Path) -> tuple[int, dict[str, Any]]:
    """The last checkpoint's step and values."""
    latest = tf.train.latest_checkpoint(str(directory))
    if latest is None:
        raise SoakError(f"no checkpoint in {directory}")
    reader = tf.train.load_checkpoint(latest)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return int(values["global_step"]), values


def differences(got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The values that are not the same, bit by bit."""
    wrong = sorted(got.keys() ^ expected.keys())
    for name in got.keys() & expected.keys():
        one, other = np.asarray(got[name]), np.asarray(expected[name])
        if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
            wrong.append(f"{name}: {int((one != other).sum())} of {one.size} elements")
    return wrong


def soak(minutes: float, seed: int, out: Path) -> int:
    shutil.rmtree(out, ignore_errors=True)
    disturbed, undisturbed = out / "disturbed", out / "reference"
    for directory in (disturbed, undisturbed):
        directory.mkdir(parents=True)
    log = Log(out / "events.log")
    log.say("seed", seed=seed, minutes=minutes)
    count = len(TASKS)
    progress = Progress(disturbed / STEPS)
    with (
        ReservedPorts(2 * count) as reserved,
        Network(_at(reserved.ports[:count]), _at(reserved.ports[count:])) as network,
        Tasks(_at(reserved.ports[:count]), _at(reserved.ports[count:]), disturbed, log.say) as tasks,
    ):
        until = time.monotonic() + START_S
        while progress.step() < 1:
            if time.monotonic() > until:
                raise SoakError(f"the job did not begin within {START_S:g} s; see {disturbed}")
            time.sleep(0.2)
        log.say("began", step=progress.step())
        done = disturb(tasks, network, 60 * minutes, seed, log, progress)
        if stopped := still_stopped(tasks):
            raise SoakError(f"still stopped: {', '.join(stopped)}")
        log.say("calm", step=progress.step())
        tasks.stop()
        errors = tasks.errors
    steps, got = final_values(disturbed)
    log.say("ended", steps=steps, faults=dict(done), statuses=dict(tasks.statuses))
    reference = [sys.executable, "-m", "tests.soak.job", "reference", str(undisturbed), str(steps)]
    subprocess.run(reference, cwd=ROOT, env=_environ(), check=True)
    same_steps, expected = final_values(undisturbed)
    if same_steps != steps:
        raise SoakError(f"expected a reference of {steps} steps; got {same_steps}")
    wrong = [*errors, *differences(got, expected)]
    counts = {int(value) for name, value in got.items() if name.startswith("count")}
    if counts != {steps}:
        wrong.append(f"expected {steps} steps counted by each task; got {sorted(counts)}")
    if done.total() - done["missed"] == 0 or done["missed"] > done.total() / 2:
        raise SoakError(f"expected faults that do something; got {dict(done)}")
    unused = [fault.__name__ for fault in FAULTS if not done[fault.__name__]]
    if unused and minutes >= LONG_MINUTES:
        raise SoakError(f"expected faults of all kinds; got no {', '.join(unused)}")
    log.say("result", same=not wrong, wrong=wrong, unused=unused)
    print(
        f"seed {seed}: {steps:,} steps, {done.total() - done['missed']} faults, "
        + ("equal" if not wrong else f"NOT EQUAL: {wrong}")
    )
    return 1 if wrong else 0


def _at(ports: Sequence[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def _environ() -> dict[str, str]:
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FLOWRT_JIT": "off"}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=ROOT / "runs/soak")
    given = parser.parse_args(arguments)
    return soak(given.minutes, given.seed, given.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
