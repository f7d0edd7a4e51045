"""Native lowering: a rank's part of a collective as two operations, executed by its group's member.

    AllReduce  ->  rank i: _GroupStart(value), on the rank's device, in the order of the device's collectives
                           _GroupWait(value) -> result, where the result is first read

The device meanwhile runs operations that do not need the result. The value is also an input of the wait, so
its memory is not reused before then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.collective.group_transfer import group_start_op, group_wait_op
from flowrt.graph.passes.collective.collective_call import LOCAL, Asked, edge_of, is_whole
from flowrt.graph.resources.step_groups import PREFIX
from flowrt.graph.shapes import is_static


class RankPart(NamedTuple):
    """The part of one rank: ``start``, and ``wait``, which outputs the result if the rank gets one."""

    start: Node
    wait: Node


def rank_part(
    node: Node,
    rank: int,
    what: Asked,
    given: Sequence[Ref],
    results: Sequence[TensorSpec],
    controls: tuple[str, ...],
    plan: str,
) -> RankPart:
    """The part of ``rank`` in the collective ``node``, with inputs ``given`` and outputs ``results``: none,
    one, or all of a coalesced one. The start runs after ``controls`` and carries the ``plan``.
    """
    specs = results or [what.payload]
    for spec in specs:
        if not is_static(spec.shape):
            raise InvalidArgumentError(f"native: expected results of a static shape; got {spec}")
    key, size = node.attrs["group_key"], node.attrs["group_size"]
    member = {
        "group_key": f"{PREFIX}{size}" if key == LOCAL else key,  # the step's own, unless they joined one
        "rank": rank,
        "edge": edge_of(node, what),
        "dtype": specs[0].dtype,
        "shapes": tuple(spec.shape for spec in specs),
        "M": len(given),
    }
    options = {
        "kind": node.op.name,
        "reduction": node.attrs.get("reduction", ""),
        "root": what.group.root,
        "axes": node.attrs.get("axes", (what.axis,)),
        "plan": plan,
        "is_whole": is_whole(node),
        "is_even": what.is_even,
    }
    device = what.devices[node.attrs["ranks"].index(rank)]

    def part(name: str, op: OpDef, waits: tuple[str, ...], attrs: dict[str, Any], outputs: Any) -> Node:
        full_name = f"{node.name}/_native/rank_{rank}/{name}"
        return Node(full_name, op, tuple(given), waits, {**member, **attrs}, device, node.source, outputs)

    start = part("start", group_start_op, controls, options, ())
    return RankPart(start, part("wait", group_wait_op, (start.name,), {"N": len(results)}, tuple(results)))
