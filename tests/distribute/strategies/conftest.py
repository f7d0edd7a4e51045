"""`standing`: workers of a script that answer questions as long as the tests of a file run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.distribute.strategies.standing_workers import Answers, StandingWorkers

SCRIPT = Path(__file__).with_name("multi_worker_layouts_script.py")


@pytest.fixture(scope="module")
def standing() -> Iterator[Callable[[Path, int], StandingWorkers]]:
    """``standing(script, count)``: the workers of a script, started when they are first needed; others for
    another transport, which is that of a process.
    """
    found: dict[tuple[Path, int, str | None], StandingWorkers] = {}
    with ExitStack() as stack:

        def workers(script: Path, count: int) -> StandingWorkers:
            key = script, count, os.environ.get("FLOWRT_TRANSPORT")
            if key not in found:
                found[key] = stack.enter_context(StandingWorkers(script, count))
            return found[key]

        yield workers


@pytest.fixture
def answers(standing: Callable[[Path, int], StandingWorkers]) -> Answers:
    """What each of some workers with layouts answers: ``answers(what, count)``."""
    return lambda what, count: standing(SCRIPT, count).ask(what)
