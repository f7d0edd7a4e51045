"""`OnnxModel`: a model that runs; one graph and session for each signature of its inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError, nearest
from flowrt.onnx.importer import check_operations, import_model
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.proto import read_model
from flowrt.onnx.surface import tf
from flowrt.onnx.training import as_name
from flowrt.onnx.values import NeedsValueError, Value, ancestors_of, array_from, tensor
from flowrt.saved_model.graph_model import GraphModel

MAX_GRAPHS = 8
MAX_BY_VALUE = 4096
"""Elements of an input that may be part of a signature."""


class _Built(NamedTuple):
    """A graph for one signature: its session, a function from the arrays that are fed to those of the
    outputs, and the outputs by name with the places of these. Inputs ``by_value`` are not fed.
    """

    session: tf.Session
    call: Callable[..., list[Any]]
    outputs: dict[str, Value]
    by_value: frozenset[str]


class _Type(NamedTuple):
    """The declared type of an input: of a tensor, or, with an ``element``, of a sequence or an optional."""

    dtype: Any = None
    sizes: list[int | None] | None = None
    element: _Type | None = None
    is_optional: bool = False

    @classmethod
    def of(cls, kind: Any) -> _Type:
        """The type of a TypeProto. Raises `UnimplementedError` for element types that are none."""
        if kind.HasField("optional_type"):
            return cls(element=cls.of(kind.optional_type.elem_type), is_optional=True)
        if kind.HasField("sequence_type"):
            return cls(element=cls.of(kind.sequence_type.elem_type))
        has_shape = kind.tensor_type.HasField("shape")
        return cls(dtype_of_element(kind.tensor_type.elem_type), _sizes(kind) if has_shape else None)


@final
class OnnxModel:
    """A model; made by `load`. ``inputs`` and ``outputs`` are names, in order. Not thread-safe."""

    def __init__(self, model: Any) -> None:
        self.proto = model
        initialized = {each.name for each in model.graph.initializer}
        self._types = {each.name: each.type for each in model.graph.input}
        self.inputs = [each.name for each in model.graph.input if each.name not in initialized]
        self.outputs = [each.name for each in model.graph.output]
        self._parsed: dict[str, _Type] = {}
        self._deciding = _deciding(model.graph)
        """Inputs that may say how to build, as long as they have few values."""
        self._by_value = set(self._deciding)
        """The inputs that say by their values how to build."""
        self._graphs: OrderedDict[Any, _Built] = OrderedDict()

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The outputs by name: arrays, strings as objects of str, lists for sequences, None for an optional
        without a value. ``inputs`` are arrays by name, or in order.

        The first run with other shapes builds another graph (0.05 to 0.3 s); the last 8 are kept. Raises
        `InvalidArgumentError` for inputs that do not fit, and as `import_model` does.
        """
        given = self._checked(inputs)
        built = self._built(given)
        values = built.call(*_flat(given, built.by_value))
        return {name: _filled(value, values) for name, value in built.outputs.items()}

    def as_graph_model(self) -> GraphModel:
        """The model as one graph for the shapes that it declares, in which sizes may be unknown.

        Raises `UnimplementedError` if building needs to know one of these, or if an input is no tensor.
        """
        with tf.Graph().as_default() as graph:
            inputs = {name: _declared(name, self._types[name]) for name in self.inputs}
            outputs = import_model(self.proto, inputs)
            for name, value in outputs.items():
                if value is None or isinstance(value, list):
                    raise UnimplementedError(f"output {name!r}: expected a tensor; got a sequence")
            tensors = {
                name: tf.identity(tensor(value), name=as_name(name)) for name, value in outputs.items()
            }
            return GraphModel(tf.Session(graph=graph), inputs, tensors)

    def close(self) -> None:
        """Release the sessions. Idempotent."""
        for built in self._graphs.values():
            built.session.close()
        self._graphs.clear()

    # --- inputs

    def _checked(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The inputs by name, as arrays."""
        if isinstance(inputs, np.ndarray):
            raise InvalidArgumentError(
                f"the model: expected a list of inputs, or a dict by name; got an array {list(inputs.shape)}"
            )
        if not isinstance(inputs, Mapping):
            if len(inputs) > len(self.inputs):
                raise InvalidArgumentError(
                    f"the model: expected {len(self.inputs)} inputs; got {len(inputs)}"
                )
            inputs = dict(zip(self.inputs, inputs, strict=False))
        for name in inputs:
            if name not in self._types:
                hint = nearest(str(name), self._types)
                raise InvalidArgumentError(
                    f"the model: expected inputs of {self.inputs}; got {name!r}.{hint}"
                )
        return {name: _checked(name, value, self._type(name)) for name, value in inputs.items()}

    def _type(self, name: str) -> _Type:
        if name not in self._parsed:
            self._parsed[name] = _Type.of(self._types[name])
        return self._parsed[name]

    # --- graphs

    def _built(self, given: Mapping[str, Any]) -> _Built:
        while True:
            key = tuple(_signature(name, value, name in self._by_value) for name, value in given.items())
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
            graph = tf.Graph()
            try:
                with graph.as_default():
                    values = {n: v if n in self._by_value else _placeholder(v) for n, v in given.items()}
                    outputs = import_model(self.proto, values)
            except NeedsValueError as error:
                self._take_by_value(error, values, given)
                continue
            feeds = [
                each
                for name, value in values.items()
                if name not in self._by_value
                for each in _leaves(value)
            ]
            fetched: list[Any] = []
            places = {name: _with_places(value, fetched) for name, value in outputs.items()}
            session = tf.Session(graph=graph)
            call = session.make_callable(fetched, feeds)
            built = _Built(session, call, places, frozenset(self._by_value))
            self._graphs[key] = built
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)[1].session.close()
                self._by_value -= self._deciding  # there is no end of values
                self._deciding = set()
            return built

    def _take_by_value(
        self, error: NeedsValueError, values: Mapping[str, Value], given: Mapping[str, Any]
    ) -> None:
        """Make the inputs on which the value depends that building needs part of the signature."""
        needed = ancestors_of(error.tensor)
        found = {
            name
            for name, value in values.items()
            if name not in self._by_value and any(leaf.op.name in needed for leaf in _leaves(value))
        }
        small = {name for name in found if sum(leaf.size for leaf in _leaves(given[name])) <= MAX_BY_VALUE}
        if not small:
            raise error
        self._by_value |= small


def load(source: Any) -> OnnxModel:
    """The model of a file, of bytes or of a ModelProto.

    >>> model = flowrt.onnx.load("classifier.onnx")
    >>> model.inputs, model.outputs
    (['image'], ['scores'])
    >>> scores = model.run({"image": image})["scores"]

    Raises `NotFoundError` for a missing file, `InvalidArgumentError` for anything that is no model, and
    `UnimplementedError` that names all operations that are missing.
    """
    model = read_model(source)
    check_operations(model)
    return OnnxModel(model)


def _deciding(graph: Any) -> set[str]:
    """The inputs, single integers or bools, from which alone the condition of a branch follows."""
    makers = {name: node for node in graph.node for name in node.output}
    inputs = {each.name: each.type.tensor_type for each in graph.input}
    found: set[str] = set()
    for node in graph.node:
        if node.op_type != "If":
            continue
        stack, reached = list(node.input), set[str]()
        while stack:
            name = stack.pop()
            if name not in reached:
                reached.add(name)
                maker = makers.get(name)
                stack += [] if maker is None else [*maker.input]
        above = reached & inputs.keys()
        if above and all(_is_choice(inputs[name]) for name in above):
            found |= above
    return found


def _is_choice(kind: Any) -> bool:
    """Whether a declared tensor is a single integer or bool."""
    if not kind.HasField("shape") or kind.shape.dim:
        return False
    return dtype_of_element(kind.elem_type).kind in "iub"


def _checked(name: str, value: Any, kind: _Type) -> Any:
    """``value`` of an input as arrays."""
    if kind.element is not None:
        if kind.is_optional:
            return None if value is None else _checked(name, value, kind.element)
        return [_checked(name, each, kind.element) for each in value]
    array = np.asarray(value)
    if isinstance(value, list | int | float) and kind.dtype.kind == "f" and array.dtype.kind in "fiu":
        array = array.astype(kind.dtype)  # Python's numbers have no width
    if kind.dtype.kind == "O":
        flat = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
        return np.array([*flat, None], object)[:-1].reshape(array.shape)
    if array.dtype != kind.dtype:
        raise InvalidArgumentError(f"input {name!r}: expected {kind.dtype}; got {array.dtype}")
    sizes, shape = kind.sizes, array.shape
    if sizes is not None:
        fits = len(sizes) == len(shape)
        if not fits or any(a is not None and a != b for a, b in zip(sizes, shape, strict=True)):
            raise InvalidArgumentError(f"input {name!r}: expected shape {sizes}; got {list(shape)}")
    return array


def _declared(name: str, kind: Any) -> Any:
    """A placeholder of the type that the model declares for an input."""
    if not kind.HasField("tensor_type"):
        raise UnimplementedError(f"input {name!r}: expected a tensor; got a sequence or an optional")
    dtype = tf.as_dtype(dtype_of_element(kind.tensor_type.elem_type))
    shape = _sizes(kind) if kind.tensor_type.HasField("shape") else None
    return tf.placeholder(dtype, shape, name=as_name(name))


def _sizes(kind: Any) -> list[int | None]:
    """The declared sizes of a tensor's dimensions; some exporters write -1 for one that is not known."""
    dims = kind.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]


def _signature(name: str, value: Any, by_value: bool) -> Any:
    if value is None or isinstance(value, list):
        return name, None if value is None else tuple(_signature("", each, by_value) for each in value)
    known = (
        (tuple(value.reshape(-1).tolist()) if value.dtype.kind == "O" else value.tobytes())
        if by_value
        else None
    )
    return name, value.dtype, value.shape, known


def _placeholder(value: Any) -> Value:
    if isinstance(value, list):
        return [_placeholder(each) for each in value]
    return None if value is None else tf.placeholder(tf.as_dtype(value.dtype), value.shape)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [] if value is None else [value]


def _flat(given: Mapping[str, Any], by_value: Collection[str]) -> list[Any]:
    return [leaf for name, value in given.items() if name not in by_value for leaf in _leaves(value)]


# --- outputs


class _Place(int):
    """The number of a fetched tensor."""


def _with_places(value: Value, fetched: list[Any]) -> Value:
    if isinstance(value, list):
        return [_with_places(each, fetched) for each in value]
    if value is None or isinstance(value, np.ndarray | np.generic):
        return value
    fetched.append(value)
    return _Place(len(fetched) - 1)


def _filled(value: Value, values: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    found = values[value] if isinstance(value, _Place) else value
    if found is None:
        return None
    array = array_from(found)
    if array.dtype.kind != "O":
        return array
    flat = [
        each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in array.reshape(-1)
    ]
    return np.array([*flat, None], object)[:-1].reshape(array.shape)
