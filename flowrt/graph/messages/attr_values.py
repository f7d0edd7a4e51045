"""Attributes as messages: Python values <-> AttrValue, by the kind in the op's definition.

An attribute that is None is omitted from a message, except a shape, for which None means "unknown rank". A
function is stored by its name (`FunctionName`), and in full in the library of the GraphDef.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import DType, as_dtype
from flowrt.errors import InvalidArgumentError, OpError, UnimplementedError
from flowrt.graph.messages.tensor_proto import (
    decode_shape,
    decode_tensor,
    decode_type,
    encode_shape,
    encode_tensor,
)
from flowrt.graph.op_def import OpDef

MAX_LIST_LENGTH = 65_536
"""Maximum number of outputs that an attr can declare, and of elements of a host input."""


class FunctionName(str):
    """The name of a function in a GraphDef's library, which represents the function in messages."""

    __slots__ = ()


def attr_kind(op: OpDef, key: str) -> str | None:
    """The kind of attribute ``key`` of ``op`` ("int", "list(type)", …), or None if it has none."""
    if key in op.attrs:
        return op.attrs[key].kind
    for argument in (*op.inputs, *op.outputs):
        if key == argument.number_attr:
            return "int"
        if key == argument.type_attr:
            return "list(type)" if argument.is_type_list else "type"
    return "type" if key in op.types else None


def attr_names(op: OpDef) -> list[str]:
    """All attributes of ``op``: type variables, list lengths and its own."""
    arguments = (*op.inputs, *op.outputs)
    derived = [name for a in arguments for name in (a.type_attr, a.number_attr) if name is not None]
    return list(dict.fromkeys([*derived, *op.types, *op.attrs]))


_KINDS: tuple[tuple[Any, str], ...] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    (FunctionName, "func"),
    ((str, bytes), "string"),
    (DType, "type"),
    (np.ndarray, "tensor"),
)


def kind_of_value(key: str, value: Any) -> str:
    """The kind of a value, for attributes that no op defines (``_class``). Raises `UnimplementedError`."""
    if isinstance(value, (tuple, list)):
        return f"list({kind_of_value(key, value[0])})" if value else "list(string)"
    for python_type, kind in _KINDS:
        if isinstance(value, python_type):
            return kind
    raise UnimplementedError(f"attribute {key!r}: expected a value that a message can hold; got {value!r}")


def kind_of_message(message: Any) -> str:
    """The kind of value in the AttrValue ``message``; "list(string)" for an empty list, which has none."""
    field = message.WhichOneof("value")
    if field != "list":
        return _field_kind(field)
    filled = [descriptor.name for descriptor, _ in message.list.ListFields()]
    return f"list({_field_kind(filled[0]) if filled else 'string'})"


def encode_attr(message: Any, key: str, kind: str, value: Any) -> None:
    """Write attribute ``key`` into the AttrValue ``message``.

    Raises `UnimplementedError` for a kind that messages cannot hold, `InvalidArgumentError` for a value of
    another kind or out of range.
    """
    is_list = kind.startswith("list(")
    codec = _CODECS.get(kind[5:-1] if is_list else kind)
    if codec is None:
        raise UnimplementedError(f"attribute {key!r}: expected a kind that a message can hold; got {kind}")
    try:
        if is_list:
            message.list.SetInParent()
            for item in value:
                codec.append(getattr(message.list, codec.field), item)
        else:
            codec.put(message, codec.field, value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"attribute {key!r}: expected kind {kind}; got {value!r}") from error


def decode_attr(message: Any, key: str, kind: str | None) -> Any:
    """The value of attribute ``key`` in the AttrValue ``message``, which must be of ``kind`` (None: of any).

    Raises `InvalidArgumentError`.
    """
    field = message.WhichOneof("value")
    try:
        if field == "list":
            return _decode_list(message.list, kind)
        codec = _BY_FIELD.get(field)
        if codec is None or kind not in (None, codec.kind):
            expected = kind or ", ".join(_CODECS)
            raise InvalidArgumentError(f"expected a value of kind {expected}; got {_field_kind(field)}")
        return codec.decode(getattr(message, field))
    except OpError as error:
        raise type(error)(f"attribute {key[:200]!r}: {error.message}") from None


def _decode_list(message: Any, kind: str | None) -> tuple[Any, ...]:
    filled = [descriptor.name for descriptor, _ in message.ListFields()]
    if kind is not None and not kind.startswith("list("):
        raise InvalidArgumentError(f"expected a value of kind {kind}; got a list")
    if not filled:
        return ()
    codec = _BY_FIELD.get(filled[0])
    if len(filled) > 1 or codec is None or kind not in (None, f"list({codec.kind})"):
        got = " and ".join(_field_kind(name) for name in filled)
        raise InvalidArgumentError(f"expected a value of kind {kind or 'list'}; got a list of {got}")
    return tuple(codec.decode(item) for item in getattr(message, filled[0]))


def _field_kind(field: str | None) -> str:
    return "none" if field is None else _BY_FIELD[field].kind if field in _BY_FIELD else field


class _Codec(NamedTuple):
    kind: str
    field: str  # in AttrValue, and in ListValue
    put: Callable[[Any, str, Any], None]
    append: Callable[[Any, Any], None]
    decode: Callable[[Any], Any]


def _scalar(kind: str, field: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> _Codec:
    return _Codec(
        kind,
        field,
        lambda message, name, value: setattr(message, name, encode(value)),
        lambda items, value: items.append(encode(value)),
        decode,
    )


def _nested(kind: str, encode: Callable[[Any, Any], None], decode: Callable[[Any], Any]) -> _Codec:
    def put(message: Any, name: str, value: Any) -> None:
        getattr(message, name).SetInParent()
        encode(getattr(message, name), value)

    return _Codec(kind, kind, put, lambda items, value: encode(items.add(), value), decode)


def _decode_text(value: bytes) -> str | bytes:
    """Text if it decodes as text: AttrValue does not distinguish strings from bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _decode_float(value: float) -> float:
    """The shortest decimal that is this float32: a user's 1e-5 is decoded as 1e-5."""
    return float(str(np.float32(value)))


def _encode_function(message: Any, name: str) -> None:
    if not isinstance(name, FunctionName):
        raise TypeError("not the name of a function")
    message.name = name


def _decode_function(message: Any) -> FunctionName:
    if message.attr:
        raise UnimplementedError(
            f"expected a function without attributes; got {message.name[:200]!r} with "
            f"{', '.join(sorted(message.attr))[:200]}"
        )
    return FunctionName(message.name)


_CODECS: dict[str, _Codec] = {
    codec.kind: codec
    for codec in (
        _scalar("bool", "b", bool, bool),
        _scalar("int", "i", int, int),
        _scalar("float", "f", float, _decode_float),
        _scalar("string", "s", lambda text: text.encode() if isinstance(text, str) else text, _decode_text),
        _scalar("type", "type", lambda dtype: as_dtype(dtype).number, decode_type),
        _nested("shape", encode_shape, decode_shape),
        _nested("tensor", encode_tensor, decode_tensor),
        _nested("func", _encode_function, _decode_function),
    )
}
_BY_FIELD = {codec.field: codec for codec in _CODECS.values()}


def check_attrs(op: OpDef, attrs: Mapping[str, Any]) -> None:
    """Check the assumptions of shape rules: lengths are in range, a constant has its declared dtype.

    Raises `InvalidArgumentError`.
    """
    for argument in (*op.inputs, *op.outputs):
        key = argument.number_attr
        if key is not None and key in attrs and not 0 <= attrs[key] <= MAX_LIST_LENGTH:
            expected = f"expected a length from 0 to {MAX_LIST_LENGTH}"
            raise InvalidArgumentError(f"attribute {key!r}: {expected}; got {attrs[key]}")
    if op.name == "Const" and attrs["value"].dtype != attrs["dtype"].np:
        expected, got = f"{attrs['dtype'].name}, the value of 'dtype'", attrs["value"].dtype
        raise InvalidArgumentError(f"attribute 'value': expected {expected}; got {got}")
