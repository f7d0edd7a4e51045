"""What a worker has compiled, told to who looks at it.

describe_worker --DescribeGraphs--> worker --describe_parts--> GraphDescriptions --> subgraphs
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrt.distribute.messages import MAX_GRAPH_BYTES, Message
from flowrt.distribute.part import CompiledPart
from flowrt.errors import ResourceExhaustedError
from flowrt.graph.detached import detach_constants
from flowrt.graph.node import Subgraph
from flowrt.graph.text import parse_subgraph, print_subgraph
from flowrt.protos import cluster_pb2 as pb


def describe_parts(task: str, parts: Sequence[CompiledPart]) -> Message:
    """The answer of ``task``. Raises `ResourceExhaustedError` where the texts are too long for a message."""
    texts = [print_subgraph(detach_constants(part.plan.placed)[0]).encode() for part in parts]
    size = sum(map(len, texts))
    if size > MAX_GRAPH_BYTES:
        raise ResourceExhaustedError(
            f"task {task}: expected graphs of at most {MAX_GRAPH_BYTES} bytes of text; got {size}"
        )
    return Message(pb.GraphDescriptions(task=task, graphs=texts))


def read_descriptions(answer: Message) -> tuple[str, list[Subgraph]]:
    """The task, and the parts that it has compiled: placed, with a _Feed where a large constant was."""
    return answer.body.task, [parse_subgraph(text.decode()) for text in answer.body.graphs]
