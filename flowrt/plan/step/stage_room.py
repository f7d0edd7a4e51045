"""`room_of`: what the devices of a pipeline have room for, as its strategy tells when it cuts stages."""

from __future__ import annotations

import math
from collections import Counter

from flowrt.graph.passes.layouts.stages.cut_stages import Room
from flowrt.graph.pipeline.replay import held_by_stages, recomputed_by_stages
from flowrt.graph.pipeline.schedules import order
from flowrt.plan.choice import Choice
from flowrt.plan.step.recorded import Recorded


def room_of(recorded: Recorded, choice: Choice) -> Room | None:
    """The room of a device for the stages of ``choice``; None if they are cut by costs alone."""
    if choice.memory is None:
        return None
    schedule = order(choice.schedule, choice.pp, choice.micro_batches, choice.chunks)
    states = max(Counter(recorded.slots.values()).values(), default=0)
    layouts, variables = dict(choice.layouts), list[tuple[str, int]]()
    for name, variable in recorded.variables.items():
        shape = [size or 1 for size in variable.shape.as_list()]
        entries = layouts.get(name, (None,) * len(shape))
        part = [-(-size // choice.tp) if entry else size for size, entry in zip(shape, entries, strict=True)]
        copies = 2 + states if variable.trainable else 1
        variables.append((name, copies * math.prod(part) * variable.dtype.size))
    parts = choice.dp * choice.micro_batches
    again = recomputed_by_stages(schedule) if choice.remat else ()
    return Room(choice.memory, held_by_stages(schedule), choice.chunks, parts, again, tuple(variables))
