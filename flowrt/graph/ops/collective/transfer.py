"""_Send and _Recv: the two ends of an edge between devices. _Contribute and _Recv: a rank's part of a
collective among devices of one task. Made by the partition pass only.
"""

from __future__ import annotations

from flowrt.graph.construction.graph import Operation
from flowrt.graph.op_def import BY_EXECUTOR, Effect, Effects, OpDef, define_op

# The incarnation is of the sender's task, as a signed number. A task that was started again is not taken for
# the one before.
_ENDS = "tensor_name: string, send_device: string, recv_device: string, send_device_incarnation: int = 0"

send_op: OpDef[Operation] = define_op(
    "_Send",
    "tensor: T in ANY ->",
    attrs=_ENDS,
    kernel=BY_EXECUTOR,
    effects=Effects(Effect.STATEFUL),
    doc="Puts its input into the step's rendezvous, under a key made of both devices and the tensor's name.",
)

contribute_op: OpDef[Operation] = define_op(
    "_Contribute",
    "tensor: T in NUMERIC ->",
    attrs="tensor_name: string, devices: list(string), rank: int, reduction: string, shape: shape",
    kernel=BY_EXECUTOR,
    effects=Effects(Effect.STATEFUL),
    doc="Brings its input, the value of ``rank``, to the all-reduce ``tensor_name`` of ``devices``, one for "
    "each rank; each receives the total. ``shape``: of the value.",
)

SENDS = frozenset((send_op, contribute_op))
"""Ops of which others may read the input until the step ends."""

recv_op = define_op(
    "_Recv",
    "-> tensor: tensor_type in ANY",
    attrs=f"{_ENDS}, tensor_type: type, shape: shape = None",
    shape=lambda s: [s.attrs["shape"]],
    kernel=BY_EXECUTOR,
    effects=Effects(Effect.SOURCE),
    doc="Takes a tensor out of the step's rendezvous, and waits until it is there.",
)
