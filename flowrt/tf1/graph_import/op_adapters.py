"""Ops that only nodes being imported have, and flowrt says by others: older and newer spellings, and ops that
converters fuse. See `v1_ops`.

Each has a rule that gives the node in its place, of the same name and with outputs in the same places, and
may add nodes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import OpDef, parse_attrs, parse_signature, registered_ops
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.tf1.graph_import.import_branches import unused_name

Rule: TypeAlias = "Callable[[Adapter, Node], Node]"

ADAPTED: dict[str, OpDef] = {}
"""The ops by name."""

_RULES: dict[OpDef, Rule] = {}


def adapted(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with flowrt's ops in place of the `ADAPTED`; the same object if
    there are none. Raises `InvalidArgumentError` and `UnimplementedError`, with the node's name.
    """
    if not any(node.op in _RULES for node in nodes.values()):
        return nodes
    return Adapter(nodes).run()


@final
class Adapter:
    """Makes the nodes in place of others."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes, self._made = nodes, dict[str, Node]()
        self._taken = set(nodes)

    def run(self) -> dict[str, Node]:
        for node in self.nodes.values():
            rule = _RULES.get(node.op)
            if rule is None:
                self._made[node.name] = node
                continue
            made = rule(self, node)
            self._made[made.name] = made
        return self._made

    def become(self, node: Node, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Node:
        """``node`` with another op; of its attributes those with an underscore stay."""
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        return node.replace(op=registered_ops()[op], inputs=inputs, attrs=_complete(op, {**kept, **attrs}))

    def add(self, node: Node, part: str, op: str, inputs: tuple[Ref, ...], **attrs: Any) -> Ref:
        """Output 0 of a new node, which is called ``node/part`` and has its control inputs."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        definition = registered_ops()[op]
        made = node.beside(name, definition, inputs, node.controls, _complete(op, attrs))
        self._made[name] = made
        return name, 0

    def constant(self, node: Node, part: str, value: Any, dtype: Any = np.int32) -> Ref:
        """A new constant for ``node``. It waits for an input, to be in the same frame and branch."""
        name = unused_name(f"{node.name}/{part}", self._taken)
        array = np.asarray(value, dtype)
        attrs = {"value": array, "dtype": as_dtype(array.dtype)}
        waits = (node.inputs[0][0],) if node.inputs else node.controls
        self._made[name] = node.beside(name, const, (), waits, attrs)
        return name, 0

    def known(self, node: Node, position: int) -> Any:
        """The value of an input that is a constant, as a list or a number."""
        self.check(node, position + 1)
        producer = self.nodes.get(node.inputs[position][0])
        while producer is not None and producer.op.name == "Identity":
            producer = self.nodes.get(producer.inputs[0][0])
        if producer is None or producer.op is not const:
            argument = node.op.inputs[position].name
            raise located(node, UnimplementedError(f"expected input {argument!r} to be a constant"))
        return producer.attrs["value"].tolist()

    def check(self, node: Node, count: int) -> None:
        """Raise `InvalidArgumentError` for fewer inputs."""
        if len(node.inputs) < count:
            message = f"expected at least {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))


def _complete(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """``attrs`` with the defaults of the others."""
    defaults = {key: attr.default for key, attr in registered_ops()[op].attrs.items() if not attr.required}
    return {**defaults, **attrs}


def adapter(name: str, signature: str, attrs: str = "") -> Callable[[Rule], Rule]:
    """A decorator: the function is the rule of the op ``name``."""

    def define(rule: Rule) -> Rule:
        inputs, outputs, types = parse_signature(signature, {"T": dtypes.ANY})
        used = {argument.type_attr for argument in (*inputs, *outputs)}
        types = {variable: types[variable] for variable in types if variable in used}
        ADAPTED[name] = op = replace(
            no_op, name=name, inputs=inputs, outputs=outputs, types=types, attrs=parse_attrs(attrs),
            doc="TensorFlow's.",
        )  # fmt: skip
        _RULES[op] = _checked(rule, len(inputs))
        return rule

    return define


def _checked(rule: Rule, count: int) -> Rule:
    def checked(a: Adapter, node: Node) -> Node:
        if not any(argument.is_list for argument in node.op.inputs) and len(node.inputs) != count:
            message = f"expected {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))
        return rule(a, node)

    return checked


# --- rules without effect


@adapter("DisableCopyOnRead", "resource: resource ->")
def _nothing(a: Adapter, node: Node) -> Node:
    controls = tuple(dict.fromkeys([*node.controls, *(name for name, _ in node.inputs)]))
    return a.become(node, "NoOp", ()).replace(controls=controls)


# --- tables: older ops have strings as handles


def _table_rule(op: str) -> Rule:
    def rule(a: Adapter, node: Node) -> Node:
        definition = registered_ops()[op]
        given = {
            key: value
            for key, value in node.attrs.items()
            if key in definition.attrs or key in definition.types
        }
        return a.become(node, op, node.inputs, **given)

    return rule


_TABLE = "container: string = '', shared_name: string = '', use_node_name_sharing: bool = False, "
_TABLE += "key_dtype: type, value_dtype: type"
for _name in ("HashTable", "MutableHashTable"):
    adapter(_name, "-> table_handle: string", _TABLE)(_table_rule(f"{_name}V2"))
adapter(
    "LookupTableFind", "table_handle: string, keys: Tin in ANY, default_value: Tout in ANY -> values: Tout"
)(_table_rule("LookupTableFindV2"))
adapter("LookupTableSize", "table_handle: string -> size: int64")(_table_rule("LookupTableSizeV2"))
adapter("InitializeTable", "table_handle: string, keys: Tkey in ANY, values: Tval in ANY ->")(
    _table_rule("InitializeTableV2")
)
adapter(
    "InitializeTableFromTextFile",
    "table_handle: string, filename: string ->",
    "key_index: int, value_index: int, vocab_size: int = -1, delimiter: string = '\\t', offset: int = 0",
)(_table_rule("InitializeTableFromTextFileV2"))
