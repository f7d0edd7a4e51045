"""Protocol buffer messages that still parse, with a few fields changed: what damaged bytes rarely are."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (-(1 << 62), -1, 0, 1, 2, 3, 7, 19, 99, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 62) + 1)
FLOATS = (0.0, -1.0, 1e30, float("inf"), float("nan"))
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (31, True),
    FieldDescriptor.CPPTYPE_ENUM: (31, True),
    FieldDescriptor.CPPTYPE_INT64: (63, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}


def change(message: Message, random: Random) -> None:
    """Change one to three fields of it, or of messages within it."""
    for _ in range(random.randint(1, 3)):
        places = list(_places(message))
        if places:
            _change_field(*random.choice(places), _texts(places), random)


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """The fields that are set, each with the message that has it."""
    for field, value in message.ListFields():
        yield message, field
        for inner in _inner(value):
            yield from _places(inner)


def _inner(value: Any) -> list[Message]:
    if isinstance(value, Message):
        return [value]
    if isinstance(value, str | bytes | int | float):
        return []
    values = value.values() if hasattr(value, "values") else value
    return [each for each in values if isinstance(each, Message)]


def _texts(places: list[tuple[Message, FieldDescriptor]]) -> list[Any]:
    """Strings of the message: names that mean something there."""
    found: list[Any] = ["", "odd", "^odd", "a:1"]
    for message, field in places:
        value = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_STRING:
            found += [value] if isinstance(value, str) else value
    return found


def _change_field(message: Message, field: FieldDescriptor, texts: list[Any], random: Random) -> None:
    value = getattr(message, field.name)
    if hasattr(value, "values"):  # a map
        key, other = random.choice(list(value)), random.choice(list(value))
        if random.random() < 0.5:
            del value[key]
        elif isinstance(value[key], Message):
            value[key].CopyFrom(value[other])
        return
    if not isinstance(value, Message | str | bytes | int | float):  # repeated
        at = random.randrange(len(value))
        if random.random() < 0.3:
            del value[at]
        elif random.random() < 0.3 or isinstance(value[at], Message):
            value.extend([value[at]])
        else:
            value[at] = _other(field, value[at], texts, random)
        return
    if isinstance(value, Message) or random.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _other(field, value, texts, random))


def _other(field: FieldDescriptor, value: Any, texts: list[Any], random: Random) -> Any:
    """Another value of the field's type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return random.choice(texts)
    if isinstance(value, bytes):
        return random.choice([value[: random.randint(0, len(value))], random.randbytes(len(value)), b""])
    if isinstance(value, float):
        return random.choice(FLOATS)
    bits, is_signed = _BITS[field.cpp_type]
    fits = [each for each in INTEGERS if (-(1 << bits) if is_signed else 0) <= each < 1 << bits]
    return random.choice(fits)
