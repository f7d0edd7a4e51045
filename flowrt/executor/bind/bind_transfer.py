"""Binding of feeds, receives and sends.

On the host the value itself is passed. It is copied to an asynchronous device, into a buffer if its shape is
known, else into new memory; from there it is copied out, or shared with a receiver of the same type. A list
is copied element by element on each transfer: keep readers and writers of a list on one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.device.memory_pool import Owner
from flowrt.device.spec import parse_device
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.buffers.bound_tensors import BoundTensors, owner_of
from flowrt.executor.ends.feeds import Feed
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Frame
from flowrt.executor.program.edge_keys import is_remote, tensor_key
from flowrt.executor.program.instruction import Call
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node
from flowrt.graph.resources.tensor_list import TensorList

Send: TypeAlias = Callable[[str, Any], None]

MAX_KEPT_BYTES = 65536
"""A tensor sent to another task may be read after the step: up to this size it is in a buffer of the plan;
larger ones are in separate memory, or a variable's, which a step does not change before its sends are done.
"""


def bind_feed(node: Node, builder: InstructionBuilder, tensors: BoundTensors, is_buffer: bool) -> Feed:
    """Binds a feed to the location where the program reads it."""
    device, registers = builder.device, tensors.registers
    if is_buffer:
        array = tensors.new_buffer(node, 0)
        if not device.is_asynchronous:
            return Feed(functools.partial(array.__setitem__, ...), array)
        return Feed(functools.partial(device.feed, device.executor.memory_of(array)))
    slot = tensors.new_register(node, 0)
    if not device.is_asynchronous:
        return Feed(functools.partial(registers.__setitem__, slot))
    builder.is_fixed = False
    put, owner = device.put, owner_of(node)
    return Feed(lambda value: registers.__setitem__(slot, put(value, owner)))


def bind_recv(
    node: Node, builder: InstructionBuilder, tensors: BoundTensors, is_buffer: bool, frame: Frame | None
) -> None:
    """Wait for the tensor, and copy it to an asynchronous device. ``frame``: the innermost loop."""
    key = tensor_key(node, frame)
    if not builder.device.is_asynchronous:
        builder.cut(key, tensors.new_register(node, 0), receive=node)
    else:
        builder.is_fixed = False
        stream, arrived = builder.stream, tensors.new_slot()
        builder.cut(key, arrived, receive=node)
        builder.use_stream(node, stream)
        _copy_in(node, builder, tensors, is_buffer, arrived)
    builder.line(node, (node.attrs["send_device"],), tensors.text(node))


def _copy_in(
    node: Node, builder: InstructionBuilder, tensors: BoundTensors, is_buffer: bool, arrived: int
) -> None:
    device, registers = builder.device, tensors.registers
    if is_buffer:
        memory = device.executor.memory_of(tensors.new_buffer(node, 0))
        builder.emit_call(node, lambda: device.feed(memory, registers[arrived]))
    else:
        slot, owner = tensors.new_register(node, 0), owner_of(node)
        put: Callable[..., Any] = device.put
        if node.outputs[0].dtype is dtypes.variant:
            put = functools.partial(list_to_device, device)
        builder.emit_call(node, lambda: registers.__setitem__(slot, put(registers[arrived], owner)))
    if parse_device(node.attrs["send_device"]).device_type != device.device_type:
        tensors.place(node, 0, tensors[node.name, 0]._replace(host_slot=arrived))


def bind_send(
    node: Node,
    builder: InstructionBuilder,
    tensors: BoundTensors,
    frame: Frame | None,
    is_inside: bool,
    send: Send,
    fail: Callable[[OpError], object],
) -> None:
    """Send the tensor by ``send(key, value)``. ``frame``: the innermost loop; ``is_inside``: the node is in a
    function. ``fail(error)`` ends the step when a copy from the device fails after its instruction.
    """
    operand, device, key = tensors[node.inputs[0]], builder.device, tensor_key(node, frame)
    builder.is_fixed = False
    leaves_task = is_remote(node)
    is_kept = (
        operand.slot is None
        and (  # the next iteration, what follows a branch, or the next step writes there
            is_inside or (leaves_task and operand.value.nbytes <= MAX_KEPT_BYTES)
        )
    )
    if not device.is_asynchronous or operand.is_host:
        call = _send_value(operand, tensors, _sender(key, send), is_kept)
    elif tensors.subgraph.spec(node.inputs[0]).dtype is dtypes.variant:
        call = _send_list(operand, tensors, _sender(key, send))
    else:
        read, stream = _reader(operand, tensors, is_kept), device.streams[builder.stream]
        if not leaves_task and parse_device(node.attrs["recv_device"]).device_type == device.device_type:
            share, send_now = device.share, _sender(key, send)
            call = Call(lambda: send_now(share(stream, read())))
        else:  # the copy to the host is sent when it is there, which is after the instruction
            copy_out, sender = device.send, _later_sender(key, send)
            call = Call(lambda: copy_out(stream, read(), sender(), fail))
    builder.emit_line(node, call, (operand,), "")


def _send_value(operand: Operand, tensors: BoundTensors, send: Callable[[Any], None], is_kept: bool) -> Call:
    """Send a value; ``is_kept`` means that the sent value is already a copy."""
    registers, slot, value = tensors.registers, operand.slot, operand.value
    if slot is not None:
        return Call(lambda: send(registers[slot]))
    if is_kept:
        copy = tensors.device.xp.array
        return Call(lambda: send(copy(value)))
    return Call(send, (value,))


def _send_list(operand: Operand, tensors: BoundTensors, send: Callable[[Any], None]) -> Call:
    registers, slot, device = tensors.registers, operand.slot, tensors.device
    if not device.executor.computes:
        raise InvalidArgumentError(
            f"{device.name} computes nothing: expected a list that stays on this device"
        )
    assert slot is not None  # a list is in no buffer
    return Call(lambda: send(list_to_host(device, registers[slot])))


def _reader(operand: Operand, tensors: BoundTensors, is_kept: bool) -> Callable[[], Any]:
    """Function that returns the array to send, which leaves the device some time after its instruction."""
    registers, slot, value = tensors.registers, operand.slot, operand.value
    if slot is not None:
        return lambda: registers[slot]
    if is_kept:
        copy = tensors.device.xp.array
        return lambda: copy(value)
    return lambda: value


def _sender(key: str | Callable[[], str], send: Send) -> Callable[[Any], None]:
    """Function that sends a value."""
    if isinstance(key, str):
        return functools.partial(send, key)
    return lambda value: send(key(), value)


def _later_sender(key: str | Callable[[], str], send: Send) -> Callable[[], Callable[[Any], None]]:
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
