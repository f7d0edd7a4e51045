"""Starts the tasks of a job on this host, watches them, and leaves none behind.

One thread waits for everything: output of tasks, their ends (SIGCHLD) and the user's signals. `Supervisor`
decides; this file acts. A task is a separate process group, which is killed when the task has ended, and dies
with this process (`parent_watchdog`), even if that is killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, final

from flowrt.base.exit_codes import PEER_LOST, STEP_ABORTED
from flowrt.distribute.launch import parent_watchdog, supervision
from flowrt.distribute.launch.elastic_supervision import ElasticSupervisor
from flowrt.distribute.launch.task_output import TaskOutput, follows_another, last_error

GRACE_S = 5.0
"""Between the request to end and the kill."""

CAUSE_S = 2.0
"""Time to wait for the cause of a lost peer: a failed process exits up to 1 s after its connections."""

LINGER_S = 5.0
"""Between the first good end and the word that others still run."""

CHUNK = 1 << 16
MAX_PIPE = 1 << 20
"""Bytes that a pipe can hold (/proc/sys/fs/pipe-max-size)."""

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
@dataclass(frozen=True)
class Task:
    """A program to run: its display name, arguments (the first is a path), variables, and whether its output
    is shown on the console, with ``prefix`` before each line.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    on_console: bool = False
    prefix: str = ""


@final
@dataclass(frozen=True)
class Failure:
    """Cause of a failed attempt: the task that failed first independently, how, and its last output."""

    task: str
    status: int
    attempt: int
    error: str | None
    log: Path | None
    tail: list[str]


class _Child:
    """A task that runs."""

    def __init__(self, task: Task, environ: Mapping[str, str], log: Path | None) -> None:
        consoles = (sys.stdout.buffer, sys.stderr.buffer) if task.on_console else ()
        self.output = TaskOutput(log, consoles, task.prefix)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", parent_watchdog.__file__, str(os.getpid()), *task.command],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdout, self.process.stderr

    def signal(self, number: int) -> None:
        """Send a signal to the task and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        """Whether the task has; it is not waited for yet, so that its number is still its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.process.returncode is not None or os.waitid(os.P_PID, self.process.pid, flags) is not None

    def end(self) -> int:
        """Kill the rest of the group and read its output; returns the task's status."""
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        for stream, pipe in enumerate(self.pipes):
            with suppress(BlockingIOError):  # a process that left the group still holds the pipe
                for _ in range(MAX_PIPE // CHUNK):
                    self.output.write(stream, os.read(pipe.fileno(), CHUNK))
            pipe.close()
        self.output.close()
        return status


@final
class Launcher:
    """Runs ``tasks`` until ``supervisor`` says that the job is finished.

    ``report`` is called with the cause of each failed attempt, before the next; ``note`` with the names of
    those that have succeeded while others, the second names, are still running. Logs are
    ``log_dir/attempt_N/NAME.log``. Only the main thread may `run`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        supervisor: supervision.Supervisor | ElasticSupervisor,
        log_dir: Path | None,
        report: Callable[[Failure], None],
        note: Callable[[Sequence[str], Sequence[str]], None],
    ) -> None:
        self._tasks, self._log_dir, self._report, self._note = tasks, log_dir, report, note
        self._supervisor = supervisor
        self._children: dict[int, _Child] = {}
        self._ended: dict[int, TaskOutput] = {}
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, supervision.Event]] = []
        """Timer events, with their times."""

    def run(self) -> int:
        """The status for the shell. Raises OSError where a process or a log cannot be made; none is left
        then.
        """
        with ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.callback(self._kill_all)
            signals = stack.enter_context(_received_signals())
            self._selector.register(signals, selectors.EVENT_READ)
            actions = deque(self._supervisor.start())
            while True:
                while actions:
                    action = actions.popleft()
                    if isinstance(action, supervision.Finish):
                        return action.status
                    self._perform(action)
                for event in self._wait(signals):
                    actions += self._supervisor.handle(event)

    def _perform(self, action: supervision.Action) -> None:
        match action:
            case supervision.Start(attempt):
                self._start(attempt)
            case supervision.Restart(rank, attempt):
                self._start_task(rank, attempt)
            case supervision.Terminate(ranks):
                self._timers.append((time.monotonic() + GRACE_S, supervision.GraceOver()))
                self._signal(ranks, signal.SIGTERM)
            case supervision.Kill(ranks):
                self._signal(ranks, signal.SIGKILL)
            case supervision.AwaitCause():
                self._timers.append((time.monotonic() + CAUSE_S, supervision.CauseOver()))
            case supervision.AwaitEnds():
                self._timers.append((time.monotonic() + LINGER_S, supervision.Lingered()))
            case supervision.Note(ended, running):
                self._note(self._names(ended), self._names(running))
            case supervision.Report(cause, attempt):
                self._report(self._failure(cause, attempt))

    def _start(self, attempt: int) -> None:
        self._ended.clear()
        self._timers.clear()
        for rank in range(len(self._tasks)):
            self._start_task(rank, attempt)

    def _start_task(self, rank: int, attempt: int) -> None:
        task, log = self._tasks[rank], None
        if self._log_dir is not None:
            log = self._log_dir / f"attempt_{attempt}" / f"{task.name.replace(' ', '_')}.log"
        restarts = {"RESTART_COUNT": str(attempt), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        child = self._children[rank] = _Child(task, {**task.environ, **restarts}, log)
        for stream, pipe in enumerate(child.pipes):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (child, stream))

    def _wait(self, signals: socket.socket) -> Iterator[supervision.Event]:
        """Read output until an event for `Supervisor` happens."""
        left = max(0.0, min(at for at, _ in self._timers) - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(left):
            if key.fileobj is signals:
                numbers = signals.recv(CHUNK)
                yield from (supervision.Interrupted(number) for number in numbers if number in ENDINGS)
            else:
                self._take(key)
        yield from self._reap()
        now = time.monotonic()
        due = [event for at, event in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        yield from due

    def _take(self, key: selectors.SelectorKey) -> None:
        child, stream = key.data
        data = os.read(key.fd, CHUNK)
        if data:
            child.output.write(stream, data)
        else:
            self._selector.unregister(key.fileobj)

    def _reap(self) -> Iterator[supervision.Exited]:
        for rank, child in [*self._children.items()]:
            if child.has_ended():
                yield self._end(rank, child)

    def _end(self, rank: int, child: _Child) -> supervision.Exited:
        for pipe in child.pipes:
            with suppress(KeyError):  # it was at its end before
                self._selector.unregister(pipe)
        status = child.end()
        del self._children[rank]
        self._ended[rank] = child.output
        follows = status in (PEER_LOST, STEP_ABORTED) or follows_another(last_error(child.output.tail()))
        return supervision.Exited(rank, status, follows)

    def _signal(self, ranks: Sequence[int], number: int) -> None:
        for rank in ranks:
            if rank in self._children:
                self._children[rank].signal(number)

    def _names(self, ranks: Sequence[int]) -> list[str]:
        return [self._tasks[rank].name for rank in ranks]

    def _failure(self, cause: supervision.Exited, attempt: int) -> Failure:
        output = self._ended[cause.rank]
        tail = output.tail()
        name = self._tasks[cause.rank].name
        return Failure(name, cause.status, attempt, last_error(tail), output.log, tail)

    def _kill_all(self) -> None:
        for rank, child in [*self._children.items()]:
            child.signal(signal.SIGKILL)
            self._end(rank, child)


@contextmanager
def _received_signals() -> Iterator[socket.socket]:
    """A socket to read the numbers of signals from, as bytes. A signal that was ignored stays so."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        sender.setblocking(False)
        chosen = [each for each in ENDINGS if signal.getsignal(each) is not signal.SIG_IGN]
        before = {each: signal.signal(each, lambda *_: None) for each in (*chosen, signal.SIGCHLD)}
        fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(fd)
            for each, handler in before.items():
                signal.signal(each, handler)
