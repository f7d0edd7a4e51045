"""The parameters of a unit are gathered into one memory, of which they are views.

    CoalescedAllGather  ->  rank i: GatherTogether(values of all ranks) -> memory
                                    TakeApart(memory) -> results, as views

This is the form for ranks in one task: one operation of a device reads the parts of all, where they are.
Between graphs the memory is written by a native collective (`native_collective`). In both cases it is one
buffer of the device's plan, from when it is gathered to the last reader of one of the views.

The parts of a rank are one behind the other, too, in its own memory, but each is read by itself, to where its
variable has that part. To gather the memories of the ranks as they are, as PyTorch's ``fully_shard`` does,
takes fewer copies, but then variables have to be copied out: of a block of a GPT, 12 variables of 3 MB on two
ranks, 239 us and 240, while the parts take 258 one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrt.graph.node import Node, TensorSpec
from flowrt.graph.ops.collective.together import gather_together_op, length_of, take_apart_op


def memory_of(specs: Sequence[TensorSpec]) -> tuple[TensorSpec]:
    """The spec of one memory for tensors of ``specs``, which have one dtype and static shapes."""
    dtype = specs[0].dtype
    return (TensorSpec(dtype, (length_of([spec.shape for spec in specs], dtype),)),)


def gathered_here(
    node: Node, rank: int, results: Sequence[TensorSpec], device: str, controls: tuple[str, ...]
) -> tuple[Node, Node]:
    """The part of ``rank``, on ``device``, in the coalesced gather ``node`` of one task: the node that makes
    the memory, after ``controls``, and the one that has its ``results`` as outputs.
    """
    name, axes = f"{node.name}/_together/rank_{rank}", node.attrs["axes"]
    attrs = {
        "M": len(node.inputs),
        "dtype": results[0].dtype,
        "axes": axes,
        "shapes": tuple(spec.shape for spec in results),
    }
    memory = Node(
        f"{name}/gather", gather_together_op, node.inputs, controls, attrs, device, node.source,
        memory_of(results),
    )  # fmt: skip
    return memory, taken_apart(f"{name}/apart", memory, (0,) * len(axes), results)


def taken_apart(
    name: str, memory: Node, axes: Sequence[int], results: Sequence[TensorSpec], wait: Node | None = None
) -> Node:
    """The ``results`` in the output of ``memory``, where each was written with its axis of ``axes`` in front;
    once ``wait`` has ended, if there is one.
    """
    attrs = {
        "N": len(results),
        "dtype": results[0].dtype,
        "axes": tuple(axes),
        "shapes": tuple(spec.shape for spec in results),
    }
    controls = () if wait is None else (wait.name,)
    return Node(
        name,
        take_apart_op,
        ((memory.name, 0),),
        controls,
        attrs,
        memory.device,
        memory.source,
        tuple(results),
    )
