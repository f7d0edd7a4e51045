"""`standing`: workers of a script that answer questions as long as the tests of a file run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.distribute.strategies.standing_workers import Answers, StandingWorkers

SCRIPT = Path(__file__).with_name("multi_worker_layouts_script.py")


@pytest.fixture(scope="module")
def standing() -> Iterator[Callable[[Path, int], StandingWorkers]]:
    """``standing(script, count)``: the workers of a script, started when they are first needed."""
    found: dict[tuple[Path, int], StandingWorkers] = {}
    with ExitStack() as stack:

        def workers(script: Path, count: int) -> StandingWorkers:
            if (script, count) not in found:
                found[script, count] = stack.enter_context(StandingWorkers(script, count))
            return found[script, count]

        yield workers


@pytest.fixture
def answers(standing: Callable[[Path, int], StandingWorkers]) -> Answers:
    """What each of some workers with layouts answers: ``answers(what, count)``."""
    return lambda what, count: standing(SCRIPT, count).ask(what)
