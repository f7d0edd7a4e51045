"""Moves between registers and arrays: all at once, whatever their order, cycles and views among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.executor.bind.bind_control import _Mover
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Move, Register
from flowrt.executor.program.instruction_builder import InstructionBuilder
from tests.each import nightly

COUNT = 5
"""Registers, and as many arrays."""


@pytest.fixture
def device() -> Any:
    (device,) = local_devices(DeviceRequest({"GPU": 0}))
    yield device
    device.close()


def execute(moves: list[Any]) -> None:
    for move in moves:
        function, arguments = move.bound()
        function(*arguments)


def test_a_move_copies_into_arrays_and_refers_from_registers() -> None:
    registers: list[Any] = [np.arange(3.0), None, None]
    array = np.zeros(3, np.float32)
    execute([Move(array, Register(registers, 0))])
    assert array.tolist() == [0.0, 1.0, 2.0]
    execute([Move(Register(registers, 1), Register(registers, 0), None)])
    assert registers[1] is registers[0]
    execute([Move(Register(registers, 2), Register(registers, 0), np.array)])
    assert not np.may_share_memory(registers[2], registers[0])
    other = np.zeros(3)
    execute([Move(other, array), Move(Register(registers, 0), other, np.array)])
    other[:] = 7.0
    assert registers[0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", nightly(range(200), 60))
def test_moves_are_made_at_once(device: Any, seed: int) -> None:
    """Against reading everything before anything is written. Some registers hold views of the arrays, of
    which the mover knows only that they are borrowed.
    """
    rng = np.random.default_rng(seed)
    node = tf.constant(0.0).op.node
    arrays = [np.array([i, i + 0.5]) for i in range(COUNT)]
    views = {slot for slot in range(COUNT) if rng.random() < 0.3}
    registers: list[Any] = [np.full(2, 10.0 + slot) for slot in range(COUNT)]
    for slot in views:
        registers[slot] = arrays[rng.integers(COUNT)][::-1]
    operands = [Operand(None, slot, f"r{slot}") for slot in range(COUNT)]
    operands += [Operand(array, None, "") for array in arrays]
    targets = [operands[i] for i in rng.permutation(2 * COUNT)[: rng.integers(1, 2 * COUNT)]]
    sources = [operands[i] for i in rng.integers(2 * COUNT, size=len(targets))]
    are_borrowed = [source.slot in views for source in sources]

    def value(operand: Operand) -> list[float]:
        held = operand.value if operand.slot is None else registers[operand.slot]
        return np.array(held).tolist()

    expected = [value(source) for source in sources]
    builder = InstructionBuilder(device, 0)
    _Mover(node, device, registers).move(builder, sources, targets, are_borrowed)
    builder.cut(None, 0)
    execute([instruction.action for instruction in builder.segments[0].instructions])
    for target, right, source in zip(targets, expected, sources, strict=True):
        if source.slot is None or source.slot != target.slot or source.slot not in views:
            assert value(target) == right
