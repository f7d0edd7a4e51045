"""The steps of `SequenceExample` messages as `Example` messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array
from flowrt.graph.shapes import Shape, format_shape


def _steps(xp: Any, serialized: Any, keys: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    text = host_array(serialized).item()
    try:
        lists = protos.example_pb2.SequenceExample.FromString(text).feature_lists.feature_list
    except protos.DecodeError:
        raise InvalidArgumentError(
            f"expected a SequenceExample message; got {len(text)} bytes that are none"
        ) from None
    made = []
    for key, is_needed in zip(map(_text, keys), needed, strict=True):
        if is_needed and key not in lists:
            raise InvalidArgumentError(
                f"feature list {key!r}: expected in the message, as it has no allow_missing"
            )
        examples = []
        for feature in lists[key].feature if key in lists else ():
            example = protos.example_pb2.Example()
            example.features.feature[key].CopyFrom(feature)
            examples.append(example.SerializeToString())
        made.append(string_array(examples, (len(examples),)))
    return made


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _steps_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0]:
        raise InvalidArgumentError(f"serialized: expected a scalar; got shape {format_shape(s.shapes[0])}")
    return [(None,)] * len(s.attrs["keys"])


def _message() -> Any:
    message = protos.example_pb2.SequenceExample()
    for value in (1, 2):
        message.feature_lists.feature_list["a"].feature.add().int64_list.value.append(value)
    return string_array([message.SerializeToString()], ())


sequence_steps_op: OpDef[list[Tensor]] = define_op(
    "SequenceSteps",
    "serialized: string -> examples: N * string",
    attrs="N: int, keys: list(string), needed: list(bool)",
    shape=_steps_shape,
    kernel=_steps,
    samples=lambda rng: [sample(_message(), N=2, keys=("a", "b"), needed=(True, False))],
    doc="An `Example` for each step of a `SequenceExample`, a vector of them for each list of features.",
)
