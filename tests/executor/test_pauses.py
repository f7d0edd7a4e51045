"""Pauses, in which a step looks whether it must end: before the work that is behind them."""

from __future__ import annotations

import pytest

import flowrt as tf
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.instruction_builder import MAX_BLOCK_SECONDS, NEGLIGIBLE_S, InstructionBuilder

WORK, SEND, RECEIVE = "work", "send", "receive"
SECONDS = {WORK: MAX_BLOCK_SECONDS, SEND: NEGLIGIBLE_S / 2, RECEIVE: 0.0}


@pytest.mark.parametrize(
    ("kinds", "blocks"),
    [
        ([WORK, SEND, WORK, SEND], [[WORK, SEND], [WORK, SEND]]),
        ([WORK, SEND, RECEIVE, WORK, SEND], [[WORK, SEND, RECEIVE, WORK, SEND]]),
        ([RECEIVE, WORK, WORK], [[RECEIVE, WORK], [WORK]]),
    ],
    ids=["what is computed is sent first", "a receive looks itself", "work behind work"],
)
def test_a_pause_that_is_due_comes_before_the_next_work(kinds: list[str], blocks: list[list[str]]) -> None:
    (device,) = local_devices(DeviceRequest({"GPU": 0}))
    with tf.Graph().as_default():
        nodes = {kind: tf.constant(0, name=kind).op.node for kind in SECONDS}
    builder = InstructionBuilder(device, 0)
    for kind in kinds:
        builder.begin_work(SECONDS[kind])
        builder.emit_call(nodes[kind], print)
        builder.work(SECONDS[kind], pause=False)
        if kind == RECEIVE:
            builder.note_check()
    builder.cut(None, 0)
    assert [[node.name for node, _ in segment.instructions] for segment in builder.segments] == blocks
    assert [segment.key for segment in builder.segments] == [PAUSE] * (len(blocks) - 1) + [None]
