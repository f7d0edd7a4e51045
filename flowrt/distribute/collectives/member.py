"""`GroupMember`: what operations of one rank of a group call; `flowrt.distribute.collectives.group` makes it.

_GroupStart, _GroupWait    the communicator's collectives, called by a thread of its own
_GroupSend, _GroupRecv     the links below the communicator, between its calls
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Condition
from types import TracebackType
from typing import Any, final

import numpy as np

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_thread import CommunicatorThread
from flowrt.distribute.collectives.membership import disagree
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.errors import FailedPreconditionError, OpError, copy_to_raise
from flowrt.graph.step import wait_until


class _Result:
    """Of one native collective, when it is there."""

    value: Any = None
    error: OpError | None = None
    is_there = False


@final
class GroupMember:
    """One rank's end of a group: see `flowrt.graph.groups.Member`. Closes ``communicator``, which closes
    ``mesh``, the links below it; None where it has none.
    """

    def __init__(self, communicator: Communicator, mesh: Mesh | None) -> None:
        self.communicator, self._mesh = communicator, mesh
        self._thread = CommunicatorThread(communicator)
        self._changed = Condition()
        self._results: dict[str, _Result] = {}

    # --- messages

    def send(self, peer: int, edge: str, array: Any) -> None:
        with self._own_links() as mesh:
            flat = np.array(array, order="C").reshape(-1)  # a copy: the step goes on, and writes there
            mesh.send(peer, edge.encode(), flat)
            self.communicator.traffic.count(flat.nbytes)

    def receive(self, peer: int, edge: str) -> Any:
        with self._own_links() as mesh:
            arrived = mesh.receive(peer, edge)
            if arrived.text != edge.encode():
                own = self.communicator.rank, edge.encode()
                raise disagree(mesh.membership, [own, (peer, arrived.text)])
            return np.empty(0, np.uint8) if arrived.payload is None else arrived.payload

    def _own_links(self) -> _Links:
        """The links, for this thread: nobody else is at them between two native collectives."""
        if self._mesh is None:
            raise FailedPreconditionError(
                f"{self.communicator}: has no links for expanded collectives. Use lowering='native'"
            )
        self._thread.wait_until_idle(self.communicator.membership.timeout_s)
        return _Links(self.communicator, self._mesh)

    # --- collectives

    def start(self, edge: str, kind: str, array: Any, attrs: Mapping[str, Any]) -> None:
        result = _Result()
        with self._changed:
            if edge in self._results:
                raise FailedPreconditionError(f"{edge}: expected one step at a time in a group; got two")
            self._results[edge] = result
        call = _CALLS[kind]

        def done(value: Any, error: OpError | None) -> None:
            with self._changed:
                result.value, result.error, result.is_there = value, error, True
                self._changed.notify_all()

        self._thread.submit(lambda communicator: call(communicator, array, attrs, edge), done)

    def wait(self, edge: str) -> Any:
        with self._changed:
            result = self._results[edge]
            try:
                wait_until(lambda: result.is_there, self._changed.wait)
            except OpError as error:  # the step's end
                self.communicator.abort(error)
                raise
            finally:
                del self._results[edge]
        if result.error is not None:
            raise copy_to_raise(result.error)
        return result.value

    def close(self) -> None:
        """End the rank's part. Idempotent."""
        self._thread.close()


@final
class _Links:
    """A context that has ``mesh``; an error in it ends the group."""

    def __init__(self, communicator: Communicator, mesh: Mesh) -> None:
        self._communicator, self._mesh = communicator, mesh

    def __enter__(self) -> Mesh:
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OpError):
            self._communicator.abort(error)


# --- native collectives: of any axis, by those of the communicator, which are of the first


def _front(array: Any, axis: int) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, axis, 0))


def _back(array: Any, axis: int) -> Any:
    return None if array is None else np.moveaxis(array, 0, axis)


def _all_reduce(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return c.all_reduce(array, a["reduction"], name=name)


def _reduce(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return c.reduce(array, a["root"], a["reduction"], name=name)


def _broadcast(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return c.broadcast(np.empty(a["shape"], a["dtype"]) if array is None else array, a["root"], name=name)


def _all_gather(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return _back(c.all_gather(_front(array, a["axis"]), name=name), a["axis"])


def _gather(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return _back(c.gather(_front(array, a["axis"]), a["root"], name=name), a["axis"])


def _scatter(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    axis = a["axis"]
    if array is None:
        dims = list(a["shape"])
        out = np.empty([dims.pop(axis), *dims], a["dtype"])
        return _back(c.scatter(None, a["root"], out, name=name), axis)
    return _back(c.scatter(_front(array, axis), a["root"], name=name), axis)


def _reduce_scatter(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    found = c.reduce_scatter(_front(array, a["axis"]), a["reduction"], name=name)
    return _back(found, a["axis"])


def _all_to_all(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    return _back(c.all_to_all(_front(array, a["axis"]), name=name), a["axis"])


def _barrier(c: Communicator, array: Any, a: Mapping[str, Any], name: str) -> Any:
    c.barrier(name=name)
    return array


_CALLS: Mapping[str, Callable[[Communicator, Any, Mapping[str, Any], str], Any]] = {
    "AllReduce": _all_reduce,
    "Reduce": _reduce,
    "Broadcast": _broadcast,
    "AllGather": _all_gather,
    "Gather": _gather,
    "Scatter": _scatter,
    "ReduceScatter": _reduce_scatter,
    "AllToAll": _all_to_all,
    "Barrier": _barrier,
}
