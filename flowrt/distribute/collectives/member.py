"""`GroupMember`: the interface of one rank of a group for operations; created by
`flowrt.distribute.collectives.group`.

    _GroupStart, _GroupWait    the communicator's collectives
    _GroupSend, _GroupRecv     messages over the links below the communicator
    _TaggedSend, _TaggedRecv   messages that are awaited by tag, in any order
    _GroupAgree                a comparison of plans

All of it but messages with tags runs on the communicator's thread, in the order of the requests. A wait for a
result ends with its step, whatever the thread is waiting for.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any, final

import numpy as np

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import communicator_over
from flowrt.distribute.collectives.communicator_thread import CommunicatorThread
from flowrt.distribute.collectives.membership import END_OF_DATA, disagree
from flowrt.distribute.collectives.mesh import LINGER_S, Mesh
from flowrt.distribute.collectives.plan import check_plan
from flowrt.distribute.collectives.split import SplitMesh
from flowrt.errors import FailedPreconditionError, OpError, copy_to_raise
from flowrt.graph.resources.step_context import wait_until


class _Result:
    """Result of a request to the thread."""

    value: Any = None
    error: OpError | None = None
    is_there = False


@final
class GroupMember:
    """One rank's end of a group: see `flowrt.graph.resources.groups.Member`. Closes ``communicator``, which
    closes ``mesh``, the links below it (None if there are none).
    """

    def __init__(self, communicator: Communicator, mesh: Mesh | None) -> None:
        self.communicator, self._mesh = communicator, mesh
        self._thread = CommunicatorThread(communicator)
        self._changed = Condition()
        self._started: dict[str, _Result] = {}
        """Collectives that are not awaited yet."""
        self._compares_plan = False
        self._last_sent: _Result | None = None
        self._last_plan = ""
        """The plan of the last step: no digest is made for the next one of the same."""
        self._agreed: set[bytes] = set()
        """Digests of the plans on which the ranks have agreed."""
        self._splits: dict[tuple[int, ...], SplitMember] = {}

    # --- messages

    def send(self, peer: int, edge: str, array: Any) -> None:
        mesh = self._links()
        flat = np.array(array, order="C").reshape(-1)  # a copy: the step continues, and overwrites it

        def send(communicator: Communicator) -> None:
            mesh.send(peer, edge.encode(), flat)
            communicator.traffic.count(flat.nbytes)

        self._last_sent = self._ask(send)

    def receive(self, peer: int, edge: str) -> Any:
        mesh = self._links()

        return self._value(self._ask(lambda _: _received(mesh, peer, edge)))

    def send_tagged(self, peer: int, tag: str, array: Any) -> None:
        data = array.tobytes()  # a copy: the step continues, and overwrites it
        (self._mesh or self._links()).send_tagged(peer, tag, data)
        self.communicator.traffic.count(len(data))

    def receive_tagged(self, peer: int, tag: str) -> Any:
        return (self._mesh or self._links()).receive_tagged(peer, tag)

    def _links(self) -> Mesh:
        if self._mesh is None:
            raise FailedPreconditionError(
                f"{self.communicator}: has no links for expanded collectives. Use lowering='native'"
            )
        return self._mesh

    # --- collectives

    def compare_first_plan(self) -> None:
        """Make the ranks compare their first plans, before they execute them."""
        self._compares_plan = True

    def start(self, edge: str, kind: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        plan = attrs["plan"]
        if self._compares_plan and plan:
            self._compares_plan = False
            self._ask(lambda communicator: check_plan(communicator, plan))
        call = _CALLS[kind]
        self.begin(edge, lambda communicator: call(communicator, arrays, attrs, _call_name(edge, attrs)))

    def begin(self, edge: str, call: Callable[[Communicator], Any]) -> None:
        """Begin ``call`` on the thread; `wait` has its result."""
        if edge in self._started and not self.communicator.has_ended:  # else it is left of a failed step
            raise FailedPreconditionError(f"{edge}: expected one step at a time in a group; got two")
        self._started[edge] = self._ask(call)

    def wait(self, edge: str) -> Sequence[Any]:
        found: Sequence[Any] = self._value(self._started.pop(edge))
        return found

    # --- parts of the group

    def split(self, label: str, ranks: tuple[int, ...]) -> SplitMember:
        if ranks not in self._splits:
            self._splits[ranks] = SplitMember(self, SplitMesh(self._links(), label, ranks), ranks)
        return self._splits[ranks]

    def agree(self, plan: str, given: Callable[[], str]) -> Callable[[], object]:
        if plan is self._last_plan:
            return lambda: None
        self._last_plan = plan
        digest = hashlib.sha256(plan.encode()).digest()
        if digest in self._agreed:
            return lambda: None
        self._agreed.add(digest)  # ranks that disagree have no further steps
        rule, text = "run the same step over one mesh, and feed all of the same batch", given() + plan
        name = f"first run of a step that {plan.partition(chr(10))[0]}"
        return functools.partial(self._value, self._ask(lambda c: check_plan(c, text, rule, name)))

    # --- the thread

    def _ask(self, call: Callable[[Communicator], Any]) -> _Result:
        """Submit a call to the thread. An error ends the group: later calls depend on it."""
        result = _Result()

        def done(value: Any, error: OpError | None) -> None:
            if error is not None:
                self.communicator.abort(error)
            with self._changed:
                result.value, result.error, result.is_there = value, error, True
                self._changed.notify_all()

        self._thread.submit(call, done)
        return result

    def _value(self, result: _Result) -> Any:
        """The result, once available. Raises its error, and the error that ends the step."""
        with self._changed:
            wait_until(lambda: result.is_there, self._changed.wait)
        if result.error is not None:
            raise copy_to_raise(result.error)
        return result.value

    # --- the end

    def meet_at_end(self) -> Callable[[], object]:
        self._started.clear()
        return functools.partial(self._value, self._ask(self._meet_at_end))

    def _meet_at_end(self, communicator: Communicator) -> None:
        """Wait for all ranks; missing ones may be in a collective of the communicator or await a message."""
        if self._mesh is None or communicator.uses_links:
            communicator.barrier(END_OF_DATA)
        else:
            for rank in communicator.membership.others:
                self._mesh.send(rank, END_OF_DATA.encode())
            communicator.barrier(END_OF_DATA)
            for rank in communicator.membership.others:
                _received(self._mesh, rank, END_OF_DATA)
        if self._mesh is not None:
            self._forget_tagged(self._mesh, communicator)

    def _forget_tagged(self, mesh: Mesh, communicator: Communicator) -> None:
        """Forget the messages of the step that ended: the next step has the same tags. Some were sent before
        the data was needed, and a rank without data does not receive them.
        """
        others = communicator.membership.others
        for rank in others:
            mesh.send_tagged(rank, END_OF_DATA, b"")
        for rank in others:  # behind all others of the rank
            mesh.receive_tagged(rank, END_OF_DATA)
        mesh.forget_tagged()
        communicator.barrier(END_OF_DATA)  # until none of the next step can be forgotten

    def abort(self, error: OpError) -> None:
        self.communicator.abort(error)

    def settle(self) -> None:
        self._thread.wait_until_idle(LINGER_S)

    def close(self) -> None:
        """End the rank's part, when what it sent is on its way: no step waits for that. Idempotent."""
        with self._changed:
            self._changed.wait_for(lambda: self._last_sent is None or self._last_sent.is_there, LINGER_S)
        self._thread.close()
        for split in self._splits.values():
            split.close()


@final
class SplitMember:
    """This rank's end of the group of some ``ranks`` of ``whole``, with the links ``mesh``. Its communicator
    is formed, on the thread of ``whole``, when it is first needed.
    """

    def __init__(self, whole: GroupMember, mesh: SplitMesh, ranks: tuple[int, ...]) -> None:
        self._whole, self._mesh, self._ranks = whole, mesh, ranks
        self._communicator: Communicator | None = None

    def send(self, peer: int, edge: str, array: Any) -> None:
        self._whole.send(self._ranks[peer], edge, array)

    def receive(self, peer: int, edge: str) -> Any:
        return self._whole.receive(self._ranks[peer], edge)

    def start(self, edge: str, kind: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        call = _CALLS[kind]
        name = _call_name(edge, attrs)
        self._whole.begin(edge, lambda whole: call(self._formed(whole.kind), arrays, attrs, name))

    def _formed(self, kind: str) -> Communicator:
        if self._communicator is None:
            self._communicator = communicator_over(self._mesh, kind)
        return self._communicator

    def wait(self, edge: str) -> Sequence[Any]:
        return self._whole.wait(edge)

    def meet_at_end(self) -> Callable[[], object]:
        return self._whole.meet_at_end()

    def abort(self, error: OpError) -> None:
        self._whole.abort(error)

    def settle(self) -> None:
        self._whole.settle()

    def close(self) -> None:
        """End its communicator. Idempotent."""
        if self._communicator is not None:
            self._communicator.close()


def _call_name(edge: str, attrs: Mapping[str, Any]) -> str:
    """The call's name, which the ranks compare: two steps with equal collectives must not be mixed up."""
    step = attrs.get("step")
    return edge if step is None else f"{edge} of step {step:x}"


def _received(mesh: Mesh, peer: int, edge: str) -> Any:
    arrived = mesh.receive(peer, edge)
    if arrived.text != edge.encode():
        own = mesh.membership.rank, edge.encode()
        raise disagree(mesh.membership, [own, (peer, arrived.text)])
    return np.empty(0, np.uint8) if arrived.payload is None else arrived.payload


# --- native collectives: of any axes, by those of the communicator, which are of the first


def _front(array: Any, axis: int) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, axis, 0))


def _back(array: Any, axis: int) -> Any:
    return np.moveaxis(array, 0, axis)


def _all_reduce(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    return [c.all_reduce(arrays[0], a["reduction"], name=name)]


def _reduce(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    result = c.reduce(arrays[0], a["root"], a["reduction"], name=name)
    return [] if result is None else [result]


def _broadcast(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    array = arrays[0] if arrays else np.empty(a["shapes"][0], a["dtype"])
    return [c.broadcast(array, a["root"], name=name)]


def _all_gather(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    (axis,) = a["axes"]
    return [_back(c.all_gather(_front(arrays[0], axis), name=name), axis)]


def _gather(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    (axis,) = a["axes"]
    result = c.gather(_front(arrays[0], axis), a["root"], name=name)
    return [] if result is None else [_back(result, axis)]


def _scatter(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    (axis,), (shape,) = a["axes"], a["shapes"]
    if not arrays:
        dims = list(shape)
        out = np.empty([dims.pop(axis), *dims], a["dtype"])
        return [_back(c.scatter(None, a["root"], out, name=name), axis)]
    return [_back(c.scatter(_front(arrays[0], axis), a["root"], name=name), axis)]


def _reduce_scatter(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    (axis,) = a["axes"]
    return [_back(c.reduce_scatter(_front(arrays[0], axis), a["reduction"], name=name), axis)]


def _all_to_all(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> list[Any]:
    (axis,) = a["axes"]
    rows = _front(arrays[0], axis)
    if a["is_even"]:
        return [_back(c.all_to_all(rows, name=name), axis)]
    counts = [len(each) for each in np.array_split(rows, c.size)]
    return [_back(c.all_to_all_uneven(rows, counts, name=name), axis)]


def _barrier(c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str) -> Sequence[Any]:
    c.barrier(name=name)
    return arrays


def _coalesced_all_gather(
    c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str
) -> list[Any]:
    """The results have their axes in front, as they are written."""
    return c.all_gather_coalesced([*map(_front, arrays, a["axes"])], a["outs"], name)


def _coalesced_reduce_scatter(
    c: Communicator, arrays: Sequence[Any], a: Mapping[str, Any], name: str
) -> list[Any]:
    found = c.reduce_scatter_coalesced([*map(_front, arrays, a["axes"])], a["reduction"], name=name)
    return [*map(_back, found, a["axes"])]


_CALLS: Mapping[str, Callable[[Communicator, Sequence[Any], Mapping[str, Any], str], Sequence[Any]]] = {
    "AllReduce": _all_reduce,
    "Reduce": _reduce,
    "Broadcast": _broadcast,
    "AllGather": _all_gather,
    "Gather": _gather,
    "Scatter": _scatter,
    "ReduceScatter": _reduce_scatter,
    "AllToAll": _all_to_all,
    "Barrier": _barrier,
    "CoalescedAllGather": _coalesced_all_gather,
    "CoalescedReduceScatter": _coalesced_reduce_scatter,
}
