"""An overview of a graph as it runs, drawn as an SVG: one band per device, time from left to right.

Operations are grouped by name scope: on each device one box for all operations with the same first ``depth``
scope parts. Each role, such as gradients, has one box with a dashed border, without edges to the model other
than transfers. Constants, Send and Recv are not drawn; a transfer between devices is a dashed edge. An
operation that owns functions has a separate box, around a picture of them.

    session, fetches -> partitions -> collapse -> lay_out -> svg_of
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from flowrt.errors import DTypeError
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.text.graph_text import labelled_functions
from flowrt.viz.compile_request import compile_request
from flowrt.viz.export import export, format_for
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.roles import NO_ROLES, Roles, inherited
from flowrt.viz.sources import Step
from flowrt.viz.view import Role

Partitions: TypeAlias = Mapping[str, Subgraph]
"""``{device: its part}``."""

MAX_BOXES = 60
"""Maximum number of boxes in a readable picture: `svg_of` collapses further until it is met."""

Key: TypeAlias = tuple[str, str]
"""The key of a box: device and scope."""

Point: TypeAlias = tuple[float, float]


class Box(NamedTuple):
    """Some operations of one device: ``nodes`` in the order they run; ``inner`` shows its functions. With a
    ``role``, its name is that role's, unless it is of one operation with functions.
    """

    device: str
    name: str
    nodes: list[Node]
    inner: Picture | None
    role: Role | None = None

    @property
    def title(self) -> str:
        is_role = self.role is not None and self.name == f"[{self.role}]"
        return self.name[1:-1].capitalize() if is_role else self.name

    @property
    def subtitle(self) -> str:
        kind = self.nodes[0].op.name
        return f"{len(self.nodes)} ops" if len(self.nodes) > 1 else {"_Feed": "fed"}.get(kind, kind)


class Picture(NamedTuple):
    """Boxes, and for each connected pair the kind of connection: "send", "data" or "control" (the first that
    applies), and the number of edges. In a picture of functions their labels replace the devices.
    """

    boxes: dict[Key, Box]
    edges: dict[tuple[Key, Key], tuple[str, int]]

    @property
    def size(self) -> int:
        """The number of boxes, including nested ones."""
        return sum(1 + (box.inner.size if box.inner else 0) for box in self.boxes.values())

    def is_drawn(self, source: Key, target: Key) -> bool:
        """Whether the edge is: nearly every layer has edges to its gradient and its optimizer."""
        (kind, _), ends = self.edges[source, target], (self.boxes[source].role, self.boxes[target].role)
        return kind == "send" or (ends[0] is None) == (ends[1] is None)


# --- content of the picture


def partitions(session_or_graph: BaseSession | Graph, fetches: Any) -> Partitions:
    """The compiled parts of the step that computes ``fetches``, with its placeholders fed; nothing runs.

    A `Graph` is placed on the devices that its operations request. Raises the errors of `Session.run`.
    """
    return _step(session_or_graph, fetches).parts("partitioned")


def _step(session_or_graph: BaseSession | Graph, fetches: Any) -> Step:
    return Step("", compile_request(session_or_graph, fetches))


def collapse(parts: Partitions, depth: int = 2, scope: str = "", roles: Roles = NO_ROLES) -> Picture:
    """One box for the operations with the same first ``depth`` scope parts after ``scope``; with depth 0, for
    those of one type. Operations with one of ``roles`` are in a box of that role.
    """
    boxes: dict[Key, Box] = {}
    for device, part in parts.items():
        for node in part:
            if node.op.name not in ("Const", "_Send", "_Recv"):
                key = device, _box_name(node, depth, scope, roles)
                if key not in boxes:
                    boxes[key] = Box(*key, [], _functions_of(node, depth), roles.get(node.name))
                boxes[key].nodes.append(node)
    edges: dict[tuple[Key, Key], tuple[str, int]] = {}
    for key, box in boxes.items():
        for node in box.nodes:
            for device, producer, kind in _producers(parts, box.device, node):
                pair = (device, _box_name(producer, depth, scope, roles)), key
                if pair[0] != key:
                    known, count = edges.get(pair, (kind, 0))
                    edges[pair] = (max(known, kind, key=_KINDS.index), count + 1)
    return Picture(boxes, edges)


_KINDS = ("control", "data", "send")


def _functions_of(node: Node, depth: int) -> Picture | None:
    functions = dict(labelled_functions(node))
    return collapse(functions, depth, f"{node.name}/") if functions else None


def _box_name(node: Node, depth: int, scope: str, roles: Roles) -> str:
    name = node.name.removeprefix(scope)
    if node.op.effect is Effect.NESTED:
        return f"{name}()"  # separate: operations of the same scope are not in its functions
    role = roles.get(node.name)
    if role is not None:
        return f"[{role}]"  # brackets: a scope may be called so
    if depth == 0:
        return node.op.name
    parts = name.split("/")
    is_handle = node.op.effect is Effect.HANDLE  # a variable's scope is its name, where its reads are
    within = parts if is_handle else parts[:-1]
    return "/".join(within[:depth]) or name


def _producers(parts: Partitions, device: str, node: Node) -> Iterator[tuple[str, Node, str]]:
    """(device, node, kind of edge) of each input of ``node``, looking through Recv and constants."""
    for name in dict.fromkeys(ref[0] for ref in node.inputs):
        yield from _origin(parts, device, name, "data")
    for name in node.controls:
        yield from _origin(parts, device, name, "control")


def _origin(parts: Partitions, device: str, name: str, kind: str) -> Iterator[tuple[str, Node, str]]:
    node = parts[device].nodes[name]
    if node.op.name == "_Recv":
        sender = node.attrs["tensor_name"].rpartition(":")[0]
        if node.attrs["send_device"] in parts:  # else it belongs to the other device's copy of a loop
            yield from _origin(parts, node.attrs["send_device"], sender, "send")
    elif node.op.name == "Const":
        for control in node.controls:
            yield from _origin(parts, device, control, kind)
    else:
        yield device, node, kind


# --- writing


def write_graph_picture(
    session_or_graph: BaseSession | Graph, fetches: Any, path: str | os.PathLike[str], depth: int = 2
) -> str:
    """Draw the step that computes ``fetches``, cut by device, into ``path``; returns ``path``. An ``.svg`` is
    drawn here, any other name by `flowrt.viz.export`.

    Raises `DTypeError` for anything but a Session or a Graph, and as `flowrt.viz.export`.
    """
    if not isinstance(session_or_graph, BaseSession | Graph):
        raise DTypeError(f"write_graph_picture: expected a Session or a Graph; got {session_or_graph!r}")
    if Path(path).suffix == ".svg":
        step = _step(session_or_graph, fetches)
        parts = step.parts("partitioned")
        Path(path).write_text(svg_of(parts, depth, inherited(parts.values(), step.roles)), "utf-8")
        return os.fspath(path)
    is_drawn = FORMATS[format_for(path)].max_boxes > 0
    return export(
        session_or_graph, path, view="partitioned", fetches=fetches, depth=depth if is_drawn else None
    )


def svg_of(parts: Partitions, depth: int, roles: Roles) -> str:
    """The text of an SVG of the collapsed parts, at most `MAX_BOXES` boxes, time from left to right, one band
    per device. Tooltips list the operations of a box.
    """
    picture = collapse(parts, depth, roles=roles)
    while picture.size > MAX_BOXES and depth > 0:
        depth -= 1
        picture = collapse(parts, depth, roles=roles)
    return _svg(picture, lay_out(picture))


# --- layout and drawing

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 150, 40, 50, 16
MARGIN, BAND_TOP, MAX_LIFT = 20, 40, 62
_COLORS = ("#dbe9f9", "#fbe5d0", "#dff1dc", "#f6dde6", "#e6e0f5", "#fdf3c8", "#d8f0ee", "#ece7e1")


class Layout(NamedTuple):
    """Positions in pixels: upper left corner and size of each box, with the layout of its contents; top and
    height of each device's band, and the total size.
    """

    corners: dict[Key, Point]
    sizes: dict[Key, Point]
    inner: dict[Key, Layout]
    bands: dict[str, tuple[float, float]]
    width: float
    height: float

    def left(self, key: Key) -> Point:
        """The middle of a box's left side."""
        return self.corners[key][0], self.corners[key][1] + self.sizes[key][1] / 2

    def right(self, key: Key) -> Point:
        x, y = self.left(key)
        return x + self.sizes[key][0], y


def lay_out(picture: Picture) -> Layout:
    """Columns by level: a box is to the right of its inputs, except in cycles.

    Within a column, the boxes of a device are ordered like their inputs, which keeps edges short, and centred
    in the device's band.
    """
    inner = {key: lay_out(box.inner) for key, box in picture.boxes.items() if box.inner}
    sizes: dict[Key, Point] = {
        key: (inner[key].width, BOX_HEIGHT + inner[key].height) if key in inner else (BOX_WIDTH, BOX_HEIGHT)
        for key in picture.boxes
    }
    columns = _columns(picture)
    stacks = _stacks(picture, columns)
    heights: dict[str, float] = {}
    for (device, _), keys in stacks.items():
        heights[device] = max(heights.get(device, 0), _stack_height(keys, sizes))
    bands: dict[str, tuple[float, float]] = {}
    top = float(MARGIN)
    for device, height in heights.items():
        bands[device] = (top, BAND_TOP + height + GAP_Y)
        top += BAND_TOP + height + 2 * GAP_Y
    lefts, width = _column_lefts(columns, sizes)
    corners: dict[Key, Point] = {}
    for (device, column), keys in stacks.items():
        y = bands[device][0] + BAND_TOP + (heights[device] - _stack_height(keys, sizes)) / 2 + GAP_Y / 2
        for key in keys:
            corners[key] = (lefts[column], y)
            y += sizes[key][1] + GAP_Y
    return Layout(corners, sizes, inner, bands, width, top - GAP_Y + MARGIN)


def _stacks(picture: Picture, columns: Mapping[Key, int]) -> dict[tuple[str, int], list[Key]]:
    """The boxes of each device and column, from top to bottom."""
    stacks: dict[tuple[str, int], list[Key]] = {}
    rows: dict[Key, float] = {}
    for column in range(max(columns.values(), default=0) + 1):
        for device in dict.fromkeys(box.device for box in picture.boxes.values()):
            keys = [key for key, at in columns.items() if at == column and key[0] == device]
            keys.sort(key=lambda key: _mean_row(picture, rows, key))
            rows.update((key, row) for row, key in enumerate(keys))
            if keys:
                stacks[device, column] = keys
    return stacks


def _stack_height(keys: Sequence[Key], sizes: Mapping[Key, Point]) -> float:
    return sum(sizes[key][1] + GAP_Y for key in keys)


def _column_lefts(columns: Mapping[Key, int], sizes: Mapping[Key, Point]) -> tuple[list[float], float]:
    """The left edge of each column, and the total width."""
    widths = [0.0] * (max(columns.values(), default=0) + 1)
    for key, column in columns.items():
        widths[column] = max(widths[column], sizes[key][0])
    lefts = [float(2 * MARGIN)]
    for width in widths:
        lefts.append(lefts[-1] + width + GAP_X)
    return lefts, lefts.pop() - GAP_X + 2 * MARGIN


def _columns(picture: Picture) -> dict[Key, int]:
    columns: dict[Key, int] = {}
    order = {key: i for i, key in enumerate(picture.boxes)}
    pending = set(picture.boxes)
    inputs: dict[Key, list[Key]] = {key: [] for key in picture.boxes}
    for source, target in picture.edges:
        inputs[target].append(source)
    while pending:  # boxes with placed inputs; in a cycle, the one with the fewest unplaced
        key = min(pending, key=lambda k: (sum(s in pending for s in inputs[k]), order[k]))
        columns[key] = max((columns[s] + 1 for s in inputs[key] if s in columns), default=0)
        pending.remove(key)
    return columns


def _mean_row(picture: Picture, rows: Mapping[Key, float], key: Key) -> float:
    known = [rows[source] for source, target in picture.edges if target == key and source in rows]
    return sum(known) / len(known) if known else 0.0


def _svg(picture: Picture, layout: Layout) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width:g} {layout.height:g}" '
        f'width="{layout.width:g}" height="{layout.height:g}" font-family="Helvetica, Arial, sans-serif">'
    )
    background = f'<rect width="{layout.width:g}" height="{layout.height:g}" fill="white"/>'
    return "\n".join([head, _STYLE, background, *_svg_parts(picture, layout), "</svg>", ""])


def _svg_parts(picture: Picture, layout: Layout) -> Iterator[str]:
    scopes = list(dict.fromkeys(box.name.split("/")[0] for box in picture.boxes.values()))
    colors = {scope: _COLORS[i % len(_COLORS)] for i, scope in enumerate(scopes)}
    for device, (top, height) in layout.bands.items():
        yield _svg_band(device, top, height, layout.width)
    for (source, target), (kind, count) in picture.edges.items():
        if picture.is_drawn(source, target):
            yield _svg_edge(layout, source, target, kind, count)
    for key, box in picture.boxes.items():
        inner = _svg_parts(box.inner, layout.inner[key]) if box.inner else ()
        yield _svg_box(box, layout.corners[key], layout.sizes[key], colors[box.name.split("/")[0]], inner)


_STYLE = """<style>
  path { fill: none; stroke: #9aa3ad; marker-end: url(#arrow) }
  path.send { stroke: #d2691e; stroke-dasharray: 6 4 }
  path.control { stroke-dasharray: 1.5 3 }
  text { fill: #24292f; font-size: 12px }
  .name, .small { text-anchor: middle }
  .small { font-size: 10px; fill: #6a737d }
  .box { stroke: #8c959f }
  .role { fill: #fff; stroke-dasharray: 4 3 }
  .band { fill: #f6f8fa; stroke: #d0d7de }
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"
  markerUnits="userSpaceOnUse"><path d="M0 0 8 4 0 8z" style="fill:#9aa3ad;stroke:none"/></marker></defs>"""


def _svg_band(device: str, top: float, height: float, width: float) -> str:
    return (
        f'<rect class="band" x="{MARGIN}" y="{top:g}" rx="8" '
        f'width="{width - 2 * MARGIN:g}" height="{height:g}"/>'
        f'<text x="{MARGIN + 12}" y="{top + 20:g}" font-weight="bold">{escape(device)}</text>'
    )


def _svg_edge(layout: Layout, source: Key, target: Key, kind: str, count: int) -> str:
    is_forward = layout.corners[source][0] < layout.corners[target][0]
    curve = (_forward if is_forward else _backward)(layout, source, target)
    points = " ".join(f"{x:g} {y:g}" for x, y in curve[1:])
    width = 1 + 0.5 * min(count - 1, 4)
    return f'<path class="{kind}" stroke-width="{width:g}" d="M{curve[0][0]:g} {curve[0][1]:g}C{points}"/>'


Curve: TypeAlias = list[Point]
"""The four points of a cubic Bézier curve."""


def _forward(layout: Layout, source: Key, target: Key) -> Curve:
    """A curve from a box's right side to another's left side, over boxes between them in the same row."""
    (x1, y1), (x2, y2) = layout.right(source), layout.left(target)
    bend = max(GAP_X, (x2 - x1) / 3)
    passed = (x2 - x1) // (BOX_WIDTH + GAP_X) if y1 == y2 else 0
    lift = min(32 + 6 * passed, MAX_LIFT) if passed > 0 else 0
    return [(x1, y1), (x1 + bend, y1 - lift), (x2 - bend, y2 - lift), (x2, y2)]


def _backward(layout: Layout, source: Key, target: Key) -> Curve:
    """A curve between the bottoms for a box further left; between facing sides for one above or below."""
    (left1, top1), (width1, height1) = layout.corners[source], layout.sizes[source]
    (left2, top2), (width2, height2) = layout.corners[target], layout.sizes[target]
    up, down = top2 + height2 + GAP_Y < top1, top2 > top1 + height1 + GAP_Y
    x1, x2 = left1 + width1 / 2, left2 + width2 / 2
    y1 = top1 if up else top1 + height1
    y2 = top2 if down else top2 + height2
    dip = 1.5 * GAP_Y
    return [(x1, y1), (x1, y1 - dip if up else y1 + dip), (x2, y2 - dip if down else y2 + dip), (x2, y2)]


def _svg_box(box: Box, corner: Point, size: Point, color: str, inner: Iterable[str]) -> str:
    listed = "\n".join(f"{node.name}: {node.op.name}" for node in box.nodes[:30])
    more = f"\n… and {len(box.nodes) - 30} more" if len(box.nodes) > 30 else ""
    (x, y), (width, height) = corner, size
    kind = "box" if box.role is None else "box role"
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    parts = [
        f"<g><title>{escape(listed + more)}</title>"
        f'<rect class="{kind}" {place} rx="6" fill="{color}"/>'
        f'<text class="name" x="{x + width / 2:g}" y="{y + 17:g}">{escape(_short(box.title))}</text>'
        f'<text class="small" x="{x + width / 2:g}" y="{y + 31:g}">{escape(_short(box.subtitle, 26))}</text>',
        *(f'<g transform="translate({x:g} {y + BOX_HEIGHT - MARGIN / 2:g})">{part}</g>' for part in inner),
        "</g>",
    ]
    return "".join(parts)


def _short(name: str, limit: int = 22) -> str:
    """The end of a long name, which is the distinctive part."""
    return name if len(name) <= limit else "…" + name[-limit + 1 :]
