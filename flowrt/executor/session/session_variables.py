"""The variables of a session by themselves: given memory, read and set without operations.

Checkpoints and ``variable.load`` use this way: it needs no plan. `StoredShard` is a part of a variable where
it is kept: checkpoints are written from its memory, and read into it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.device.device import Device
from flowrt.device.memory_pool import LiveTensor, Owner
from flowrt.errors import FailedPreconditionError, OpError
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.ends.feeds import bring, converter
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.memory_places import place_of
from flowrt.graph.node import Node
from flowrt.graph.ops.state.variable_ops import memory_handle
from flowrt.graph.resources.unit_memory import UnitMemory
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.shapes import is_static

Place: TypeAlias = tuple[Device, VariableResource]
"""Location of a variable."""


class StoredShard(NamedTuple):
    """A part of a variable, and where it is kept. Several devices may keep the same part."""

    slices: tuple[slice, ...]
    """One per dimension of the whole."""
    device: int
    """The number of the device in the mesh."""
    task: int
    """The number of the process, if each runs its own session; otherwise 0."""
    where: Place | None
    """None in another process."""
    is_copy: bool = False
    """Whether it is set with the variable, perhaps in a narrower dtype, but is not its value."""

    @contextmanager
    def reading(self) -> Iterator[np.ndarray[Any, Any]]:
        """The value on the host, not to be changed: the memory itself, if it is there, which no step updates
        meanwhile. Raises `FailedPreconditionError` before the first assignment.
        """
        assert self.where is not None
        device, resource = self.where
        with device.step(), resource.lock:
            yield device.to_host(resource.read())

    def fill(self, write: Callable[[np.ndarray[Any, Any]], None]) -> None:
        """Set the value by ``write(array)``, which fills an array of the part's shape: the memory itself, if
        it is on the host. If it raises, the memory has no defined value.
        """
        assert self.where is not None
        device, resource = self.where
        if resource.is_pinned and not device.is_asynchronous and device.executor.computes:
            with device.step(), resource.lock:
                write(resource.array)
                resource.is_initialized = True
            return
        value = np.empty([part.stop - part.start for part in self.slices], resource.dtype.np)
        write(value)
        assign(self.where, value)


def new_resource(device: Device, node: Node, others: Callable[[Device, Node], Any]) -> Any:
    """The object of a stateful node; a variable has its memory on ``device``, and an object with a method
    ``settle`` is passed the device. ``others(device, node)`` are the objects of other nodes. Raises
    `ResourceExhaustedError`.
    """
    assert node.op.state is not None
    resource = node.op.state(node)
    if settle := getattr(resource, "settle", None):
        settle(device)
    if isinstance(resource, VariableResource | UnitMemory):
        owner = owner_of(node)
        if isinstance(resource, UnitMemory):
            owner = owner._replace(tensors=functools.partial(_tensors_of, resource.handles))
        try:
            resource.pin(_source_of_memory(device, node, others, owner))
        except OpError as error:
            raise located(node, error) from error.__cause__
    if isinstance(resource, VariableResource) and not device.executor.computes:
        resource.is_initialized = resource.is_pinned  # it cannot assign: the value is 0 from the start
    return resource


def _source_of_memory(
    device: Device, node: Node, others: Callable[[Device, Node], Any], owner: Owner
) -> Callable[[tuple[int, ...], Any], Any]:
    """``empty(shape, dtype)`` of what ``node`` keeps: in a memory with others if it has a place there, else
    in memory of this ``owner``.
    """
    place = place_of(node.attrs)
    if place is not None and is_static(node.attrs["shape"]):
        memory: UnitMemory = others(device, memory_handle(node, place))
        array = memory.take(place.begin, node)
        if array is not None:
            return lambda shape, dtype: array
    return functools.partial(device.empty, owner=owner)


def _tensors_of(handles: Mapping[range, Node]) -> list[LiveTensor]:
    """The variables in a memory: of their handles alone, as what has the memory would keep itself."""
    found = []
    for elements, handle in list(handles.items()):
        owner = owner_of(handle)
        found.append(LiveTensor(owner.name, len(elements) * handle.attrs["dtype"].size, owner.source))
    return found


def read_variables(variables: Iterable[Any], places: Iterable[Place]) -> list[Any]:
    """Copies of the variables' values. Raises `FailedPreconditionError`, naming the first without one."""
    found = []
    for variable, (device, resource) in zip(variables, places, strict=True):
        with device.step(), resource.lock:
            try:
                found.append(np.array(device.to_host(resource.read())))
            except FailedPreconditionError as error:
                raise variable.op.error(FailedPreconditionError, error.message) from None
    return found


def assign_variables(values: Mapping[Any, Any], places: Sequence[Place], devices: Sequence[Device]) -> None:
    """Set variables to values that may be on one of ``devices``. Raises `InvalidArgumentError` for a value of
    another shape; no variable has changed then.
    """
    given = [converter(v._as_graph_element())(value) for v, value in values.items()]
    arrays = bring(given, [device for device, _ in places], devices)
    for place, array in zip(places, arrays, strict=True):
        assign(place, array)


def assign(place: Place, value: Any) -> None:
    """Set a variable to a value of its shape and dtype, on the host or as `bring` gives it."""
    device, resource = place
    kernel = device.executor.kernel(resource.name, resource.assign, 0.0)
    with device.step(), device.activate():
        kernel(device.xp, device.to_device(value))
