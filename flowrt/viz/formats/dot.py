"""DOT: text for Graphviz. One cluster per group, one box per operation, dashed edges across devices.

The language: https://graphviz.org/doc/info/lang.html. No text of a graph is markup: texts are quoted strings,
and dot's escape characters in them are doubled. SVG is drawn from this text by Graphviz.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from flowrt.errors import DeadlineExceededError, InternalError, UnavailableError
from flowrt.viz.formats.picture import Picture, edge_lines, heading, node_lines, route_of
from flowrt.viz.from_parts import is_full
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, GroupKind, GroupView, NodeView, is_stage

PALETTE = (
    "#cfe2f7", "#fbdfc3", "#d5ecd0", "#f4d3e0", "#ded5f2", "#fbeeb3", "#c9e9e6", "#e3dccf",
)  # fmt: skip
"""Colours of devices, in the order of their appearance; light enough for black text."""

_HEAD = """digraph flowrt {{
  graph [label={title}, labelloc=t, fontname="Helvetica", fontsize=14, rankdir=TB]
  graph [newrank=true, ranksep=0.22, nodesep=0.4, labeljust=l]
  node [shape=box, style="rounded,filled", fillcolor=white, color="#6e7781"]
  node [fontname="Helvetica", fontsize=11]
  edge [color="#6e7781", fontname="Helvetica", fontsize=11, arrowsize=0.7]"""

_EDGE = {
    EdgeKind.DATA: "",
    EdgeKind.CONTROL: 'style=dotted, arrowhead=open, color="#a0a7b0"',
    EdgeKind.TRANSFER: 'style=dashed, color="#bc4c00", fontcolor="#bc4c00", weight=0',
}
"""Transfers have no weight: they go around the boxes, which stand as their device's own edges want it."""

COLLECTIVES = {
    "AllReduce": "#cf222e", "AllGather": "#0969da", "ReduceScatter": "#8250df", "AllToAll": "#9a6700",
    "Slice": "#1a7f37", "Send": "#bc4c00",
}  # fmt: skip
"""Colours of edges by the redistribution on them, as on the HTML page (``page/layouts.css``)."""

_GROUP = {
    GroupKind.DEVICE: 'style="rounded", color="#57606a", penwidth=1.5, fontname="Helvetica-Bold"',
    GroupKind.SCOPE: 'style="rounded,filled", color="#d0d7de", fillcolor="#00000008", fontname="Helvetica"',
    GroupKind.FUNCTION: 'style="rounded,dashed", color="#8250df", fontcolor="#8250df", fontname="Helvetica"',
    GroupKind.SERIES: 'style="rounded", color="#8c959f", fontname="Helvetica"',
    GroupKind.ROLE: 'style="rounded,dotted", color="#57606a", fontname="Helvetica-Bold"',
}


def encode_dot(picture: Picture) -> bytes:
    """``picture.view`` as text in UTF-8."""
    return "\n".join([*_lines(heading(picture), picture.view), ""]).encode("utf-8", "backslashreplace")


def _lines(title: str, view: GraphView) -> Iterator[str]:
    yield _HEAD.format(title=_quoted(title))
    ids = {name: f"n{i}" for i, name in enumerate(view.nodes)}
    colors = device_colors(view)
    clusters = {name: f"cluster_{i}" for i, name in enumerate(view.groups)}
    members: dict[str, list[NodeView]] = {}
    for node in view.nodes.values():
        members.setdefault(node.group, []).append(node)
    inner: dict[str, list[GroupView]] = {}
    for group in view.groups.values():
        inner.setdefault(group.parent, []).append(group)

    def box(name: str, indent: str) -> Iterator[str]:
        for node in members.get(name, ()):
            yield f"{indent}{ids[node.name]} [{_node(node, colors)}]"
        for group in inner.get(name, ()):
            yield f"{indent}subgraph {clusters[group.name]} {{"
            yield f"{indent}  graph [label={_quoted(group.label)}, {_GROUP[group.kind]}]"
            yield from box(group.name, indent + "  ")
            yield f"{indent}}}"

    yield from box("", "  ")
    if not any(group.kind is GroupKind.DEVICE for group in view.groups.values()):
        yield from _legend(colors)
    route = route_of(view)
    for edge in view.edges:
        yield f"  {ids[edge.source]} -> {ids[edge.target]} [{_edge(edge, route)}]"
    yield "}"


def device_colors(view: GraphView) -> dict[str, str]:
    """One colour per device, or stage; none where nothing was placed."""
    on = (device for node in view.nodes.values() for device in (node.device, *node.devices))
    devices = dict.fromkeys(device for device in on if is_full(device) or is_stage(device))
    return {device: PALETTE[i % len(PALETTE)] for i, device in enumerate(devices)}


def _legend(colors: Mapping[str, str]) -> Iterator[str]:
    """A legend of the devices' colours, if devices are not boxes."""
    if not colors:
        return
    yield "  subgraph cluster_devices {"
    yield f'    graph [label="devices", {_GROUP[GroupKind.SERIES]}]'
    for i, (device, color) in enumerate(colors.items()):
        yield f'    device{i} [label={_quoted(device)}, fillcolor="{color}"]'
    yield "  }"


def _node(node: NodeView, colors: Mapping[str, str]) -> str:
    facts = [f"label={_quoted(*node_lines(node))}", f"tooltip={_quoted(node.name, node.device, node.source)}"]
    if node.device in colors:
        facts.append(f'fillcolor="{colors[node.device]}"')
    stripes = ":".join([colors[device] for device in node.devices if device in colors])
    if stripes:
        facts.append(f'penwidth=2, style="striped", fillcolor="{stripes}"')
    elif not node.op:
        facts.append('penwidth=2, shape=box3d, style="filled"')
    return ", ".join(facts)


def _edge(edge: EdgeView, route: str) -> str:
    facts = [_EDGE[edge.kind]] if _EDGE[edge.kind] else []
    if edge.moves:
        color = COLLECTIVES[max(edge.moves, key=lambda move: move.nbytes).collective]
        facts.append(f'color="{color}", fontcolor="{color}"')
    lines = edge_lines(edge, route)
    if lines:
        facts.append(f"label={_quoted(*lines)}")
    if edge.kind is EdgeKind.TRANSFER:
        tensor = "" if edge.facts is None else str(edge.facts)
        facts.append(f"tooltip={_quoted(edge.tensor, tensor, edge.transport)}")
    if edge.num_edges > 1:
        facts.append(f"penwidth={min(1 + edge.num_edges / 4, 4):g}")
    return ", ".join(facts)


def _quoted(*lines: str) -> str:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for line in lines if line]
    return '"' + "\\n".join(escaped) + '"'


DOT = "dot"

MAX_S = 120
"""Seconds that a drawing may take."""


def find_dot() -> str:
    """The path of Graphviz's ``dot``. Raises `UnavailableError` if it is not installed."""
    program = shutil.which(DOT)
    if program is None:
        raise UnavailableError(
            "svg: expected Graphviz's command 'dot' on PATH; got none. Install the package graphviz, or"
            " use html or dot, which do not need it"
        )
    return program


def encode_svg(picture: Picture) -> bytes:
    """``picture.view`` as an SVG file.

    Raises `UnavailableError` without Graphviz, and `DeadlineExceededError` after `MAX_S` seconds.
    """
    program = find_dot()
    try:
        drawn = subprocess.run(
            [program, "-Tsvg"], input=encode_dot(picture), capture_output=True, timeout=MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        hint = "--depth and --focus reduce the drawing"
        count = len(picture.view.nodes)
        raise DeadlineExceededError(
            f"svg: expected dot to draw {count} boxes within {MAX_S} s; it was stopped. {hint}"
        ) from None
    if drawn.returncode or not drawn.stdout:
        raise InternalError(f"svg: dot ended with status {drawn.returncode}: {drawn.stderr.decode()[:400]}")
    return _titles_last(drawn.stdout.decode()).encode()


_TITLE = re.compile(r'(<g id="clust\d+" class="cluster">(?:(?!</g>).)*?)(<text .*?</text>)\n', re.DOTALL)
_ON_WHITE = '<g class="titles" paint-order="stroke" stroke="#fff" stroke-width="4">'


def _titles_last(svg: str) -> str:
    """``svg`` with the titles of groups, which dot draws first, over the edges that pass there."""
    titles = [title for _, title in _TITLE.findall(svg)]
    graph, end, rest = _TITLE.sub(r"\1", svg).rpartition("</g>")
    return "\n".join([f"{graph}{_ON_WHITE}", *titles, "</g>", f"{end}{rest}"])
