"""Events and actions of a task's state machines `Worker` and `Master`.

    handle(event) -> actions

Events describe what happened, actions what the caller (`flowrt.distribute.server.Server`) must do. All are
values; an action contains everything that it needs.
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
    """The current time ``now``, in seconds of a monotonic clock."""

    now: float


# --- events of a worker


class GraphCompiled(NamedTuple):
    """The end of `CompileGraph`. ``part`` is the shell's."""

    graph: int
    part: Any
    error: OpError | None


class StepEnded(NamedTuple):
    """All programs of a step are done and its sends completed, or ``error`` has ended it."""

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
    """The end of `ExtendGraph`: the extended graph of the session."""

    token: int
    graph: SessionGraph | None
    error: OpError | None


class Part(NamedTuple):
    """One task's part of a callable: the indices of the callable's feeds that it reads and of the fetches
    that it computes. ``constants`` are the large ones of ``subgraph``, stored separately. ``gang``: its
    devices with collectives of groups that other steps may use.
    """

    subgraph: Subgraph
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    constants: Sequence[Any] = ()
    gang: Sequence[str] = ()


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
    error = UnimplementedError(f"{task} does not know {type(asked.message.body).__name__}")
    return Answer(asked.peer, asked.request_id, None, error)


# --- actions of a worker


class CompileGraph(NamedTuple):
    """Compile the part in ``message`` of ``peer``, with its large ``constants``; ends as `GraphCompiled`."""

    graph: int
    session: str
    peer: str
    message: Message
    constants: Sequence[Any]
    optimises: bool


class DescribeParts(NamedTuple):
    """Send ``peer`` a description of ``parts``."""

    peer: str
    request_id: int
    parts: Sequence[Any]


class StartStep(NamedTuple):
    """Run ``part`` for ``peer``; `StepEnded` reports the end. ``timeout_ms`` of 0: no deadline."""

    step: int
    part: Any
    feeds: Sequence[Any]
    rendezvous: RemoteRendezvous
    timeout_ms: int
    trace_level: int
    peer: str


class EndStep(NamedTuple):
    """End the step's programs, and all waits for its tensors, with ``error``."""

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
    """Release compiled graphs."""

    parts: Sequence[Any]


class CloseWorkerSession(NamedTuple):
    """Release a session's private resources. ``lost``: the session was not closed, but its client is gone."""

    session: str
    lost: OpError | None


class ClearContainers(NamedTuple):
    """Drop the shared variables in ``containers``, or all if empty."""

    containers: Sequence[str]


class StartDraining(NamedTuple):
    """Wait for the steps that run, then end the task. New work is refused already."""


WorkerAction: TypeAlias = (
    Answer | CompileGraph | DescribeParts | StartStep | EndStep | ServeTensors | OpenWorkerSession
    | ForgetParts | CloseWorkerSession | ClearContainers | StartDraining
)  # fmt: skip

# --- actions of a master


class Ask(NamedTuple):
    """Send ``message`` to ``task``; `Answered` reports the answer. ``wait_s``: seconds to wait for a task
    that is not up yet.
    """

    task: str
    token: int
    message: Message
    wait_s: float = 0.0


class Tell(NamedTuple):
    """Send ``message`` to ``task`` without an answer."""

    task: str
    message: Message


class ExtendGraph(NamedTuple):
    """Read the extension of ``graph`` in ``message``; `GraphExtended` reports the end."""

    token: int
    graph: SessionGraph
    message: Message


class CutGraph(NamedTuple):
    """Place the request ``message`` for ``graph`` on ``devices``, and partition it by task; `GraphCut`
    reports the end.
    """

    token: int
    client: str
    graph: SessionGraph
    message: Message
    options: Any
    devices: Sequence[Any]
    placement: Mapping[str, str]


MasterAction: TypeAlias = Ask | Tell | ExtendGraph | CutGraph | Answer
