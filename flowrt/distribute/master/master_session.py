"""`MasterSessions`: the sessions of a master's clients, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

from flowrt.distribute.machines.sent_constants import SentConstants
from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.master.partial_stages import PartialRunTable
from flowrt.errors import AbortedError, CancelledError, OpError
from flowrt.graph.node import Node


class Registered(NamedTuple):
    """A part that its task has as ``graph``, and the numbers of its large constants. ``feeds`` and
    ``fetches`` are indices into those of its step. ``taken``: see `RegisterGraph`. ``awaited``: an operation
    with a result that the others, or the client, wait for.
    """

    task: str
    graph: int
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    constants: Sequence[int]
    taken: Sequence[int] = ()
    awaited: Node | None = None


class RegisteredStep(NamedTuple):
    """A placed and partitioned step, by the parts registered with its tasks. ``gang``: devices on which it
    must take its turn.
    """

    parts: Sequence[Registered]
    num_feeds: int
    num_fetches: int
    gang: Sequence[str] = ()


@final
class MasterSession:
    """A session of ``client``, on ``tasks``. ``options``: a `CreateSession`."""

    def __init__(self, client: str, tasks: Sequence[str], options: Any) -> None:
        self.client, self.tasks, self.options = client, tasks, options
        self.devices: list[Any] = []
        self.graph = SessionGraph()
        self.constants = {task: SentConstants() for task in tasks}
        self.placement: dict[str, str] = {}
        self.callables: dict[int, RegisteredStep] = {}
        self.partial_runs = PartialRunTable()


@final
class MasterSessions(dict[str, MasterSession]):
    """Sessions by name. ``task``: the master's."""

    def __init__(self, task: str) -> None:
        self._task = task

    def find(self, name: str) -> MasterSession:
        """Raises `AbortedError` for one that is not there."""
        session = self.get(name)
        if session is None:
            message = (
                f"master {self._task} has no session {name!r}: it was closed, or the master was restarted"
            )
            raise AbortedError(f"{message}. Create a new Session")
        return session


def closed() -> OpError:
    """The error of a request with a session that was closed meanwhile."""
    return CancelledError("the session was closed")


def filtered(tasks: Sequence[str], filters: Sequence[str], own: str) -> list[str]:
    """The tasks that a session with these device filters sees: its master's, and those one of them names."""
    if not filters:
        return list(tasks)
    patterns = [text.replace("/replica:0", "") for text in filters]
    return [
        task
        for task in tasks
        if task == own or any(_is_within(task.replace("/replica:0", ""), pattern) for pattern in patterns)
    ]


def _is_within(task: str, pattern: str) -> bool:
    """Whether ``/job:a/task:1`` is one that ``/job:a``, or ``/job:a/task:1/device:CPU:0`` means."""
    pattern = pattern.split("/device:")[0].split("/cpu:")[0].split("/gpu:")[0]
    return fnmatchcase(task, pattern) or task.startswith(pattern + "/")
