"""The text form of a `Subgraph`: one line per operation, to be read in reviews and parsed in tests.

    feeds: %x
    %w = VarHandleOp() {dtype=f32, shape=[3, 4]} : resource[]  @/job:ps/task:0/device:CPU:0  # train.py:7
    %r = ReadVariableOp(%w) : f32[3, 4]
    %y = MatMul(%x, %r) {transpose_b=true} ^init : f32[?, 4]
    fetches: %y
    targets: %init

``%split:1`` is output 1 of ``%split``, ``[%a, %b]`` an input that is a list, ``^init`` a control input. After
" : " come dtype and shape of each output. Attributes that have their default, or follow from the inputs' and
outputs' dtypes, are omitted. Literals: see `flowrt.graph.text.text_literals`.

A function follows the operation that owns it, indented, under the attribute's name (in a list,
``branches[0]:``), in the same form: its feeds are the parameters, its fetches the results.

    %y = If(%p, [%x]) : f32[]
      then_branch:
        feeds: %a
        %a = _Feed() : f32[]
        %b = Neg(%a) : f32[]
        fetches: %b
      else_branch:
        feeds: %c
        %c = _Feed() : f32[]
        fetches: %c
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, final

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, nearest
from flowrt.graph.construction.build import output_dtypes
from flowrt.graph.evaluate import located
from flowrt.graph.messages.attr_values import attr_kind, attr_names, check_attrs, kind_of_value
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Argument, OpDef, by_argument, op_def
from flowrt.graph.source import Source
from flowrt.graph.text.text_literals import (
    Line,
    Token,
    format_key,
    format_name,
    format_spec,
    format_value,
    parse_dtype,
    parse_key,
    parse_name,
    parse_shape,
    parse_value,
)

_ENDS = ("feeds", "fetches", "targets")
MAX_INDENT = 160
"""Maximum column of indentation: 40 nested functions."""
MAX_HINTED = 100
"""Maximum length of a name considered as a hint."""

_NONE: Mapping[str, Node] = MappingProxyType({})


# --- printing


def print_subgraph(subgraph: Subgraph, known: Mapping[str, Node] = _NONE) -> str:
    """``subgraph`` as text. Its nodes may also read those in ``known``. Raises `UnimplementedError`, naming
    the node, for an attribute without a text form.
    """
    return "".join(line + "\n" for line in _format_lines(subgraph, known))


def _format_lines(subgraph: Subgraph, known: Mapping[str, Node] = _NONE) -> Iterator[str]:
    if subgraph.feeds:
        yield _format_end("feeds", [(name, 0) for name in subgraph.feeds])
    nodes = ChainMap(dict(subgraph.nodes), dict(known)) if known else subgraph.nodes
    for node in subgraph:
        try:
            yield _format_node(node, nodes)
        except OpError as error:
            raise located(node, error) from None
        for label, function in labelled_functions(node):
            yield f"  {label}:"
            yield from ("    " + line for line in _format_lines(function))
    if subgraph.fetches:
        yield _format_end("fetches", subgraph.fetches)
    if subgraph.targets:
        yield _format_end("targets", [(name, 0) for name in subgraph.targets])


def labelled_functions(node: Node) -> Iterator[tuple[str, Subgraph]]:
    """The functions that ``node`` owns, with the labels that they have in the text: "body", "branches[0]"."""
    for key, value in node.attrs.items():
        if isinstance(value, Subgraph):
            yield format_key(key), value
        elif _is_functions(value):
            yield from ((f"{format_key(key)}[{i}]", function) for i, function in enumerate(value))


def _is_functions(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Subgraph)


def _format_end(word: str, refs: Sequence[Ref]) -> str:
    return f"{word}: {', '.join(map(_format_ref, refs))}"


def _format_ref(ref: Ref) -> str:
    name, index = ref
    return f"%{format_name(name)}:{index}" if index else f"%{format_name(name)}"


def _format_node(node: Node, nodes: Mapping[str, Node]) -> str:
    groups = list(by_argument(node.op.inputs, node.inputs, node.attrs))
    arguments = ", ".join(
        f"[{', '.join(map(_format_ref, group))}]" if argument.is_list else _format_ref(group[0])
        for argument, group in groups
    )
    text = f"%{format_name(node.name)} = {node.op.name}({arguments})"
    dtypes = [[nodes[name].outputs[index].dtype for name, index in group] for _, group in groups]
    text += _format_attrs(node, dtypes)
    text += "".join(f" ^{format_name(name)}" for name in node.controls)
    if node.outputs:
        text += " : " + ", ".join(format_spec(*spec) for spec in node.outputs)
    if node.device:
        text += f"  @{node.device}"
    if node.source is not None:
        text += f"  # {node.source}"
    return text


def _format_attrs(node: Node, inputs: Sequence[Sequence[DType]]) -> str:
    implied = {**_defaults(node.op), **_derived_attrs(node.op, inputs, [spec.dtype for spec in node.outputs])}
    known = [key for key in attr_names(node.op) if key in node.attrs]
    shown = []
    for key in [*known, *sorted(node.attrs.keys() - known)]:
        value, without = node.attrs[key], implied.get(key, _MISSING)
        if isinstance(value, Subgraph) or _is_functions(value):
            continue
        kind = attr_kind(node.op, key)
        if kind == "tensor" or type(value) is not type(without) or value != without:
            literal = _format_any(key, value) if kind is None else format_value(kind, value)
            shown.append(f"{format_key(key)}={literal}")
    return f" {{{', '.join(shown)}}}" if shown else ""


def _format_any(key: str, value: Any) -> str:
    """The literal of an attribute that no op defines: its elements may be of different kinds."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_format_any(key, item) for item in value)})"
    return format_value("" if value is None else kind_of_value(key, value), value)


_MISSING = object()


def _defaults(op: OpDef) -> dict[str, Any]:
    return {key: attr.default for key, attr in op.attrs.items() if not attr.required}


def _derived_attrs(op: OpDef, inputs: Sequence[Sequence[DType]], outputs: Sequence[DType]) -> dict[str, Any]:
    """The type variables and lengths implied by the dtypes of the inputs (one list per argument) and outputs.

    Outputs imply them only if at most one output is a list: otherwise it is ambiguous where one list ends.
    """
    groups = list(zip(op.inputs, inputs, strict=True))
    extra = len(outputs) - len(op.outputs)
    if sum(argument.is_list for argument in op.outputs) <= 1:
        position = 0
        for argument in op.outputs:
            count = 1 + extra if argument.is_list else 1
            groups.append((argument, outputs[position : position + count]))
            position += count
    found: dict[str, Any] = {}
    for argument, dtypes in groups:
        if argument.number_attr is not None:
            found.setdefault(argument.number_attr, len(dtypes))
        if argument.type_attr is not None and (dtypes or argument.is_type_list):
            found.setdefault(argument.type_attr, tuple(dtypes) if argument.is_type_list else dtypes[0])
    return found


# --- parsing


def parse_subgraph(text: str, known: Mapping[str, Node] = _NONE) -> Subgraph:
    """The subgraph that `print_subgraph` printed as ``text``, with the same ``known``.

    Every operation must follow its inputs, except those that are ``known``. Raises `InvalidArgumentError`
    ("line 2, column 7: expected …; got …") or, for an op that does not exist, `NotFoundError`.
    """
    return _parse_block(_Lines(text), -1, known)


@final
class _Lines:
    """The non-empty lines of a text, read on demand."""

    def __init__(self, text: str) -> None:
        self._rest = enumerate(text.split("\n"), 1)
        self.next: Line | None = None
        self.take()

    def take(self) -> Line | None:
        """The next line."""
        taken = self.next
        self.next = None
        for number, raw in self._rest:
            if raw.strip():
                self.next = Line(raw, number)
                break
        return taken

    def is_inside(self, indent: int) -> bool:
        """Whether the next line is indented deeper than ``indent``."""
        return self.next is not None and self.next.indent > indent


def _parse_block(lines: _Lines, indent: int, known: Mapping[str, Node] = _NONE) -> Subgraph:
    """The lines indented deeper than ``indent``."""
    nodes: dict[str, Node] = {}
    seen: Mapping[str, Node] = ChainMap(nodes, dict(known)) if known else nodes
    ends: dict[str, list[tuple[Line, Token]]] = {}
    while lines.is_inside(indent) and (line := lines.take()) is not None:
        if line.next.kind == "node":
            node = _parse_node(line, lines, nodes, seen)
            nodes[node.name] = node
            continue
        if line.next.kind == "word":
            _parse_end(line, ends)
        _finish(line)
    feeds, targets = (
        tuple(_resolve(*at, nodes)[0] for at in ends.get(word, ())) for word in ("feeds", "targets")
    )
    fetches = tuple(_resolve_output(*at, nodes) for at in ends.get("fetches", ()))
    return Subgraph(nodes, feeds, fetches, targets)


def _finish(line: Line) -> str:
    """Check that the rest of ``line`` is at most a comment, and return it."""
    comment = line.take("comment", "a comment").text if line.next.kind == "comment" else ""
    line.take("end", "the end of the line")
    return comment


def _parse_end(line: Line, ends: dict[str, list[tuple[Line, Token]]]) -> None:
    if line.next.text not in _ENDS or line.next.text in ends:
        line.fail(f"expected an operation, or {', '.join(_ENDS)} once each")
    word = line.take("word", "a word").text
    line.expect(":")
    found = ends[word] = [(line, line.take("node", "a node"))]
    while line.accept(","):
        found.append((line, line.take("node", "a node")))


def _parse_node(line: Line, lines: _Lines, above: Collection[str], nodes: Mapping[str, Node]) -> Node:
    """The operation in ``line`` with its functions, which follow in ``lines``. Its name must differ from
    those ``above``, and it may read all ``nodes``.
    """
    token = line.take("node", "an operation")
    name, index = parse_name(line, token)
    if name in above or index:
        line.fail_at(token.column, "expected the name of a new operation", token.text)
    line.expect("=")
    op = _parse_op(line)
    start = line.next.column
    inputs = _parse_inputs(line, op, nodes)
    given = _parse_attrs(line, op)
    controls = []
    while line.next.kind == "control":
        controls.append(_resolve(line, line.take("control", "a control input"), nodes)[0])
    outputs = _parse_outputs(line)
    device = line.take("device", "a device").text[1:] if line.next.kind == "device" else ""
    source = _parse_source(_finish(line))
    _parse_functions(line, lines, op, given)
    specs = [[nodes[name].outputs[index].dtype for name, index in group] for group in inputs]
    attrs = _complete_attrs(line, start, op, specs, [spec.dtype for spec in outputs], given)
    refs = tuple(ref for group in inputs for ref in group)
    return Node(name, op, refs, tuple(controls), attrs, device, source, outputs)


def _parse_functions(owner: Line, lines: _Lines, op: OpDef, attrs: dict[str, Any]) -> None:
    """Add the functions that follow the line of their ``owner`` to ``attrs``."""
    while lines.is_inside(owner.indent) and (line := lines.next) is not None and _is_label(line):
        lines.take()
        column = line.next.column
        if line.indent > MAX_INDENT:
            line.fail_at(column, f"expected functions to begin within the first {MAX_INDENT} columns")
        key = parse_key(line)
        kind = attr_kind(op, key) or ""
        known = attrs.get(key, () if "list" in kind else None)
        if "func" not in kind or (known is not None and not isinstance(known, tuple)):
            line.fail_at(column, f"expected a function of {op.name} that is not defined yet; got {key!r}")
        if isinstance(known, tuple):
            for text in ("[", str(len(known)), "]"):
                line.expect(text)
        line.expect(":")
        _finish(line)
        function = _parse_block(lines, line.indent)
        attrs[key] = (*known, function) if isinstance(known, tuple) else function


def _is_label(line: Line) -> bool:
    return line.next.kind == "string" or (line.next.kind == "word" and line.next.text not in _ENDS)


def _parse_op(line: Line) -> OpDef:
    token = line.take("word", "an op")
    try:
        return op_def(token.text)
    except NotFoundError as error:
        raise NotFoundError(f"line {line.number}, column {token.column}: {error.message}") from None


def _parse_inputs(line: Line, op: OpDef, nodes: Mapping[str, Node]) -> list[list[Ref]]:
    line.expect("(")
    groups: list[list[Ref]] = []
    for argument in op.inputs:
        if groups:
            line.expect(",")
        groups.append(_parse_input(line, argument, nodes))
    line.expect(")")
    return groups


def _parse_input(line: Line, argument: Argument, nodes: Mapping[str, Node]) -> list[Ref]:
    if not argument.is_list:
        return [_resolve_output(line, line.take("node", f"input {argument.name!r}"), nodes)]
    line.expect("[")
    what = f"input {argument.name!r}"
    return [_resolve_output(line, line.take("node", what), nodes) for _ in line.items("]")]


def _resolve(line: Line, token: Token, nodes: Mapping[str, Node]) -> Ref:
    name, index = parse_name(line, token)
    if name not in nodes:
        hint = _nearest_above(name, nodes)
        line.fail_at(token.column, f"expected an operation defined above{hint and f'.{hint}'}", token.text)
    return name, index


def _resolve_output(line: Line, token: Token, nodes: Mapping[str, Node]) -> Ref:
    name, index = _resolve(line, token, nodes)
    if index >= len(nodes[name].outputs):
        line.fail_at(token.column, f"expected one of its {len(nodes[name].outputs)} outputs", token.text)
    return name, index


def _nearest_above(name: str, nodes: Mapping[str, Node]) -> str:
    """Nearest among the last names, and short ones: comparing two of 100 characters takes up to 0.7 ms."""
    last = islice((each for each in reversed(list(nodes)) if len(each) <= MAX_HINTED), 300)
    return nearest(name, last)


def _parse_attrs(line: Line, op: OpDef) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    if not line.accept("{"):
        return attrs
    for _ in line.items("}"):
        token = line.next
        key = parse_key(line)
        kind = attr_kind(op, key)
        if key in attrs or (kind is None and not key.startswith("_")):
            hint = nearest(key, attr_names(op))
            line.fail_at(
                token.column, f"expected a new attribute of {op.name}{hint and f'.{hint}'}", token.text
            )
        line.expect("=")
        attrs[key] = parse_value(line, kind)
    return attrs


def _parse_outputs(line: Line) -> tuple[TensorSpec, ...]:
    outputs: list[TensorSpec] = []
    if line.accept(":"):
        outputs.append(TensorSpec(parse_dtype(line), parse_shape(line)))
        while line.accept(","):
            outputs.append(TensorSpec(parse_dtype(line), parse_shape(line)))
    return tuple(outputs)


def _complete_attrs(
    line: Line,
    column: int,
    op: OpDef,
    inputs: Sequence[Sequence[DType]],
    outputs: Sequence[DType],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """``given`` with attrs implied by the dtypes and with the defaults; checked against the signature."""
    attrs = {**_defaults(op), **_derived_attrs(op, inputs, outputs), **given}
    for key in attr_names(op):
        if key not in attrs:
            line.fail_at(column, f"expected a value of attribute {key!r}; got none")
    try:
        check_attrs(op, attrs)
    except InvalidArgumentError as error:
        line.fail_at(column, error.message)
    for argument, group in zip(op.inputs, inputs, strict=True):
        wanted = argument.dtypes(attrs)
        if list(group) != wanted:
            line.fail_at(column, f"input {argument.name!r}: expected {_names(wanted)}; got {_names(group)}")
    wanted = output_dtypes(op, attrs)
    if list(outputs) != wanted:
        line.fail_at(column, f"outputs: expected {_names(wanted)}; got {_names(outputs)}")
    return attrs


def _names(found: Sequence[DType]) -> str:
    return ", ".join(dtype.name for dtype in found) or "none"


class _Code(NamedTuple):
    """Substitute for the code object of a user's line if only the line's name is known."""

    co_filename: str
    co_firstlineno: int
    co_linetable: bytes = b""

    def co_lines(self) -> tuple[()]:
        return ()


def _parse_source(comment: str) -> Source | None:
    match = re.fullmatch(r"# (.+):(\d{1,9})", comment)
    return None if match is None else Source(_Code(match[1], int(match[2])), 0)
