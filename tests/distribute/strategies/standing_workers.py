"""Workers that answer one question after another: what a test asks costs no start of processes."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, final

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from tests.forks import ForkedScript

Answers: TypeAlias = Callable[[str, int], list[Any]]
"""What each of some workers answers to a question."""

SETTINGS = ("CHECKPOINTS", "INTERVAL", "LAST_STEP")
"""Variables of the environment that tests set for the workers."""


def questions(first: str) -> Iterator[str]:
    """The questions of a worker, each in a graph of its own: the ``first``, or if that is ``stand``, those of
    its input, with the environment that comes with each.
    """
    if first != "stand":
        yield first
        return
    for line in sys.stdin:
        question, settings = json.loads(line)
        for name, value in settings.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        tf.reset_default_graph()
        yield question


def reply(answer: Any) -> None:
    """Print the ``answer`` to a question. What its graph had is gone then: a group ends in all workers before
    one of them forms the next.
    """
    text = json.dumps(answer)
    gc.collect()
    print(text, flush=True)


@final
class StandingWorkers:
    """``count`` processes of ``script``, which reads lines with a question and its settings, and prints one
    for each; both are JSON. A question is asked of all at the same time. A hang meets pytest's timeout.
    """

    def __init__(self, script: Path, count: int) -> None:
        self._stack = ExitStack()
        reserved = self._stack.enter_context(ReservedPorts(count))
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        self._processes = [
            self._stack.enter_context(ForkedScript(script, "stand", str(task), *addresses))
            for task in range(count)
        ]

    def ask(self, what: str) -> list[Any]:
        """The answers of all workers."""
        settings = {name: os.environ.get(name) for name in SETTINGS}
        for process in self._processes:
            process.stdin.write(json.dumps([what, settings]) + "\n")
        return [json.loads(process.stdout.readline()) for process in self._processes]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
