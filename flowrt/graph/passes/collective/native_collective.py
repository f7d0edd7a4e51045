"""Native lowering: a rank's part of a collective as two operations, executed by its group's member.

    AllReduce  ->  rank i: _GroupStart(value), on the rank's device, in the order of the device's collectives
                           _GroupWait(value) -> result, where the result is first read

The device meanwhile runs operations that do not need the result. The value is also an input of the wait, so
its memory is not reused before then.

    CoalescedAllGather  ->  rank i: _GroupStart(values) -> memory
                                    _GroupWait(memory, values)
                                    TakeApart(memory) -> results, as views

What is gathered of several tensors is one buffer of the plan, from the start to the last reader of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.collective.collectives import coalesced_all_gather_op
from flowrt.graph.ops.collective.group_transfer import group_start_op, group_wait_op
from flowrt.graph.passes.collective.collective_call import LOCAL, Asked, edge_of, is_whole
from flowrt.graph.passes.collective.gather_together import memory_of, taken_apart
from flowrt.graph.resources.step_groups import PREFIX
from flowrt.graph.shapes import is_static


class RankPart(NamedTuple):
    """The part of one rank: ``start``, and ``wait``, which outputs the results if the rank gets some; unless
    they are in one memory: then the outputs of ``result`` are they.
    """

    start: Node
    wait: Node
    result: Node


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
    axes = node.attrs.get("axes", (what.axis,))
    memory = memory_of(specs) if node.op is coalesced_all_gather_op else ()
    member = {
        "group_key": f"{PREFIX}{size}" if key == LOCAL else key,  # the step's own, unless they joined one
        "rank": rank,
        "edge": edge_of(node, what),
        "dtype": specs[0].dtype,
        "shapes": tuple(spec.shape for spec in specs),
        "axes": axes,
        "K": len(memory),
    }
    options = {
        "kind": node.op.name,
        "reduction": node.attrs.get("reduction", ""),
        "root": what.group.root,
        "plan": plan,
        "is_whole": is_whole(node),
        "is_even": what.is_even,
    }
    device = what.devices[node.attrs["ranks"].index(rank)]
    name = f"{node.name}/_native/rank_{rank}"

    def part(
        end: str, op: OpDef, refs: Sequence[Ref], waits: tuple[str, ...], attrs: dict[str, Any], outputs: Any
    ) -> Node:
        more = {**member, **attrs, "M": len(refs)}
        return Node(f"{name}/{end}", op, tuple(refs), waits, more, device, node.source, tuple(outputs))

    start = part("start", group_start_op, given, controls, options, memory)
    kept, direct = [*[(start.name, i) for i in range(len(memory))], *given], () if memory else results
    wait = part("wait", group_wait_op, kept, (start.name,), {"N": len(direct)}, direct)
    return RankPart(start, wait, taken_apart(f"{name}/apart", start, axes, results, wait) if memory else wait)
