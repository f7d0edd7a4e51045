"""Mermaid: a flowchart as text, rendered inline by GitHub and many wikis.

The language: https://mermaid.js.org/syntax/flowchart.html. Texts are quoted; characters that could end the
quote, or be markup, are written as character codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from flowrt.errors import ResourceExhaustedError
from flowrt.viz.formats.dot import device_colors
from flowrt.viz.formats.picture import Picture, edge_lines, heading, node_lines, route_of
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, GroupKind, NodeView

MAX_EDGES = 500
"""Mermaid's own limit, which a page cannot lift."""

_LINES = "stroke:#6e7781,color:#000"

_ARROW = {EdgeKind.DATA: "-->", EdgeKind.CONTROL: "-.->", EdgeKind.TRANSFER: "-.->"}


def encode_mermaid(picture: Picture) -> bytes:
    """``picture.view`` as text in UTF-8. Raises `ResourceExhaustedError` above `MAX_EDGES`."""
    edges = len(picture.view.edges)
    if edges > MAX_EDGES:
        raise ResourceExhaustedError(
            f"mermaid: expected at most {MAX_EDGES} edges; got {edges}. --depth and --focus reduce them"
        )
    title = re.sub(r"""[^ -~]|[%<>{}|"\\]""", "?", heading(picture))  # could end the text, or be a directive
    lines = ["---", f'title: "{title}"', "---", "flowchart TB", *_lines(picture.view)]
    return "\n".join([*lines, ""]).encode()


def _lines(view: GraphView) -> Iterator[str]:
    ids = {name: f"n{i}" for i, name in enumerate(view.nodes)}
    numbers = {name: f"g{i}" for i, name in enumerate(view.groups)}

    def box(name: str, indent: str) -> Iterator[str]:
        for node in view.nodes.values():
            if node.group == name:
                yield f"{indent}{ids[node.name]}{_shape(node)}"
        for group in view.groups.values():
            if group.parent == name:
                yield f"{indent}subgraph {numbers[group.name]}[{_quoted(group.label)}]"
                yield from box(group.name, indent + "  ")
                yield f"{indent}end"

    yield from box("", "  ")
    route = route_of(view)
    for edge in view.edges:
        yield f"  {ids[edge.source]} {_arrow(edge, route)} {ids[edge.target]}"
    yield f"  classDef default fill:#fff,{_LINES}"
    colors = device_colors(view)
    for i, (device, color) in enumerate(colors.items()):
        placed = [ids[node.name] for node in view.nodes.values() if node.device == device]
        yield f"  classDef d{i} fill:{color},{_LINES}"
        if placed:
            yield f"  class {','.join(placed)} d{i}"
    if not any(group.kind is GroupKind.DEVICE for group in view.groups.values()):
        yield from _legend(tuple(colors))


def _legend(devices: Sequence[str]) -> Iterator[str]:
    """The devices, one below the other: side by side, their names would make a flowchart twice as wide."""
    for i, device in enumerate(devices):
        yield f"  device{i}({_quoted(device)}):::d{i}"
    if len(devices) > 1:
        yield f"  {' ~~~ '.join(f'device{i}' for i in range(len(devices)))}"


def _shape(node: NodeView) -> str:
    text = _quoted(*node_lines(node))
    return f"({text})" if node.op else f"[[{text}]]"


def _arrow(edge: EdgeView, route: str) -> str:
    lines = edge_lines(edge, route)
    return f"{_ARROW[edge.kind]}|{_quoted(*lines)}|" if lines else _ARROW[edge.kind]


def _quoted(*lines: str) -> str:
    def coded(found: re.Match[str]) -> str:
        return f"#{ord(found[0])};"

    return '"' + "<br/>".join([re.sub(r"[^\w /.,:×…\[\]+-]|_", coded, line) for line in lines]) + '"'
