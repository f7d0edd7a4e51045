"""Frames of TensorFlow 1's loops, and the nodes in each.

Rules that every graph must satisfy:

  1. All inputs and control inputs of a node are in one frame. Enter leads into the frame that it names, Exit
     out of its own; nodes without inputs are outside all frames.
  2. A frame is entered from one frame only.
  3. Only a NextIteration closes a cycle, at a Merge of its own frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node
from flowrt.graph.topology import sort_topologically
from flowrt.tf1.graph_import import v1_ops


@final
class Frame:
    """``nodes`` are those inside, including its Enters; ``exits`` the names of the Exits, which are nodes of
    the enclosing frame ``parent``. The root, outside all frames, is its own parent.
    """

    def __init__(self, name: str, parent: Frame | None) -> None:
        self.name, self.parent = name, parent or self
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nodes: dict[str, Node] = {}
        self.exits: list[str] = []

    def __repr__(self) -> str:
        return repr(self.name) if self.depth else "outside all frames"


def find_frames(nodes: Mapping[str, Node]) -> tuple[Frame, list[Frame]]:
    """The root and the frames, inner ones first. Raises `InvalidArgumentError`, with the node's name, for a
    graph that violates the rules.
    """
    root = Frame("", None)
    frames: dict[str, Frame] = {}
    place: dict[str, Frame] = {}
    for name in sort_topologically({node.name: _without_back_edges(node, nodes) for node in nodes.values()}):
        node = nodes[name]
        around = _frame_of_inputs(node, place, root)
        if node.op is v1_ops.ENTER:
            around = _entered(node, around, frames)
        elif node.op is v1_ops.EXIT:
            if around is root:
                raise located(
                    node, InvalidArgumentError("expected an Exit in a frame; got one outside all frames")
                )
            around.exits.append(name)
            around = around.parent
        place[name] = around
        around.nodes[name] = node
    for node in nodes.values():
        for name, _ in node.inputs:
            if node.op is v1_ops.MERGE and name in nodes and place[name] is not place[node.name]:
                raise _different_frames(node, name, place[name], place[node.name])
    return root, sorted(frames.values(), key=lambda frame: -frame.depth)


def _without_back_edges(node: Node, nodes: Mapping[str, Node]) -> Node:
    """``node`` with only the inputs that precede it; input_map replaces tensors not among the nodes."""
    is_merge = node.op is v1_ops.MERGE
    known = [ref for ref in node.inputs if ref[0] in nodes]
    inputs = [ref for ref in known if not (is_merge and nodes[ref[0]].op is v1_ops.NEXT_ITERATION)]
    return node.replace(inputs=tuple(inputs), controls=tuple(c for c in node.controls if c in nodes))


def _frame_of_inputs(node: Node, place: Mapping[str, Frame], root: Frame) -> Frame:
    found: Frame | None = None
    for name in (*[name for name, _ in node.inputs], *node.controls):
        if name in place and found is not None and place[name] is not found:
            raise _different_frames(node, name, place[name], found)
        found = place.get(name, found)
    return found or root


def _entered(node: Node, around: Frame, frames: dict[str, Frame]) -> Frame:
    name = node.attrs["frame_name"]
    frame = frames.setdefault(name, Frame(name, around))
    if frame.parent is not around:
        message = f"expected frame {name!r} to be entered from {frame.parent!r} only; got {around!r}"
        raise located(node, InvalidArgumentError(message))
    return frame


def _different_frames(node: Node, name: str, frame: Frame, other: Frame) -> Exception:
    message = f"expected inputs from one frame; got {name!r} ({frame!r}) and others ({other!r})"
    return located(node, InvalidArgumentError(message))
