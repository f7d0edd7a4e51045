"""`import_meta_graph`: a graph of a message, with its collections and its saver.

A variable is a `Variable` around the operations that the message names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.storage.durable_files import path_string
from flowrt.tf1.graph_import.import_graph_def import import_nodes
from flowrt.tf1.graph_import.import_nodes import NodeImporter
from flowrt.tf1.graph_import.read_graph_def import parse_ref
from flowrt.tf1.message_files import read_message
from flowrt.train.checkpoints.graph_saver import GraphSaver
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.coordination.queue_runner import QueueRunner, parts_of
from flowrt.variables.imported_variable import ImportedVariable
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization

LOGGER = logging.getLogger(__name__)

OF_VARIABLES = frozenset({
    GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES,
    GraphKeys.MODEL_VARIABLES, GraphKeys.TRAINABLE_VARIABLES, GraphKeys.MOVING_AVERAGE_VARIABLES,
    GraphKeys.GLOBAL_STEP, GraphKeys.WEIGHTS, GraphKeys.BIASES,
})  # fmt: skip
_OF_CONTROL_FLOW = ("cond_context", "while_context")  # loops and branches are operations here

Element: TypeAlias = Operation | Tensor


class Imported(NamedTuple):
    """A MetaGraph in the default graph: ``find`` gives the operation or tensor of a name in it, or None."""

    message: Any
    find: Callable[[str], Element | None]
    saver: Saver | None


def import_meta_graph(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    import_scope: str | None = None,
    *,
    input_map: Mapping[str, Any] | None = None,
) -> Saver | None:
    """Add a MetaGraph, a file ``.meta`` or the message, to the default graph, with its collections. Returns
    its saver: one that runs the graph's own operations, else one of its global variables, or None.

    ``clear_devices`` drops the devices that it names, ``import_scope`` stands before its names, and
    ``input_map`` replaces tensors as in `import_graph_def`.

    >>> saver = tf.train.import_meta_graph("model.ckpt-1000.meta")
    >>> saver.restore(session, "model.ckpt-1000")
    >>> session.run("logits:0", {"x:0": images})

    Raises as `import_graph_def`, and `InvalidArgumentError` for names that the graph does not have.
    """
    return imported(_message(meta_graph_or_file), clear_devices, import_scope, input_map).saver


def _message(meta_graph_or_file: Any) -> Any:
    kind = protos.meta_graph_pb2.MetaGraphDef
    if isinstance(meta_graph_or_file, kind):
        return meta_graph_or_file
    if hasattr(meta_graph_or_file, "DESCRIPTOR") and meta_graph_or_file.DESCRIPTOR.name == "MetaGraphDef":
        return kind.FromString(meta_graph_or_file.SerializeToString())  # TensorFlow's own: the same bytes
    return read_message(path_string(meta_graph_or_file, "import_meta_graph"), kind)


def imported(
    message: Any,
    clear_devices: bool = False,
    import_scope: str | None = None,
    input_map: Mapping[str, Any] | None = None,
) -> Imported:
    """``message`` added to the default graph, which is left unchanged on an error."""
    graph = get_default_graph()
    if clear_devices:
        copy = protos.graph_pb2.GraphDef()
        copy.CopyFrom(message.graph_def)
        for node in copy.node:
            node.device = ""
        message = _with_graph(message, copy)
    info = message.meta_info_def
    ops = info.stripped_op_list if info.HasField("stripped_op_list") else None
    with graph.rollback_on_error():
        importer = import_nodes(message.graph_def, input_map, import_scope or "", ops)
        find = _Finder(importer)
        variables = _Variables(find)
        found = {key: _items(key, each, find, variables) for key, each in message.collection_def.items()}
        saver = _saver(message, find, found)
    for key, items in found.items():
        for item in items:
            graph.add_to_collection(key, item)
    return Imported(message, find, saver)


def _with_graph(message: Any, graph_def: Any) -> Any:
    copy = protos.meta_graph_pb2.MetaGraphDef()
    copy.CopyFrom(message)
    copy.graph_def.CopyFrom(graph_def)
    return copy


class _Finder:
    """The elements of an imported graph by their names in the message."""

    def __init__(self, importer: NodeImporter) -> None:
        self._importer = importer

    def __call__(self, name: str) -> Element | None:
        (producer, index), _ = parse_ref(name)
        op = self._importer.added.get(producer)
        if op is None or ":" not in name:
            return op
        return op.outputs[index] if index < len(op.outputs) else None

    def operation(self, name: str, what: str) -> Operation:
        found = self.needed(name, what)
        if not isinstance(found, Operation):
            raise InvalidArgumentError(f"MetaGraph: {what}: expected an operation; got {name[:200]!r}")
        return found

    def needed(self, name: str, what: str) -> Any:
        found = self(name) if name else None
        if found is None:
            raise InvalidArgumentError(f"MetaGraph: {what}: expected a name in its graph; got {name[:200]!r}")
        return found


class _Variables:
    """Variables of messages: one object for one handle, whichever collections it is in."""

    def __init__(self, find: _Finder) -> None:
        self._find, self._made = find, dict[Tensor, Variable]()

    def of(self, message: Any) -> Variable:
        name = message.variable_name
        handle = self._find.needed(name, "variable")
        if handle not in self._made:
            what = f"variable {name[:200]!r}"
            initializer = self._find.needed(message.initializer_name, what)
            self._made[handle] = ImportedVariable(
                handle,
                initializer if isinstance(initializer, Operation) else initializer.op,
                self._initial_value(message, initializer, what),
                message.trainable,
                VariableSynchronization(message.synchronization),
                VariableAggregation(message.aggregation),
            )
        return self._made[handle]

    def _initial_value(self, message: Any, initializer: Operation, what: str) -> Tensor:
        """The tensor of that name; older messages have none, and it is what the initializer assigns."""
        if message.initial_value_name:
            found: Tensor = self._find.needed(message.initial_value_name, what)
            return found
        return initializer.inputs[-1]


def _items(key: str, message: Any, find: _Finder, variables: _Variables) -> list[Any]:
    """The items of the collection ``key``."""
    kind = message.WhichOneof("kind")
    if kind in (None, "any_list") or key in _OF_CONTROL_FLOW:
        return []
    values = list(getattr(message, kind).value)
    if kind == "node_list":
        found = [find(name) for name in values]
        if missing := [name for name, each in zip(values, found, strict=True) if each is None]:
            LOGGER.warning(
                "collection %r: %d of its %d names belong to control flow that was rewritten, as %r",
                key, len(missing), len(values), missing[0],
            )  # fmt: skip
        return [each for each in found if each is not None]
    if kind != "bytes_list":
        return values
    if key in OF_VARIABLES:
        kind = protos.meta_graph_pb2.VariableDef
        return [variables.of(_parsed(kind, key, value)) for value in values]
    if key == GraphKeys.QUEUE_RUNNERS:
        kind = protos.meta_graph_pb2.QueueRunnerDef
        return [_queue_runner(_parsed(kind, key, value), find) for value in values]
    if key == GraphKeys.SAVERS:
        LOGGER.warning("collection %r is left out: what it has cannot be imported", key)
        return []
    return [_text(value) for value in values]


def _parsed(kind: Any, key: str, value: bytes) -> Any:
    try:
        return kind.FromString(value)
    except DecodeError as error:
        raise InvalidArgumentError(
            f"MetaGraph: collection {key!r}: expected {kind.DESCRIPTOR.name}; {error}"
        ) from None


def _queue_runner(message: Any, find: _Finder) -> QueueRunner:
    return QueueRunner(*parts_of(message, lambda name: find.operation(name, "queue runner")))


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _saver(message: Any, find: _Finder, collections: Mapping[str, Sequence[Any]]) -> Saver | None:
    given = message.saver_def
    if message.HasField("saver_def") and given.restore_op_name:
        names = (given.filename_tensor_name, given.save_tensor_name, given.restore_op_name)
        filename, saved, restore = (find.needed(name, "its saver") for name in names)
        return GraphSaver(filename, saved, restore, given)
    variables = collections.get(GraphKeys.GLOBAL_VARIABLES)
    return Saver(variables) if variables else None
