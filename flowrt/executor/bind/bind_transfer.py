"""Binding of feeds, receives and sends.

On the host the value itself is passed. It is copied to an asynchronous device, into a buffer if its shape is
known, else into new memory; from there it is copied out, or shared with a receiver of the same type. A list
is copied element by element on each transfer: keep readers and writers of a list on one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.device.memory_pool import Owner
from flowrt.device.spec import parse_device
from flowrt.device.stream_executor import Stream
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.buffers.buffer_assignment import SMALL_BYTES
from flowrt.executor.ends.feeds import Feed
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Frame
from flowrt.executor.program.edge_keys import is_remote, tensor_key
from flowrt.executor.program.instruction import Action, Call
from flowrt.executor.program.joint_reduction import JointReductions
from flowrt.graph.node import Node
from flowrt.graph.resources.tensor_list import TensorList


class Ends(NamedTuple):
    """The step's rendezvous: ``send(key, value)``, ``take(key, default)``, and ``fail(error)`` to end a step
    when a copy from a device fails after its instruction. ``collectives``: those among its devices.
    """

    send: Callable[[str, Any], None]
    take: Callable[[str, Any], Any]
    fail: Callable[[OpError], object]
    collectives: JointReductions


def new_ends(
    send: Callable[[str, Any], None], take: Callable[[str, Any], Any], fail: Callable[[OpError], object]
) -> Ends:
    """The ends of a rendezvous, with collectives that send to it."""
    return Ends(send, take, fail, JointReductions(send))


Read: TypeAlias = Callable[[], Any]
Key: TypeAlias = str | Callable[[], str]


@final
class TransferBinder:
    """Binds the transfers of a program on ``device`` with ``registers``, or of a function in the innermost
    loop ``frame``; ``is_inside``: in a function.
    """

    def __init__(
        self, device: Device, registers: list[Any], ends: Ends, frame: Frame | None, is_inside: bool
    ) -> None:
        self._device, self._registers, self._ends = device, registers, ends
        self._frame, self._is_inside = frame, is_inside

    def feed(self, node: Node, place: Operand) -> Feed:
        """The feed that puts a value into ``place``."""
        device, array = self._device, place.value
        if place.slot is None:
            if device.is_asynchronous:
                return Feed(functools.partial(device.feed, device.executor.memory_of(array)))
            return Feed(functools.partial(array.__setitem__, ...), array)
        store = functools.partial(self._registers.__setitem__, place.slot)
        if not device.is_asynchronous:
            return Feed(store)
        put, owner = device.put, owner_of(node)
        return Feed(lambda value: store(put(value, owner)))

    def key(self, node: Node) -> Key:
        """The key of a send or receive; in a loop, a function that computes it."""
        return tensor_key(node, self._frame)

    def copy_in(self, node: Node, place: Operand, arrived: int) -> Action:
        """The copy of a received value from register ``arrived`` to ``place``, of an asynchronous device."""
        device, registers = self._device, self._registers
        if place.slot is None:
            memory = device.executor.memory_of(place.value)
            return Call(lambda: device.feed(memory, registers[arrived]))
        slot, owner = place.slot, owner_of(node)
        is_list = node.outputs[0].dtype is dtypes.variant
        put: Callable[..., Any] = functools.partial(list_to_device, device) if is_list else device.put
        return Call(lambda: registers.__setitem__(slot, put(registers[arrived], owner)))

    def send(
        self, node: Node, operand: Operand, is_list: bool, is_borrowed: bool, stream: Stream | None
    ) -> Action:
        """The action that sends ``operand``, a list or a tensor, computed on ``stream``. ``is_borrowed``: see
        `BoundTensors.is_borrowed`.
        """
        device, key, (send, _, fail, _) = self._device, self.key(node), self._ends
        if not device.is_asynchronous or operand.is_host:
            return self._send_value(operand, _sender(key, send), self._is_copied(node, operand, is_borrowed))
        if is_list:
            return self._send_list(operand, _sender(key, send))
        assert stream is not None
        if is_remote(node):  # waited for: when its programs end, the step is over here, and its memory reused
            fetch, send_now, read = device.fetch, _sender(key, send), self._reader(operand, is_copied=False)
            return Call(lambda: send_now(fetch(read())))
        read = self._reader(operand, self._is_copied(node, operand, is_borrowed))
        if not is_other_type(node, device):
            share, send_now = device.share, _sender(key, send)
            return Call(lambda: send_now(share(stream, read())))
        copy_out, sender = device.send, _later_sender(key, send)
        return Call(lambda: copy_out(stream, read(), sender(), fail))  # sent when the copy is complete

    def contribute(self, node: Node, operand: Operand) -> Action:
        """The action that brings ``operand`` to a collective among devices of this task."""
        dims, dtype = node.attrs["shape"], node.attrs["T"].np
        joint = self._ends.collectives.of(
            node, functools.partial(self._device.empty, dims, dtype, owner_of(node))
        )
        return self._send_value(operand, functools.partial(joint.contribute, node.attrs["rank"]), False)

    def _is_copied(self, node: Node, operand: Operand, is_borrowed: bool) -> bool:
        """Whether the next iteration, what follows a branch, or the next step writes its memory."""
        if operand.slot is not None:
            return is_borrowed and self._is_inside
        # another task may read it after the step; a large one is a variable's, which a step does not change
        # before its sends are done
        return self._is_inside or (is_remote(node) and operand.value.nbytes <= SMALL_BYTES)

    def _send_value(self, operand: Operand, send: Callable[[Any], None], is_copied: bool) -> Action:
        if operand.slot is None and not is_copied:
            return Call(send, (operand.value,))
        read = self._reader(operand, is_copied)
        return Call(lambda: send(read()))

    def _send_list(self, operand: Operand, send: Callable[[Any], None]) -> Action:
        device = self._device
        if not device.executor.computes:
            raise InvalidArgumentError(
                f"{device.name} computes nothing: expected a list that stays on this device"
            )
        read = self._reader(operand, False)
        return Call(lambda: send(list_to_host(device, read())))

    def _reader(self, operand: Operand, is_copied: bool) -> Read:
        """Function that returns the array to send, which leaves a device some time after its instruction."""
        registers, slot, value = self._registers, operand.slot, operand.value
        copy = self._device.xp.array
        if slot is not None:
            return (lambda: copy(registers[slot])) if is_copied else lambda: registers[slot]
        return functools.partial(copy, value) if is_copied else lambda: value


def is_other_type(node: Node, device: Device) -> bool:
    """Whether the other end of a send or receive on ``device`` is a device of another type."""
    ends = (parse_device(node.attrs[end]).device_type for end in ("send_device", "recv_device"))
    return any(end != device.device_type for end in ends)


def _sender(key: Key, send: Callable[[str, Any], None]) -> Callable[[Any], None]:
    """Function that sends a value."""
    if isinstance(key, str):
        return functools.partial(send, key)
    return lambda value: send(key(), value)


def _later_sender(key: Key, send: Callable[[str, Any], None]) -> Callable[[], Callable[[Any], None]]:
    """Function that creates, when its instruction runs, the function that sends a value later: by then a
    loop's frame may be in another iteration.
    """
    if isinstance(key, str):
        sender = functools.partial(send, key)
        return lambda: sender
    return lambda: functools.partial(send, key())


def list_to_host(device: Device, value: TensorList) -> TensorList:
    """``value``, a list of ``device``, with its arrays in host memory. Waits for the current stream."""
    return _mapped(value, device.to_host)


def list_to_device(device: Device, value: TensorList, owner: Owner) -> TensorList:
    """``value``, a host list, with its arrays copied to ``device``; its current stream may read them."""
    return _mapped(value, lambda array: device.put(array, owner))


def _mapped(value: TensorList, move: Callable[[Any], Any]) -> TensorList:
    def moved(element: Any) -> Any:
        if element is None:
            return None
        return _mapped(element, move) if isinstance(element, TensorList) else move(element)

    return TensorList(value.spec, [moved(element) for element in value.elements()])
