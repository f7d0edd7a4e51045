"""The lexical level of the text form: tokens of a line, and attribute values as literals.

    true  7  1.5e-3  -inf  "text"  b"\\x00"  f32  [2, ?]  <unknown>  f32[2](1.0, nan)  (1, 2)  null

are a bool, an int, floats, a string, bytes, a dtype, two shapes, a tensor, a list and None. A tensor has its
elements in C order, with the last one repeated as needed; ``f32[256]base64"..."`` has their bytes (little
endian). Elements of a list are of one kind, except in attributes that no op defines.

Rule: what is printed reads back as exactly the same value, bit for bit.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import InvalidArgumentError, OpError, UnimplementedError
from flowrt.graph.messages.tensor_proto import Array, check_full_shape, fill, first, from_content, is_splat
from flowrt.graph.shapes import Shape, format_shape

MAX_PRINTED_BYTES = 1024
"""Numeric tensors above this are printed as base64."""
MAX_LISTS = 40
"""Maximum nesting of lists."""

_SHORT = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}
_DTYPES: dict[DType, str] = {
    dtype: re.sub("^(bfloat|float|complex|uint|int)", lambda match: _SHORT[match[0]], dtype.name)
    for dtype in dtypes.BY_NUMBER.values()
}
_DTYPE_OF = {text: dtype for dtype, text in _DTYPES.items()}

_FLOAT = r"(?:\d{1,40}(?:\.\d*)?(?:[eE][+-]?\d+)?|inf|nan)"
_TOKEN = re.compile(
    r"\s*(?:"
    r'(?P<node>%(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.\\/>-]+)(?P<index>:\d+)?)'
    r'|(?P<control>\^(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.\\/>-]+))'
    r"|(?P<device>@[^\s#]+)"
    r"|(?P<comment>\#.*)"
    rf"|(?P<number>[+-]?{_FLOAT}(?:[+-]{_FLOAT}j)?(?![A-Za-z0-9_.]))"
    r'|(?P<string>(?:b|base64)?"(?:[^"\\]|\\.)*")'
    r"|(?P<unknown><unknown>)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>[=(){}\[\],:?])"
    r"|(?P<end>$)"
    r")"
)


class Token(NamedTuple):
    """``kind`` is the group of `_TOKEN` that matched, ``text`` what it matched, ``column`` counts from 1."""

    kind: str
    text: str
    column: int


class Line:
    """The tokens of one line, taken from left to right."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self.indent = len(text) - len(text.lstrip())
        self._tokens: list[Token] = []
        self._next = 0
        position = 0
        while not self._tokens or self._tokens[-1].kind != "end":
            match = _TOKEN.match(text, position)
            if match is None:
                rest = text[position:].lstrip()
                column = len(text) - len(rest) + 1
                self.fail_at(column, "expected a token", rest[:20])
            kind = "node" if match.lastgroup == "index" else match.lastgroup or "end"
            self._tokens.append(Token(kind, match[kind], match.start(kind) + 1))
            position = match.end()

    @property
    def next(self) -> Token:
        return self._tokens[self._next]

    def take(self, kind: str, what: str) -> Token:
        """The next token, which must be of ``kind``. Raises `InvalidArgumentError`: ``what`` was expected."""
        if self.next.kind != kind:
            self.fail(f"expected {what}")
        self._next += 1
        return self._tokens[self._next - 1]

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``."""
        found = self.next.text == text and self.next.kind != "string"
        self._next += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}")

    def items(self, end: str) -> Iterator[None]:
        """One step for each item of a list that ``end`` closes; the commas between them are taken."""
        is_first = True
        while not self.accept(end):
            if not is_first:
                self.expect(",")
            is_first = False
            yield

    def fail(self, expected: str) -> NoReturn:
        """Raise `InvalidArgumentError` at the next token."""
        self.fail_at(self.next.column, expected, self.next.text)

    def fail_at(self, column: int, expected: str, got: str | None = None) -> NoReturn:
        text = "" if got is None else f"; got {got!r}" if got else "; got the end of the line"
        raise InvalidArgumentError(f"line {self.number}, column {column}: {expected}{text}")


# --- dtypes, shapes, names


def format_spec(dtype: DType, shape: Shape) -> str:
    """``f32[2, ?]``."""
    return _DTYPES[dtype] + format_shape(shape)


def parse_dtype(line: Line) -> DType:
    token = line.next
    if token.text not in _DTYPE_OF:
        line.fail(f"expected a dtype ({', '.join(_DTYPE_OF)})")
    return _DTYPE_OF[line.take("word", "a dtype").text]


def parse_shape(line: Line) -> Shape:
    if line.next.kind == "unknown":
        line.take("unknown", "a shape")
        return None
    line.expect("[")
    return tuple([None if line.accept("?") else _parse_dim(line) for _ in line.items("]")])


def _parse_dim(line: Line) -> int:
    if not line.next.text.isdigit():
        line.fail("expected a dimension")
    return int(line.take("number", "a dimension").text)


def format_name(name: str) -> str:
    """A node's name after its ``%`` or ``^``: unchanged, or in quotes if it has unusual characters."""
    return name if re.fullmatch(r"[A-Za-z0-9_.\\/>-]+", name) else json.dumps(name)


def parse_name(line: Line, token: Token) -> tuple[str, int]:
    """The name and the output index in a ``node`` or ``control`` token of ``line``."""
    text, index = token.text[1:], "0"
    if token.kind == "node" and (match := re.fullmatch(r"(.*):(\d+)", text, re.DOTALL)):
        text, index = match[1], match[2]
    try:
        return (json.loads(text) if text.startswith('"') else text), int(index)
    except ValueError as error:
        line.fail_at(token.column, f"expected a name ({error})", token.text)


def format_key(key: str) -> str:
    """An attribute's name, in quotes when it has unusual characters."""
    return key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else json.dumps(key)


def parse_key(line: Line) -> str:
    if line.next.kind == "string":
        return str(_parse_text(line))
    return line.take("word", "an attribute").text


# --- values


def format_value(kind: str, value: Any) -> str:
    """The literal of an attribute's value. Raises `UnimplementedError` for a kind without literals."""
    if value is None and kind != "shape":
        return "null"
    if kind.startswith("list("):
        return "(" + ", ".join(format_value(kind[5:-1], item) for item in value) + ")"
    if kind not in _FORMATS:
        raise UnimplementedError(f"expected an attribute kind with a text form; got {kind}")
    return _FORMATS[kind](value)


def parse_value(line: Line, kind: str | None) -> Any:
    """The value of the next literal, which must be of ``kind`` (None: of any)."""
    start = line.next.column
    found, value = _parse_literal(line)
    if found == "int" and kind == "float":
        return float(value)
    if kind not in (None, found) and found != "null" and not (found == "list" and kind.startswith("list(")):
        line.fail_at(start, f"expected a value of kind {kind}; got one of kind {found}")
    return value


def _parse_literal(line: Line, depth: int = 0) -> tuple[str, Any]:
    """Kind and value; the kind of an empty list is "list". The literal is nested in ``depth`` lists."""
    token = line.next
    if token.kind == "number":
        return _parse_number(line)
    if token.kind == "string":
        return "string", _parse_text(line)
    if token.text == "[" or token.kind == "unknown":
        return "shape", parse_shape(line)
    if token.text == "(":
        return _parse_list(line, depth + 1)
    if token.text in _WORDS:
        return _WORDS[line.take("word", "a value").text]
    if token.text not in _DTYPE_OF:
        line.fail("expected a value")
    dtype = parse_dtype(line)
    if line.next.text == "[":
        return "tensor", _parse_tensor(line, dtype)
    return "type", dtype


def _parse_list(line: Line, depth: int) -> tuple[str, Any]:
    if depth > MAX_LISTS:
        line.fail(f"expected at most {MAX_LISTS} lists inside one another")
    line.expect("(")
    found = [_parse_literal(line, depth) for _ in line.items(")")]
    kinds = dict.fromkeys([kind for kind, _ in found])
    return f"list({' or '.join(kinds)})" if found else "list", tuple([value for _, value in found])


def _parse_number(line: Line) -> tuple[str, Any]:
    text = line.next.text
    if text.endswith("j"):
        line.fail("expected a real number")
    line.take("number", "a number")
    return ("int", int(text)) if text.lstrip("+-").isdigit() else ("float", float(text))


def _parse_text(line: Line) -> str | bytes:
    token = line.take("string", "a string")
    try:
        value: str = json.loads(token.text[token.text.index('"') :])
        return value if token.text.startswith('"') else value.encode("latin-1")
    except ValueError as error:
        line.fail_at(token.column, f"expected a string ({error})", token.text)


def _format_text(value: str | bytes) -> str:
    return json.dumps(value) if isinstance(value, str) else "b" + json.dumps(value.decode("latin-1"))


# --- tensors


def _format_tensor(array: Array) -> str:
    dtype = as_dtype(array.dtype)
    flat = first(array) if is_splat(array) else array.ravel()
    spec = format_spec(dtype, array.shape)
    if dtype is dtypes.string:
        return f"{spec}({', '.join(map(_format_bytes, flat))})"
    if flat.nbytes <= MAX_PRINTED_BYTES:
        elements = [_format_element(value) for value in flat]
        if _array([_element(dtype, text) for text in elements], dtype).tobytes() == flat.tobytes():
            return f"{spec}({', '.join(elements)})"
    return f'{spec}base64"{base64.b64encode(flat.tobytes()).decode()}"'


def _parse_tensor(line: Line, dtype: DType) -> Array:
    start = line.next.column
    shape = parse_shape(line)
    try:
        dims = check_full_shape(dtype, shape)
        if line.next.text.startswith("base64"):
            content = base64.b64decode(line.take("string", "base64").text[7:-1], validate=True)
            flat = from_content(content, dtype, (len(content) // dtype.size,))
        else:
            line.expect("(")
            flat = _array([_parse_element(line, dtype) for _ in line.items(")")], dtype)
        return fill(flat, dtype, dims)
    except (OpError, ValueError, OverflowError) as error:
        if isinstance(error, OpError) and error.message.startswith("line "):
            raise
        line.fail_at(start, f"expected a tensor of {format_spec(dtype, shape)} ({error})")


def _parse_element(line: Line, dtype: DType) -> Any:
    if dtype is dtypes.string:
        text = _parse_text(line)
        return text.encode() if isinstance(text, str) else text
    if line.next.kind not in ("number", "word"):
        line.fail(f"expected an element of {dtype.name}")
    try:
        value = _element(dtype, line.next.text)
    except (KeyError, ValueError):
        line.fail(f"expected an element of {dtype.name}")
    line.take(line.next.kind, "an element")
    return value


def _element(dtype: DType, text: str) -> Any:
    if dtype.is_bool:
        return {"true": True, "false": False}[text]
    return int(text) if dtype.is_integer else complex(text) if dtype.is_complex else float(text)


def _array(elements: Sequence[Any], dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        if dtype is not dtypes.string:
            return np.array(elements, dtype.np)
        flat = np.empty(len(elements), object)
        flat[:] = elements
        return flat


def _format_element(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.integer):
        return str(value)
    if isinstance(value, np.complexfloating):
        sign = "-" if math.copysign(1, value.imag) < 0 else "+"
        return f"{_shortest(value.real)}{sign}{_shortest(abs(value.imag))}j"
    return _shortest(value)


def _shortest(value: Any) -> str:
    """The shortest decimal that is ``value`` in its own precision, with a point or an exponent."""
    return repr(float(str(value)))


def _format_bytes(value: str | bytes) -> str:
    """An element of a string tensor: as text if possible."""
    try:
        return _format_text(value if isinstance(value, str) else value.decode())
    except UnicodeDecodeError:
        return _format_text(value)


_WORDS: dict[str, tuple[str, Any]] = {
    "true": ("bool", True),
    "false": ("bool", False),
    "null": ("null", None),
}

_FORMATS: dict[str, Callable[[Any], str]] = {
    "bool": lambda value: "true" if value else "false",
    "int": lambda value: str(int(value)),
    "float": lambda value: repr(float(value)),
    "string": _format_text,
    "type": lambda dtype: _DTYPES[as_dtype(dtype)],
    "shape": format_shape,
    "tensor": _format_tensor,
}
