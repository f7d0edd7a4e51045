"""Binding what comes into a program and what leaves it while it runs: feeds, receives, sends.

On the host that is the value itself. To a device that works by itself it is copied, into a buffer if its
shape is known, else into new memory; from there it is copied out, or handed over where the receiver is of the
same type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from flowrt.device.spec import parse_device
from flowrt.errors import OpError
from flowrt.executor.arguments import Operand
from flowrt.executor.bound_tensors import BoundTensors, owner_of
from flowrt.executor.control import Frame
from flowrt.executor.keys import tensor_key
from flowrt.executor.strand import Strand
from flowrt.graph.node import Node

Send: TypeAlias = Callable[[str, Any], None]

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


def bind_feed(node: Node, strand: Strand, tensors: BoundTensors, is_buffer: bool) -> Callable[[Any], None]:
    """What puts a fed value where the program reads it."""
    device, registers = strand.device, tensors.registers
    if is_buffer:
        array = tensors.new_buffer(node, 0)
        if not device.is_remote:
            return functools.partial(array.__setitem__, ...)
        return functools.partial(device.feed, device.executor.memory_of(array))
    slot = tensors.new_register(node, 0)
    if not device.is_remote:
        return functools.partial(registers.__setitem__, slot)
    strand.is_fixed = False
    put, owner = device.put, owner_of(node)
    return lambda value: registers.__setitem__(slot, put(value, owner))


def bind_recv(
    node: Node, strand: Strand, tensors: BoundTensors, is_buffer: bool, frame: Frame | None
) -> None:
    """Wait for the tensor, and copy it to a device that works by itself. ``frame``: the innermost loop."""
    key = tensor_key(node, frame)
    if not strand.device.is_remote:
        strand.cut(key, tensors.new_register(node, 0))
    else:
        strand.is_fixed = False
        stream, arrived = strand.stream, tensors.new_slot()
        strand.cut(key, arrived)
        strand.use_stream(node, stream)
        _copy_in(node, strand, tensors, is_buffer, arrived)
    strand.line(node, (node.attrs["send_device"],), tensors.text(node))


def _copy_in(node: Node, strand: Strand, tensors: BoundTensors, is_buffer: bool, arrived: int) -> None:
    device, registers = strand.device, tensors.registers
    if is_buffer:
        memory = device.executor.memory_of(tensors.new_buffer(node, 0))
        strand.emit(node, lambda: device.feed(memory, registers[arrived]))
    else:
        slot, owner = tensors.new_register(node, 0), owner_of(node)
        strand.emit(node, lambda: registers.__setitem__(slot, device.put(registers[arrived], owner)))


def bind_send(
    node: Node,
    strand: Strand,
    tensors: BoundTensors,
    frame: Frame | None,
    send: Send,
    fail: Callable[[OpError], object],
) -> None:
    """Send the tensor by ``send(key, value)``. ``frame``: the innermost loop. ``fail(error)`` ends the step
    when a copy from the device fails after its instruction.
    """
    operand, device, key = tensors[node.inputs[0]], strand.device, tensor_key(node, frame)
    strand.is_fixed = False
    if not device.is_remote or operand.is_host:
        is_kept = frame is not None and operand.slot is None  # the next iteration writes there
        call = _send_value(operand, tensors, _sender(key, send), is_kept)
    elif parse_device(node.attrs["recv_device"]).device_type == device.device_type:
        call = _send_shared(operand, tensors, _sender(key, send), strand.stream)
    else:
        call = _send_copy(operand, tensors, _later_sender(key, send), strand.stream, fail)
    strand.emit_line(node, *call, (operand,), "")


def _send_value(operand: Operand, tensors: BoundTensors, send: Callable[[Any], None], is_kept: bool) -> Call:
    """``is_kept``: what is sent is a copy."""
    registers, slot, value = tensors.registers, operand.slot, operand.value
    if slot is not None:
        return lambda: send(registers[slot]), ()
    if is_kept:
        copy = tensors.device.xp.array
        return lambda: send(copy(value)), ()
    return send, (value,)


def _send_shared(
    operand: Operand, tensors: BoundTensors, send: Callable[[Any], None], stream_number: int
) -> Call:
    """To a device of the same type the value goes without coming to the host."""
    registers, slot, value = tensors.registers, operand.slot, operand.value
    share, stream = tensors.device.share, tensors.device.streams[stream_number]
    if slot is not None:
        return lambda: send(share(stream, registers[slot])), ()
    return lambda: send(share(stream, value)), ()


def _send_copy(
    operand: Operand,
    tensors: BoundTensors,
    sender: Callable[[], Callable[[Any], None]],
    stream_number: int,
    fail: Callable[[OpError], object],
) -> Call:
    """The copy to the host is sent when it is there, which is after the instruction."""
    registers, slot, value = tensors.registers, operand.slot, operand.value
    send, stream = tensors.device.send, tensors.device.streams[stream_number]
    if slot is not None:
        return lambda: send(stream, registers[slot], sender(), fail), ()
    return lambda: send(stream, value, sender(), fail), ()


def _sender(key: str | Callable[[], str], send: Send) -> Callable[[Any], None]:
    """What sends a value."""
    if isinstance(key, str):
        return functools.partial(send, key)
    return lambda value: send(key(), value)


def _later_sender(key: str | Callable[[], str], send: Send) -> Callable[[], Callable[[Any], None]]:
    """What makes, when its instruction runs, the function that sends a value later: by then a loop's frame
    may be in another iteration.
    """
    if isinstance(key, str):
        sender = functools.partial(send, key)
        return lambda: sender
    return lambda: functools.partial(send, key())
