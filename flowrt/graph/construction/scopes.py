"""Scopes that determine attributes of new operations: a thread's name, container, device, control and
colocation scopes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flowrt.device.spec import DeviceSpec, merge_device_names
from flowrt.errors import DTypeError
from flowrt.graph.construction.operation import Operation

DeviceFunction: TypeAlias = Callable[[Operation], Any]


AttributeFunction: TypeAlias = Callable[[Operation], Mapping[str, Any]]


class Controller:
    """One ``control_dependencies`` scope, and the operations made in it (which need not wait twice)."""

    __slots__ = ("made", "waits_for")

    def __init__(self, waits_for: list[Operation]) -> None:
        self.waits_for, self.made = waits_for, set[Operation]()


class Scopes:
    """A thread's scopes on one graph."""

    __slots__ = (
        "attribute_function", "colocation", "container", "controllers", "device", "device_functions",
        "differentiated", "gradient_overrides", "name",
    )  # fmt: skip

    def __init__(self) -> None:
        self.name = ""
        self.container = ""
        self.device: str = ""
        self.device_functions: tuple[
            DeviceFunction | str, ...
        ] = ()  # used instead of `device` when non-empty
        self.controllers: tuple[Controller, ...] = ()
        self.colocation: tuple[str, ...] = ()
        self.gradient_overrides: dict[str, str] = {}
        self.attribute_function: AttributeFunction | None = None
        self.differentiated = ""

    def copy(self) -> Scopes:
        copied = Scopes()
        copied.become(self)
        return copied

    def become(self, other: Scopes) -> None:
        """Copy all of ``other``, which another thread may have opened."""
        for name in Scopes.__slots__:
            setattr(self, name, getattr(other, name))

    def inherit(self, outer: Scopes) -> None:
        """Begin a function inside a graph with these scopes, but the control inputs stay with its owner."""
        self.name, self.container = outer.name, outer.container
        self.device, self.device_functions = outer.device, outer.device_functions
        self.gradient_overrides = outer.gradient_overrides


class ThreadScopes(threading.local):
    """Each thread's scopes on one graph, as one object: creating an operation reads six of them."""

    def __init__(self) -> None:
        self.scopes = Scopes()


def apply_device_functions(op: Operation, scopes: tuple[DeviceFunction | str, ...]) -> str:
    """The device that ``scopes``, outermost first, give ``op``. A function finds the device requested by the
    inner scopes in ``op.device``. Raises `DTypeError` for a function that returns no device,
    `InvalidArgumentError` for a name that does not parse.
    """
    device = ""
    for scope in reversed(scopes):
        op.node = op.node.replace(device=device)
        chosen = scope(op) if callable(scope) else scope
        if not isinstance(chosen, str | DeviceSpec | None):
            raise op.error(
                DTypeError, f"device function: expected a device's name, a DeviceSpec or None; got {chosen!r}"
            )
        device = merge_device_names(str(chosen or ""), device)
    return device
