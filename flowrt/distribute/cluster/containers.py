"""The resources of one task: those shared by its sessions, and those private to each.

A variable belongs to a container, not to a session: two sessions that use the same name, on the same device,
have the same variable. This is how the workers of between-graph replication share their parameters. An
isolated session has its own containers. Random streams are always private to a session.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, final

from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.session.session_variables import new_resource
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect
from flowrt.graph.resources.variables import VariableResource


@final
class Containers:
    """Any thread may call anything. ``missing()``: the tasks that were there and are missed now, and why."""

    def __init__(self, missing: Callable[[], Mapping[str, OpError]] = dict) -> None:
        self._missing = missing
        self._lock = threading.RLock()
        self._shared: dict[tuple[str, Hashable], Any] = {}
        """Shared resources by container and (device, name)."""
        self._own: dict[str, dict[Hashable, Any]] = {}
        """Private resources of each session."""
        self._isolated: set[str] = set()

    def open(self, session: str, is_isolated: bool) -> None:
        with self._lock:
            self._own[session] = {}
            if is_isolated:
                self._isolated.add(session)

    def close(self, session: str, lost: OpError | None = None) -> None:
        """Release the session's private resources. ``lost``: the session was not closed, but its client is
        gone; this is reported to resources with a method ``lose``.
        """
        with self._lock:
            gone = self._own.pop(session, {})
            self._isolated.discard(session)
        if lost is not None:
            _call(gone.values(), "lose", lost)
        _call(gone.values(), "close")

    def lose_task(self, task: str, error: OpError) -> None:
        """Report that ``task`` is missing, to shared resources with a method ``lose_task``, including those
        created later.
        """
        with self._lock:
            shared = list(self._shared.values())
        _call(shared, "lose_task", task, error)

    def clear(self, containers: Collection[str]) -> None:
        """Drop the shared resources in ``containers`` (``""`` is the default one), or all if empty."""
        with self._lock:
            keys = [key for key in self._shared if not containers or key[0] in containers]
            gone = [self._shared.pop(key) for key in keys]
        _call(gone, "close")

    def of(self, session: str) -> Callable[[Device, Node], Any]:
        """``resource(device, node)`` of a session: the object of a stateful node, created on first use. It
        raises `ResourceExhaustedError`, and `InvalidArgumentError` for a variable that another session
        created with another shape or dtype.
        """
        return functools.partial(self._resource, session)

    def _resource(self, session: str, device: Device, node: Node) -> Any:
        with self._lock:
            others = self.of(session)
            if node.op.effect is not Effect.HANDLE or session in self._isolated:
                own = self._own.setdefault(session, {})
                return _found(own, (device.name, node.name), device, node, others)
            name = node.attrs.get("shared_name") or node.name
            key = (node.attrs.get("container", ""), (device.name, name))
            is_new = key not in self._shared
            resource = _found(self._shared, key, device, node, others)
        if is_new:
            for task, error in self._missing().items():
                _call([resource], "lose_task", task, error)
        _check(node, resource)
        return resource


def _found(
    resources: dict[Any, Any],
    key: Hashable,
    device: Device,
    node: Node,
    others: Callable[[Device, Node], Any],
) -> Any:
    if key not in resources:
        resources[key] = new_resource(device, node, others)
    return resources[key]


def _check(node: Node, resource: Any) -> None:
    if not isinstance(resource, VariableResource):
        return
    expected, got = (resource.dtype, resource.shape), (node.attrs["dtype"], node.attrs["shape"])
    if expected != got:
        raise located(
            node,
            InvalidArgumentError(
                f"expected the variable that another session created, {expected[0].name}{expected[1]}; got "
                f"{got[0].name}{got[1]}"
            ),
        )


def _call(resources: Collection[Any], method: str, *arguments: Any) -> None:
    """Call the method on resources that have it."""
    for resource in resources:
        if call := getattr(resource, method, None):
            call(*arguments)
