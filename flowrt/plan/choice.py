"""`Choice`: the decisions of a plan, as data, and the strategy that carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.distribute.strategies.layouts.fully_sharded import FullyShardedStrategy
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutStrategy
from flowrt.distribute.strategies.layouts.multi_worker_layouts import MultiWorkerLayoutStrategy
from flowrt.distribute.strategies.layouts.pipeline import MIB, PipelineStrategy
from flowrt.errors import nearest
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.pipeline.schedules import TABLE
from flowrt.graph.precision import Precision

Entries: TypeAlias = tuple[str | None, ...]

TURN = "turn"
"""The axis of time along which gradients are accumulated without a pipeline."""


@final
@dataclass(frozen=True)
class Choice:
    """A mesh of ``pp`` x ``dp`` x ``tp`` devices: stages of a pipeline, parts of the batch, parts of layers.

    >>> Choice(dp=4, tp=2).devices
    8
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    """Parts of the batch that follow each other in time."""
    schedule: str = "1f1b"
    """The schedule of the pipeline."""
    chunks: int = 1
    """The stages that each device of the pipeline has."""
    sharding: int = 0
    """The stage of `FullyShardedStrategy`; 0 in a pipeline."""
    remat: bool = False
    """Whether the backward pass computes the forward pass of a stage again."""
    layouts: tuple[tuple[str, Entries], ...] = ()
    """The layouts of variables that ``tp`` shards, by whole names."""
    memory: int | None = None
    """The bytes of a device, if the stages of the pipeline are cut so that they fit, not by costs alone."""

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def stages(self) -> int:
        """The stages of the pipeline, 1 without one."""
        return self.pp * self.chunks

    def strategy(
        self, devices: Sequence[str] | None = None, policy: Precision | None = None
    ) -> LayoutStrategy:
        """The strategy, over ``devices`` or all of a session."""
        spans = [("pp", self.pp), ("dp", self.dp), ("tp", self.tp)]
        axes: list[Any] = [(name, size) for name, size in spans if size > 1] or [("dp", 1)]
        over = "dp" if ("dp", self.dp) in axes else None
        found: LayoutStrategy
        if self.pp > 1:
            found = PipelineStrategy(
                Mesh(axes, devices), "pp", self.micro_batches, self.schedule,
                chunks=self.chunks if self.chunks > 1 else None, batch=over,
                remat="stage" if self.remat else None, policy=policy,
                memory_limit_mb=None if self.memory is None else self.memory / MIB,
            )  # fmt: skip
        else:
            turns = [Axis(TURN, self.micro_batches, is_time=True)] if self.micro_batches > 1 else []
            mesh = Mesh([*axes, *turns], devices)
            batch = tuple(filter(None, (over, TURN if turns else None))) or None
            if over and self.sharding:
                found = FullyShardedStrategy(mesh, over, self.sharding, batch=batch, policy=policy)
            else:
                found = MultiWorkerLayoutStrategy(mesh, batch, policy=policy)
        found.variable_layouts(dict(self.layouts))
        return found


class Mistake(NamedTuple):
    """A field of a choice that does not fit the others: what was expected there, and what came."""

    field: str
    expected: str
    got: Any


def mistake_of(choice: Choice) -> Mistake | None:
    """The first mistake in ``choice``; None if it is a strategy.

    >>> mistake_of(Choice(dp=2, sharding=7))
    Mistake(field='sharding', expected='0, 1, 2 or 3', got=7)
    """
    if choice.schedule not in TABLE:
        hint = nearest(choice.schedule, TABLE)
        return Mistake("schedule", f"one of {', '.join(TABLE)}{hint}", choice.schedule)
    if choice.sharding > 3:
        return Mistake("sharding", "0, 1, 2 or 3", choice.sharding)
    if choice.sharding and (choice.pp > 1 or choice.dp == 1):
        return Mistake("sharding", "0, as there is a pipeline or only one part of the batch", choice.sharding)
    if choice.pp == 1:
        for field, default in (("chunks", 1), ("remat", False), ("memory", None)):
            if getattr(choice, field) != default:
                expected = f"{default!r}, as there is no pipeline (pp=1)"
                return Mistake(field, expected, getattr(choice, field))
    elif choice.chunks not in (allowed := TABLE[choice.schedule].chunks):
        expected = f"{allowed[0]} with the schedule {choice.schedule}"
        return Mistake("chunks", f"{expected}, or more" if len(allowed) > 1 else expected, choice.chunks)
    known = {None, "tp"} if choice.tp > 1 else {None}
    for name, entries in choice.layouts:
        if not known.issuperset(entries):
            expected = "axes tp or null" if choice.tp > 1 else "axes null, as tp is 1"
            return Mistake(f"layouts.{name}", expected, list(entries))
    return None
