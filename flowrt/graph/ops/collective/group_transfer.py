"""Operations of one rank when others of its group are in other graphs. Created only by lowering collectives.

    _GroupSend, _GroupRecv      one message of an expanded collective
    _TaggedSend, _TaggedRecv    a message that is awaited by its tag: no order of messages is common to ranks
    _GroupStart, _GroupWait     a native collective: begun, and its result; of several tensors in one memory,
                                which the start has as its output, and which `TakeApart` reads after the wait
    _GroupAgree                 all ranks have one plan: compared before it runs first

The graphs are run by different sessions, which do not share a step's rendezvous: tensors are exchanged
through the group (`flowrt.graph.resources.groups`), which is looked up when an operation first runs. Receives
and waits block only the program of their device. The lowering orders a rank's sends before its receives, and
its waits after other work.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import protos
from flowrt.dtypes import DType, string
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.messages.tensor_proto import decode_tensor, encode_tensor
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, Effects, OpDef, define_op
from flowrt.graph.ops.collective.together import length_of, written_in
from flowrt.graph.resources.groups import joined_member, member_of
from flowrt.graph.resources.step_context import current_step
from flowrt.graph.shapes import Shape, format_shape, is_static

_MEMBER = "group_key: string, rank: int, edge: string"
"""``edge`` names the message or the collective, equal for all participants."""

_MESSAGE = "dtype: type, shape: shape"

_RESULTS = "dtype: type, shapes: list(shape)"


def describes_itself(spec: TensorSpec) -> bool:
    """Whether a message is a TensorProto: of strings, and of what the receiver has no shape of."""
    return spec.dtype is string or not is_static(spec.shape)


def _send(xp: Any, tensor: Any, group_key: str, rank: int, peer: int, edge: str, is_described: bool) -> None:
    member_of(group_key, rank).send(peer, edge, _payload(xp, tensor, is_described))


def _receive(xp: Any, group_key: str, rank: int, peer: int, edge: str, dtype: DType, shape: Shape) -> Any:
    return _tensor(xp, member_of(group_key, rank).receive(peer, edge), peer, edge, dtype, shape)


def _send_tagged(
    xp: Any, tensor: Any, group_key: str, rank: int, peer: int, edge: str, is_described: bool
) -> None:
    array = tensor if xp is np and not is_described else _payload(xp, tensor, is_described)
    joined_member(group_key, rank).send_tagged(peer, edge, array)


def _receive_tagged(
    xp: Any, group_key: str, rank: int, peer: int, edge: str, dtype: DType, shape: Shape, out: Any = None
) -> Any:
    payload = joined_member(group_key, rank).receive_tagged(peer, edge)
    if out is None:
        return _tensor(xp, payload, peer, edge, dtype, shape)
    # What reads a buffer is bound once, and may be one piece of machine code.
    out[...] = _tensor_of_size(xp, payload, out.nbytes, peer, edge, dtype, out.shape)
    return out


def _payload(xp: Any, tensor: Any, is_described: bool) -> Any:
    """The array that is sent for ``tensor``."""
    array = _on_host(xp, tensor)
    if not is_described:
        return array
    message = protos.graph_pb2.TensorProto()
    encode_tensor(message, np.asarray(array))
    return np.frombuffer(message.SerializeToString(), np.uint8)


def _tensor(xp: Any, payload: Any, peer: int, edge: str, dtype: DType, shape: Shape) -> Any:
    """The tensor of which rank ``peer`` sent ``payload``."""
    if not is_static(shape) or dtype is string:
        return xp.asarray(decode_tensor(protos.graph_pb2.TensorProto.FromString(payload.tobytes())))
    return _tensor_of_size(xp, payload, dtype.np.itemsize * math.prod(shape), peer, edge, dtype, shape)


def _tensor_of_size(
    xp: Any, payload: Any, nbytes: int, peer: int, edge: str, dtype: DType, shape: tuple[int, ...]
) -> Any:
    """`_tensor` of a static shape, of ``nbytes``."""
    if len(payload) != nbytes:
        raise InvalidArgumentError(
            f"{edge}: expected {dtype.name}{format_shape(shape)} of rank {peer}; got {len(payload)} bytes"
        )
    if xp is np:
        return np.ndarray(shape, dtype.np, payload)  # one call of NumPy's instead of three
    return xp.asarray(payload.view(dtype.np).reshape(shape))


def _start(
    xp: Any, value: Any, group_key: str, rank: int, edge: str, kind: str, reduction: str, root: int,
    axes: Sequence[int], plan: str, is_whole: bool, is_even: bool, dtype: DType, shapes: Sequence[Shape],
    K: int, out: Any = None,
) -> Any:  # fmt: skip
    """Begins it; its results are written to ``out``, or if that is on a GPU, by `_wait`."""
    if K and out is None:
        out = (xp.empty((length_of(shapes, dtype),), dtype.np),)
    step = current_step() if is_whole else None
    attrs = {
        "reduction": reduction, "root": root, "axes": axes, "dtype": dtype.np, "shapes": shapes, "plan": plan,
        "step": None if step is None else step.number, "is_even": is_even,
        "outs": written_in(out[0], shapes, axes) if K and xp is np else None,
    }  # fmt: skip
    member_of(group_key, rank).start(edge, kind, [_on_host(xp, each) for each in value], attrs)
    return out


def _wait(
    xp: Any, kept: Any, group_key: str, rank: int, edge: str, axes: Sequence[int], shapes: Sequence[Shape],
    K: int,
) -> Any:  # fmt: skip
    results = member_of(group_key, rank).wait(edge)
    if not K:
        return [xp.asarray(result) for result in results]
    if xp is not np:
        for target, result in zip(written_in(kept[0], shapes, axes), results, strict=True):
            target[...] = xp.asarray(result)
    return []


def _agree(
    xp: Any, given: Any, group_key: str, ranks: Sequence[int], plan: str, fed: Sequence[str], T: Any
) -> None:
    describe = functools.partial(_described, xp, fed, given)
    waits = [joined_member(group_key, rank).agree(plan, describe) for rank in ranks]  # wait for the others
    for wait in waits:
        wait()


def _described(xp: Any, names: Sequence[str], arrays: Sequence[Any]) -> str:
    """A line for each of ``arrays``, which were fed to ``names``: equal lines for equal arrays."""
    found = [(name, _on_host(xp, array)) for name, array in zip(names, arrays, strict=True)]
    return "".join(
        f"the feed of {name!r}, {array.dtype}{list(array.shape)} with checksum {_checksum(array):x}\n"
        for name, array in found
    )


def _checksum(array: Any) -> int:
    is_text = array.dtype.kind == "O"
    return zlib.crc32(
        repr(array.tolist()).encode() if is_text else np.ascontiguousarray(array).data.cast("B")
    )


def _on_host(xp: Any, array: Any) -> Any:
    """``array`` as NumPy has it: groups move host memory."""
    return array if xp is np else xp.asnumpy(array)


def _send_op(name: str, kernel: Callable[..., Any], doc: str) -> OpDef[Operation]:
    return define_op(
        name,
        "tensor: T in ANY ->",
        attrs=f"{_MEMBER}, peer: int, is_described: bool = False",
        kernel=kernel,
        effects=Effects(Effect.STATEFUL),
        doc=doc,
    )


def _receive_op(name: str, kernel: Callable[..., Any], doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        "-> dtype in ANY",
        attrs=f"{_MEMBER}, {_MESSAGE}, peer: int",
        shape=lambda s: [s.attrs["shape"]],
        kernel=kernel,
        effects=Effects(Effect.STATEFUL, waits=True),
        doc=doc,
    )


group_send_op = _send_op("_GroupSend", _send, "Gives its input to a rank of the group in another graph.")

group_recv_op = _receive_op(
    "_GroupRecv", _receive, "Receives the tensor that a rank of the group in another graph sends."
)

tagged_send_op = _send_op(
    "_TaggedSend",
    _send_tagged,
    "Gives its input to a rank of the group in another graph, under the tag ``edge``, without waiting.",
)

tagged_recv_op = _receive_op(
    "_TaggedRecv",
    _receive_tagged,
    "Receives what a rank of the group in another graph sends under the tag ``edge``.",
)

group_start_op: OpDef[list[Tensor]] = define_op(
    "_GroupStart",
    "value: M * dtype in NUMERIC -> K * dtype",
    # the plan is of all that the step has in the group, with the first of them
    attrs=f"{_MEMBER}, {_RESULTS}, kind: string, reduction: string, root: int, axes: list(int), "
    "plan: string, is_whole: bool, is_even: bool, K: int",
    shape=lambda s: [(length_of(s.attrs["shapes"], s.attrs["dtype"]),)] * s.attrs["K"],
    kernel=_start,
    vjp=NONDIFFERENTIABLE,
    effects=Effects(Effect.STATEFUL),
    doc="Begins a rank's part of a native collective; M is 0 for a rank without a value. ``shapes`` are "
    "those of its results, or of what others get. If the group ``is_whole``, all of its ranks are in this "
    "step. If the collective ``is_even``, all values have one shape, which the number of ranks divides. K is "
    "1 if the results are in one memory, which has them once `_GroupWait` has ended; else 0.",
)

group_wait_op: OpDef[list[Tensor]] = define_op(
    "_GroupWait",
    "kept: M * dtype in NUMERIC -> N * dtype",
    attrs=f"{_MEMBER}, {_RESULTS}, axes: list(int), K: int, N: int",
    shape=lambda s: s.attrs["shapes"][: s.attrs["N"]],
    kernel=_wait,
    vjp=NONDIFFERENTIABLE,
    effects=Effects(Effect.STATEFUL, waits=True),
    doc="Waits for a started collective and keeps its input until then; N is 0 for a rank without a result, "
    "and if K is 1: the results are in the first of ``kept``, the memory that the start has made.",
)

group_agree_op: OpDef[Operation] = define_op(
    "_GroupAgree",
    "given: *T in ANY ->",
    attrs="group_key: string, rank: int, ranks: list(int), plan: string, fed: list(string)",
    kernel=_agree,
    effects=Effects(Effect.STATEFUL, waits=True),
    doc="Compares the ``plan`` of ``ranks``, all that are here, and what is ``fed``, with those of others, "
    "the first time.",
)

GROUP_OPS = frozenset((group_send_op, group_recv_op, group_start_op, group_wait_op, group_agree_op))
