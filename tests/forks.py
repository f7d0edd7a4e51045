"""Processes for tests, forked from one that has imported flowrt: each begins within 20 ms, where Python and
flowrt take more than half a second. They are killed, and lose and hold things, as any other. How a command
starts is for tests that start the command.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

FORKS = multiprocessing.get_context("forkserver")
"""Forks a process without threads: another test may have used gRPC in this one."""
FORKS.set_forkserver_preload(
    [
        "pytest",
        "flowrt",
        "flowrt.distribute.launch.local_cluster",
        "flowrt.cli.worker",
        "flowrt.distribute.strategies",
        "flowrt.train",
    ]
)


@final
class ForkedScript:
    """``python script arguments`` with the environment of now. A context manager, after which it is dead."""

    def __init__(self, script: Path, *arguments: str) -> None:
        read_there, written_here = FORKS.Pipe(duplex=False)
        read_here, written_there = FORKS.Pipe(duplex=False)
        command = [str(script), *arguments]
        given = (command, dict(os.environ), read_there, written_there)
        self._process = FORKS.Process(target=_run, args=given, daemon=True)
        self._process.start()
        read_there.close()
        written_there.close()
        self.stdin, self.stdout = _file_of(written_here, "w"), _file_of(read_here, "r")

    def printed(self) -> str:
        """All that it prints until it ends. A hang meets pytest's timeout."""
        return self.stdout.read()

    def status(self) -> int:
        """Its exit status, negative for a signal, once it has ended. A hang meets pytest's timeout."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self.stdin.close()
        self.stdout.close()


@final
class ForkedMain:
    """A process that is ``main(arguments)`` with the variables ``environ`` and no others. Its output goes
    nowhere, its errors to the end of the file ``errors``. The methods are those of `subprocess.Popen`.
    """

    def __init__(
        self,
        main: Callable[[Sequence[str]], int],
        arguments: Sequence[str],
        environ: Mapping[str, str],
        errors: str,
    ) -> None:
        given = (main, list(arguments), dict(environ), errors)
        self._process = FORKS.Process(target=_run_main, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """`poll`, once it has ended. Raises TimeoutError."""
        self._process.join(timeout_s)
        status = self.poll()
        if status is None:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout_s:g} s")
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _file_of(pipe: Connection, mode: str) -> Any:
    """A file of lines in place of ``pipe``, which is closed."""
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), mode, buffering=1)


def inherit(environ: Mapping[str, str]) -> None:
    """Give this process, which is a fork of one that began earlier, the ``environ`` of who wanted it."""
    os.environ.clear()
    os.environ.update(environ)


def _run(command: Sequence[str], environ: Mapping[str, str], read: Connection, written: Connection) -> None:
    inherit(environ)
    sys.argv = [*command]
    sys.stdin, sys.stdout = _file_of(read, "r"), _file_of(written, "w")  # open until an error is printed, too
    runpy.run_path(command[0], run_name="__main__")


def _run_main(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], environ: Mapping[str, str], errors: str
) -> None:
    inherit(environ)
    for path, place in ((os.devnull, 1), (errors, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, place)
        os.close(descriptor)
    try:
        status = main(arguments)
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing leaves them out
    sys.exit(status)
