"""What a task's state machines are told, and what they decide: the events and actions of `Worker` and
`Master`.

    handle(event) -> actions

Events say what happened, actions what a shell (`flowrt.distribute.server.Server`) is to do. All are values;
an action carries all that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.wire.messages import Message
from flowrt.errors import OpError, UnimplementedError
from flowrt.graph.node import Subgraph
from flowrt.rendezvous.remote import RemoteRendezvous

# --- events of both


class Asked(NamedTuple):
    """``peer`` sent a request. Peers are names: a task's, or one that the shell gave a client."""

    peer: str
    request_id: int
    message: Message


class PeerLost(NamedTuple):
    peer: str
    error: OpError


class Ticked(NamedTuple):
    """It is ``now``, in seconds of a clock that does not jump."""

    now: float


# --- events of a worker


class GraphCompiled(NamedTuple):
    """The end of `CompileGraph`. ``part`` is the shell's."""

    graph: int
    part: Any
    error: OpError | None


class StepEnded(NamedTuple):
    """All programs of a step are done and what they made for others has left, or ``error`` has ended it."""

    step: int
    values: Sequence[Any]
    error: OpError | None
    step_stats: bytes = b""


WorkerEvent: TypeAlias = Asked | GraphCompiled | StepEnded | PeerLost | Ticked

# --- events of a master


class Answered(NamedTuple):
    """The answer to `Ask`: a message, or an error."""

    token: int
    message: Message | None
    error: OpError | None


class GraphExtended(NamedTuple):
    """The end of `ExtendGraph`: the session's graph with what is new."""

    token: int
    graph: SessionGraph | None
    error: OpError | None


class Part(NamedTuple):
    """What one task does of a callable: which of the callable's feeds it takes, and which fetches it
    makes. ``constants`` are the large ones of ``subgraph``, which is without them.
    """

    subgraph: Subgraph
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    constants: Sequence[Any] = ()


class GraphCut(NamedTuple):
    """The end of `CutGraph`: a part a task, and the devices of the operations that name resources."""

    token: int
    parts: Mapping[str, Part]
    placement: Mapping[str, str]
    error: OpError | None


MasterEvent: TypeAlias = Asked | Answered | GraphExtended | GraphCut | PeerLost | Ticked

# --- actions of both


class Answer(NamedTuple):
    """Send the answer to a request: a message, or an error."""

    peer: str
    request_id: int
    message: Message | None
    error: OpError | None = None


def unknown(asked: Asked, task: str) -> Answer:
    """The answer of ``task`` to a message that is not for it."""
    error = UnimplementedError(f"{task} knows no {type(asked.message.body).__name__}")
    return Answer(asked.peer, asked.request_id, None, error)


# --- actions of a worker


class CompileGraph(NamedTuple):
    """Compile the part that is in ``message`` of ``peer``, with its large ``constants``; `GraphCompiled` says
    the end.
    """

    graph: int
    session: str
    peer: str
    message: Message
    constants: Sequence[Any]
    optimises: bool


class DescribeParts(NamedTuple):
    """Tell ``peer`` what ``parts`` are."""

    peer: str
    request_id: int
    parts: Sequence[Any]


class StartStep(NamedTuple):
    """Run ``part`` for ``peer``; `StepEnded` says the end. ``timeout_ms`` of 0: it has no deadline."""

    step: int
    part: Any
    feeds: Sequence[Any]
    rendezvous: RemoteRendezvous
    timeout_ms: int
    trace_level: int
    peer: str


class EndStep(NamedTuple):
    """Make the step's programs end with ``error``, and all who wait for its tensors."""

    step: int
    rendezvous: RemoteRendezvous
    error: OpError


class ServeTensors(NamedTuple):
    """Answer ``request_id + i`` with the value of ``keys[i]`` when it is there."""

    step: int
    rendezvous: RemoteRendezvous
    peer: str
    request_id: int
    keys: Sequence[str]


class OpenWorkerSession(NamedTuple):
    session: str
    is_isolated: bool


class ForgetParts(NamedTuple):
    """Let go of compiled graphs."""

    parts: Sequence[Any]


class CloseWorkerSession(NamedTuple):
    """Let go of what is a session's own. ``lost``: nobody closed it; who had it is gone."""

    session: str
    lost: OpError | None


class ClearContainers(NamedTuple):
    """Drop the shared variables in ``containers``; of all if there are none."""

    containers: Sequence[str]


class StartDraining(NamedTuple):
    """Wait for the steps that run, then end the task. New work is refused already."""


WorkerAction: TypeAlias = (
    Answer | CompileGraph | DescribeParts | StartStep | EndStep | ServeTensors | OpenWorkerSession
    | ForgetParts | CloseWorkerSession | ClearContainers | StartDraining
)  # fmt: skip

# --- actions of a master


class Ask(NamedTuple):
    """Send ``message`` to ``task``; `Answered` says what comes back. ``wait_s``: a task that is not up yet is
    waited for, for so many seconds.
    """

    task: str
    token: int
    message: Message
    wait_s: float = 0.0


class Tell(NamedTuple):
    """Send ``message`` to ``task``, whose answer nobody needs."""

    task: str
    message: Message


class ExtendGraph(NamedTuple):
    """Read what ``message`` adds to ``graph``; `GraphExtended` says the end."""

    token: int
    graph: SessionGraph
    message: Message


class CutGraph(NamedTuple):
    """Place what ``message`` asks for of ``graph`` on ``devices``, and cut it by task; `GraphCut` says the
    end.
    """

    token: int
    client: str
    graph: SessionGraph
    message: Message
    options: Any
    devices: Sequence[Any]
    placement: Mapping[str, str]


MasterAction: TypeAlias = Ask | Tell | ExtendGraph | CutGraph | Answer
