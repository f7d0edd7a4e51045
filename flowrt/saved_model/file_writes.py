"""`check_writes_no_files`: what a graph from a file may not do.

A model is a program, and often a stranger wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrt.errors import PermissionDeniedError
from flowrt.graph.op_def import Privilege, registered_ops


def check_writes_no_files(graph_def: Any, roots: Iterable[str]) -> None:
    """Raise `PermissionDeniedError` for a node that writes files, if what ``roots`` (tensors, operations)
    need has one, in functions too.
    """
    for node in _needed(graph_def, roots):
        if _writes_files(node):
            raise PermissionDeniedError(
                f"{node.op} {node.name[:200]!r}: a model that is loaded may not write files; "
                "allow_files=True lets it"
            )


def _writes_files(node: Any) -> bool:
    """Whether the NodeDef ``node`` needs the privilege to write files: by its definition, as on a cluster."""
    definition = registered_ops().get(node.op)
    if definition is None or definition.privilege is None:
        return False
    texts = {key: value.s.decode(errors="replace") for key, value in node.attr.items()}
    attrs = {key: attr.default for key, attr in definition.attrs.items()} | texts
    return definition.privilege(attrs) is Privilege.FILES


def _needed(graph_def: Any, roots: Iterable[str]) -> list[Any]:
    """The nodes, in functions too, on which tensors and operations depend."""
    nodes = {node.name: node for node in graph_def.node}
    functions = {f.signature.name: f.node_def for f in graph_def.library.function}
    found, seen, called = list[Any](), set[str](), set[str]()
    waiting = [name.partition(":")[0] for name in roots]
    while waiting:
        name = waiting.pop()
        if name not in nodes or name in seen:
            continue
        seen.add(name)
        waiting += [text.removeprefix("^").partition(":")[0] for text in nodes[name].input]
        inner = [nodes[name]]
        while inner:
            each = inner.pop()
            found.append(each)
            refs = [each.op, *(f.name for a in each.attr.values() for f in (a.func, *a.list.func))]
            for ref in refs:
                if ref in functions and ref not in called:
                    called.add(ref)
                    inner += functions[ref]
    return found
