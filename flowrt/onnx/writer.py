"""`Writer`: the nodes of one ONNX graph as they are made, with the dtype of each value.

Constants are initializers of the outermost graph, which its inner graphs may name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from flowrt.dtypes import as_dtype
from flowrt.onnx.proto import element_type, onnx, schema_of

MAX_SHARED = 4096
"""Bytes of a constant up to which an equal one is looked for."""

MAX_COMPUTED = 1 << 28
"""Bytes of a constant up to which its transpose or its shape is computed while exporting."""


ELEMENTWISE = frozenset((
    "Abs", "Add", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "LeakyRelu", "Log", "Max", "Min", "Mul", "Neg",
    "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh",
))  # fmt: skip
"""Operations that may be done before a transpose as well as behind it."""

Info = tuple[str, "np.dtype[Any]", Any]
"""The name, dtype and shape (None if it is not known) of an input."""


class CannotExportError(Exception):
    """ONNX cannot say this; the message is what stands behind the operation's name."""


@final
class Writer:
    """Nodes in order. ``outer`` is the writer of the graph around this one."""

    def __init__(self, opset: int, outer: Writer | None = None) -> None:
        self.opset, self._outer = opset, outer
        self.nodes: list[Any] = []
        root = self if outer is None else outer._root
        self._root: Writer = root
        if outer is None:
            self.initializers: dict[str, Any] = {}
            self.dtypes: dict[str, np.dtype[Any]] = {}
            self._names: set[str] = set()
            self._shared: dict[Any, str] = {}
            self._transposed: dict[str, tuple[str, list[int]]] = {}
            """(the value, the permutation) of the results of transposes."""

    # --- names and constants

    def name(self, wanted: str) -> str:
        """``wanted``, or with a number behind it where that is taken."""
        names, found, number = self._root._names, wanted, 1
        while found in names:
            found, number = f"{wanted}_{number}", number + 1
        names.add(found)
        return found

    def declare(self, wanted: str, dtype: Any) -> str:
        """The name of a value that no node makes: an input."""
        name = self.name(wanted)
        self._root.dtypes[name] = np.dtype(dtype)
        return name

    def constant(self, value: Any, wanted: str = "const") -> str:
        """The name of an initializer; of an equal one that is there, if it is small."""
        root = self._root
        key: Any = None
        if value.dtype.kind != "O" and value.nbytes <= MAX_SHARED and wanted == "const":
            key = value.dtype.str, value.dtype.name, value.shape, value.tobytes()
            if key in root._shared:
                return root._shared[key]
        name = self.declare(wanted, value.dtype)
        root.initializers[name] = value
        if key is not None:
            root._shared[key] = name
        return name

    def value_of(self, name: str) -> Any:
        return self._root.initializers.get(name)

    def dtype_of(self, name: str) -> np.dtype[Any]:
        return self._root.dtypes[name]

    def typed(self, name: str, dtype: Any) -> str:
        """``name``, of a dtype that its node's inputs do not say."""
        self._root.dtypes[name] = np.dtype(dtype)
        return name

    # --- graphs in nodes

    def inner_graph(self, build: Callable[[Writer], list[str]], name: str) -> Any:
        """The GraphProto of what ``build`` adds to a writer, with the outputs that it returns."""
        inner = Writer(self.opset, self)
        return inner.graph(build(inner), name)

    def graph(self, outputs: Sequence[str], name: str, inputs: Sequence[Info] = ()) -> Any:
        """The nodes as a GraphProto; ``inputs`` are names, dtypes and shapes."""
        helper = onnx().helper
        ends = []
        for output in outputs:
            ends.append(self.declare(f"{name}/result", self.dtype_of(output)))
            self.nodes.append(helper.make_node("Identity", [output], [ends[-1]]))
        infos = [value_info(*each) for each in inputs]
        results = [value_info(each, self.dtype_of(each), None) for each in ends]
        return helper.make_graph(needed_nodes(self.nodes, ends), self.name(name), infos, results)

    def scan_body(self, op: str, dtype: np.dtype[Any], inputs: int, exclusive: bool) -> Any:
        """The body of a scan for `flowrt.onnx.emit.emit_reductions.along_axis`: the next value, and a row."""
        inner = Writer(self.opset, self)
        names = [inner.declare(f"scan/{i}", dtype) for i in range(inputs + 1)]
        carried, *rows = names
        if len(rows) == 2:
            carried = inner.add("Mul", (carried, rows[0]), 1, "scan")[0]
        after = inner.add(op, (carried, rows[-1]), 1, "scan")[0]
        row = names[0] if exclusive else after
        return inner.graph([after, row], "scan", [(each, dtype, None) for each in names])

    # --- nodes

    def cast(self, name: str, dtype: np.dtype[Any], **how: Any) -> str:
        """``name`` as another dtype; ``how`` are attributes of the Cast."""
        if self.dtype_of(name) == dtype:
            return name
        if dtype.kind == "c" or self.dtype_of(name).kind == "c":
            raise CannotExportError("ONNX has no operations on complex numbers: use two real tensors")
        value = self.value_of(name)
        if value is not None and "O" not in (value.dtype.kind, dtype.kind) and not how:
            return self.constant(value.astype(dtype))
        return self.add("Cast", (name,), 1, name, to=element_type(dtype), dtype=dtype, **how)[0]

    def add(
        self, op: str, inputs: Sequence[str], count: int, wanted: str, dtype: Any = None, **attrs: Any
    ) -> list[str]:
        """Add a node of ``count`` outputs with names like ``wanted``; "" is an input that is left out.

        Where ONNX's operation lacks a dtype, its inputs are cast to a wider one that it has, and its outputs
        back. ``dtype`` is that of the outputs, if no input has it. Raises `CannotExportError`.
        """
        folded = self._folded(op, inputs, attrs)
        if folded is not None:
            return [self.constant(folded)]
        if op == "Transpose" and inputs[0] in self._root._transposed:
            source, perm = self._root._transposed[inputs[0]]
            joined = [perm[axis] for axis in attrs["perm"]]
            return [source] if joined == sorted(joined) else self._added(op, [source], 1, wanted, perm=joined)
        if op in ELEMENTWISE and (sunk := self._behind(inputs)) is not None:
            given, perm = sunk
            found = self._added(op, given, 1, wanted, dtype, **attrs)
            return self._added("Transpose", found, 1, wanted, perm=perm)
        return self._added(op, inputs, count, wanted, dtype, **attrs)

    def _behind(self, inputs: Sequence[str]) -> tuple[list[str], list[int]] | None:
        """The inputs before the one transpose that they have in common, and its permutation: constants are
        transposed back. So transposes move towards others, with which they cancel.
        """
        known = self._root._transposed
        perms = [known[name][1] for name in inputs if name in known]
        if not perms or any(perm != perms[0] for perm in perms):
            return None
        given = []
        for name in inputs:
            value = self.value_of(name)
            if name in known:
                given.append(known[name][0])
            elif not name or (value is not None and value.ndim == 0):
                given.append(name)
            elif value is not None and value.ndim <= len(perms[0]):
                whole = value.reshape((1,) * (len(perms[0]) - value.ndim) + value.shape)
                given.append(self.constant(np.ascontiguousarray(whole.transpose(np.argsort(perms[0])))))
            else:
                return None
        return given, perms[0]

    def _added(
        self, op: str, inputs: Sequence[str], count: int, wanted: str, dtype: Any = None, **attrs: Any
    ) -> list[str]:
        """`add` as it is said."""
        kind = _signature(op, self.opset)
        chosen = self._chosen_dtypes(kind, op, inputs)
        given = []
        for i, name in enumerate(inputs):
            variable = kind.inputs[min(i, len(kind.inputs) - 1)]
            given.append(self.cast(name, chosen[variable][1]) if name and variable in chosen else name)
        if dtype is not None:
            _check_result(kind, op, np.dtype(dtype), self.opset)
        outputs = [self.name(wanted) for _ in range(count)]
        node = onnx().helper.make_node(op, given, outputs, name=self.name(f"{wanted}/{op}"), **attrs)
        self.nodes.append(node)
        found = []
        for i, name in enumerate(outputs):
            variable = kind.outputs[min(i, len(kind.outputs) - 1)]
            before, after = chosen.get(variable, (None, None))
            made = after if after is not None else kind.fixed.get(variable, dtype)
            self._root.dtypes[name] = np.dtype(
                made if made is not None else self.dtype_of(next(filter(None, given)))
            )
            found.append(name if before in (None, after) else self.cast(name, before))
        if op == "Transpose":
            self._root._transposed[found[0]] = inputs[0], list(attrs["perm"])
        return found

    def _folded(self, op: str, inputs: Sequence[str], attrs: Any) -> Any:
        """The value of a transpose or reshape of a constant, which is thus laid out once."""
        value = self.value_of(inputs[0]) if inputs else None
        if value is None or value.nbytes > MAX_COMPUTED:
            return None
        if op == "Transpose":
            return np.ascontiguousarray(value.transpose(attrs["perm"]))
        if op in ("Reshape", "Unsqueeze", "Squeeze") and (vector := self.value_of(inputs[1])) is not None:
            axes = tuple(int(each) for each in vector)
            if op == "Reshape":
                return value.reshape(axes)
            return np.squeeze(value, axes) if op == "Squeeze" else np.expand_dims(value, axes)
        return None

    def _chosen_dtypes(
        self, kind: _Kinds, op: str, inputs: Sequence[str]
    ) -> dict[str, tuple[np.dtype[Any], np.dtype[Any]]]:
        """(dtype that is given, dtype to use) of each of the type variables of the inputs."""
        chosen: dict[str, tuple[np.dtype[Any], np.dtype[Any]]] = {}
        for i, name in enumerate(inputs):
            variable = kind.inputs[min(i, len(kind.inputs) - 1)]
            if name and variable in kind.allowed and variable not in chosen and not kind.is_mixed(variable):
                given = self.dtype_of(name)
                chosen[variable] = given, _wider(given, kind.allowed[variable], op)
        return chosen


class _Kinds:
    """The types of an operation: each input's and output's variable, and the dtypes that it may have."""

    def __init__(self, schema: Any) -> None:
        self.inputs = [each.type_str for each in schema.inputs] or [""]
        self.outputs = [each.type_str for each in schema.outputs]
        self.allowed = {c.type_param_str: _dtypes(c.allowed_type_strs) for c in schema.type_constraints}
        heterogeneous = [each for each in schema.inputs if not each.is_homogeneous]
        self._mixed = {each.type_str for each in heterogeneous}
        kinds = {*self.inputs, *self.outputs} - set(self.allowed)
        self.fixed = {kind: next(iter(_dtypes([kind])), None) for kind in kinds}
        for variable in self.outputs:
            only = self.allowed.get(variable, set())
            if len(only) == 1 and variable not in self.inputs:
                self.fixed[variable] = next(iter(only))

    def is_mixed(self, variable: str) -> bool:
        """Whether its inputs may differ in dtype (those of loops)."""
        return variable in self._mixed


@functools.cache
def _signature(op: str, opset: int) -> _Kinds:
    schema = schema_of("", op, opset)
    if schema is None:
        raise CannotExportError(f"{op} is not in opset {opset}: export to a later one")
    return _Kinds(schema)


_NAMES = {
    "float": "float32", "double": "float64", "string": "object", "float16": "float16", "bool": "bool",
    "bfloat16": "bfloat16", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip


def _dtypes(texts: Sequence[str]) -> set[np.dtype[Any]]:
    """The dtypes among "tensor(float)", ..., that flowrt has."""
    named = (_NAMES.get(text.removeprefix("tensor(").removesuffix(")")) for text in texts)
    return {np.dtype(name) if name == "object" else as_dtype(name).np for name in named if name}


_WIDER = {
    "i": ("int32", "int64"), "u": ("uint32", "uint64", "int32", "int64"), "b": ("int32",), "f": ("float32",),
}  # fmt: skip


def _check_result(kind: _Kinds, op: str, dtype: np.dtype[Any], opset: int) -> None:
    """Raise `CannotExportError` if ``op`` has no results of this dtype."""
    allowed = kind.allowed.get(kind.outputs[0], set())
    if kind.outputs[0] not in kind.inputs and allowed and dtype not in allowed:
        raise CannotExportError(f"opset {opset} has no {op} to {dtype.name}: export to a later one")


def _wider(given: np.dtype[Any], allowed: set[np.dtype[Any]], op: str) -> np.dtype[Any]:
    """``given``, or an allowed dtype that has all of its values."""
    if given in allowed or not allowed:
        return given
    kind = "f" if given.name == "bfloat16" else given.kind
    for name in _WIDER.get(kind, ()):
        wide = np.dtype(name)
        if wide in allowed and wide.itemsize > given.itemsize:
            return wide
    names = ", ".join(sorted("string" if each.kind == "O" else each.name for each in allowed))
    raise CannotExportError(f"ONNX has {op} of {names}; got {given.name}: cast it to one of these")


# --- messages


def needed_nodes(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes that ``outputs`` need: an emitter may add more than its call's readers want."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= names_in(node)
    return kept[::-1]


def names_in(node: Any) -> set[str]:
    """The names that a node reads, those in its graphs included."""
    found = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            found |= names_in(inner)
    return found


def value_info(name: str, dtype: np.dtype[Any], shape: Any) -> Any:
    """The ValueInfoProto of a value; an unknown size has a name."""
    sizes = None if shape is None else [f"{name}_{i}" if d is None else d for i, d in enumerate(shape)]
    return onnx().helper.make_tensor_value_info(name, element_type(dtype), sizes)


def tensor_proto(value: Any, name: str) -> Any:
    """The TensorProto of an array."""
    if value.dtype.kind == "O":
        helper = onnx().helper
        return helper.make_tensor(name, onnx().TensorProto.STRING, value.shape, value.reshape(-1).tolist())
    return onnx().numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
