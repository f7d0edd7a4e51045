"""`Tasks`: the processes of the job. One that ends is started again, until they are told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import final

from flowrt.distribute.resolvers import VARIABLES
from tests.soak.job import STOP

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
END_S = 600.0
"""Time for the chief to end: minutes where others use the machine, too."""

Say = Callable[..., None]
"""``say(event, **facts)`` logs it."""


@final
class Tasks:
    """Task 0 is the chief, which ends well when DIRECTORY/stop exists. A context manager."""

    def __init__(self, outer: Sequence[str], inner: Sequence[str], directory: Path, say: Say) -> None:
        self._outer, self._inner, self._directory, self._say = outer, inner, directory, say
        self.processes: list[subprocess.Popen[bytes]] = []
        self.statuses = Counter[str]()
        """How often a task ended with a status, the chief's and the others'."""
        self.lock = threading.Lock()
        """Of who starts processes again: held, a process that ended stays so."""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._start_again)
        self.errors: list[str] = []

    def __enter__(self) -> Tasks:
        self.processes = [self._start(number) for number in range(len(self._outer))]
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watch.join()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def name(self, number: int) -> str:
        return "chief 0" if number == 0 else f"worker {number - 1}"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        cluster = json.dumps({"chief": self._outer[:1], "worker": self._outer[1:]})
        if number == 0:
            command = ["tests.soak.job", "chief", cluster, self._inner[0], str(self._directory)]
        else:
            command = [
                "flowrt.cli.worker",
                "--cluster",
                cluster,
                "--job",
                "worker",
                "--task",
                str(number - 1),
            ]
            command += ["--bind", self._inner[number]]
        environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environ |= {
            # both ends are on one host: left alone they would go round the proxies, and not check
            "FLOWRT_TRANSPORT": "grpc",
            "FLOWRT_CHECKSUMS": "on",
            "FLOWRT_JIT": "off",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",  # who crashes, or is aborted since it hangs, leaves its stacks
            "PYTHONPATH": str(ROOT),
        }
        log = self._directory / f"{self.name(number).replace(' ', '_')}.log"
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=environ, stdout=file, stderr=file
            )

    def _start_again(self) -> None:
        while not self._over.wait(POLL_S):
            with self.lock:
                for number, process in enumerate(self.processes):
                    status = process.poll()
                    if status is None or (number == 0 and self.is_stopping and status == 0):
                        continue  # a worker that was told to drain is needed until the chief has ended
                    self._say("ended", task=self.name(number), status=status)
                    self.statuses[f"{self.name(number).split()[0]} {status}"] += 1
                    if status in CRASHES:
                        self.errors.append(f"{self.name(number)} crashed: {signal.Signals(-status).name}")
                    self.processes[number] = self._start(number)

    @property
    def is_stopping(self) -> bool:
        return (self._directory / STOP).exists()

    def stop(self) -> None:
        """Have the chief save and end; it is started again if it fails at that."""
        (self._directory / STOP).touch()
        self.chief_has_ended(END_S)

    def chief_has_ended(self, timeout_s: float) -> None:
        """Raises `TimeoutError`."""
        for _ in range(int(timeout_s / POLL_S)):
            if self.processes[0].poll() == 0:
                return
            self._over.wait(POLL_S)
        raise TimeoutError(f"the chief did not end within {timeout_s:g} s")
