"""`PipelineStrategy`: a model in stages, each on devices of its own, through which micro-batches pass.

    mesh = tf.distribute.Mesh([("pp", 4)])
    strategy = tf.distribute.PipelineStrategy(mesh, axis="pp", micro_batches=8, schedule="1f1b")
    with strategy.scope():
        for i, block in enumerate(blocks):
            with tf.distribute.stage(i * 4 // len(blocks)):
                h = block(h)

The script builds one graph of the whole batch; losses and gradients are those of one device. The strategy
only gives stages to operations, and the batch an axis of time: its turns are the micro-batches. The passes
place, cut and order the step (`flowrt.graph.passes.layouts`, `flowrt.graph.pipeline`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.distribute.strategies.layouts.argument_names import known_names
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutExtended, check_mesh
from flowrt.distribute.strategies.layouts.multi_worker_layouts import MultiWorkerLayoutExtended
from flowrt.distribute.strategies.layouts.tensor_parallel import Style, TensorParallelStrategy
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.dtypes import variant
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, nearest
from flowrt.graph.construction.graph import Graph, Operation, get_default_graph
from flowrt.graph.layouts.attributes import FOUND, MESH, REMAT, SCHEDULE, STAGE, NodeLayouts, layouts_of
from flowrt.graph.layouts.layout import Entry, Layout
from flowrt.graph.layouts.mesh import Axis, Mesh, parse_mesh
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.stages.assign_stages import (
    assign_stages,
    backward_nodes,
    nodes_of_batch,
    stage_of,
)
from flowrt.graph.passes.layouts.stages.cut_stages import Room, cut_stages
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.mesh_schedule import schedule_on, turns_of
from flowrt.graph.pipeline.replay import held_by_stages, recomputed_by_stages
from flowrt.graph.pipeline.schedule_file import format_schedule
from flowrt.graph.pipeline.schedules import TABLE
from flowrt.graph.pipeline.search import AUTO, best_schedule
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.variables.distribution_context import layout_strategy
from flowrt.variables.variable import GraphKeys, Variable

MIB = 1 << 20
MICRO = "micro"
"""The axis of time that the strategy adds to the mesh."""

_ACTIONS = re.compile(r"\s*\d*[FBIW]\d+(\s|$)")
"""A line of a schedule begins so."""


class PipelineStrategy(TensorParallelStrategy):
    """Computes a model in stages along ``axis`` of ``mesh``, each micro-batch one after the other.

    The batch is cut into ``micro_batches`` parts, and each of these by the axes ``batch``. ``schedule`` is
    one of naive, gpipe, 1f1b, interleaved, zb_h1, zb_h2 and zbv; ``"auto"``, the fastest for passes that take
    equal times; the path of a file; or such a file's text, a line per device
    (`flowrt.graph.pipeline.schedule_file`). There are as many stages as positions on ``axis``, times
    ``chunks``.

    ``stages`` says where a stage begins: ``"auto"`` by `stage`, and without it by costs; or a list with a
    name scope for each stage, or several. The rest of a script follows: an operation outside is at the stage
    of its inputs. With ``remat="stage"`` the backward pass of a stage computes its forward pass again, so
    that of a micro-batch only what arrives at the stage is kept. ``plan`` and ``sequence`` are those of
    `TensorParallelStrategy` along ``tensor_axis``; the other arguments are those of
    `MultiWorkerLayoutStrategy`, which it is on several workers.

    >>> strategy = PipelineStrategy(Mesh([("pp", 2)]), micro_batches=4, schedule="gpipe")
    >>> strategy.schedule.stages
    2

    Raises `InvalidArgumentError` for an axis that is none or one of time, a mesh with an axis of time, a
    schedule that is none or does not fit, and what `TensorParallelStrategy` raises.
    """

    @known_names
    def __init__(
        self,
        mesh: Mesh,
        axis: str = "pp",
        micro_batches: int = 1,
        schedule: str | os.PathLike[str] = "1f1b",
        chunks: int | None = None,
        stages: str | Sequence[str | Sequence[str]] = "auto",
        remat: str | None = None,
        plan: Mapping[str, Style] | None = None,
        tensor_axis: str = "tp",
        sequence: bool = False,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        policy: Precision | None = None,
        memory_limit_mb: float | None = None,
    ) -> None:
        check_mesh(mesh, "PipelineStrategy")
        staged = _staged(mesh, axis, micro_batches)
        text, where = _text_of(schedule, chunks, staged)
        try:
            self.schedule = schedule_on(staged, text)
        except InvalidArgumentError as error:
            raise misuse(f"PipelineStrategy: {where}{error.message}") from None
        self._scopes = _scopes_of(stages, self.schedule.stages)
        if remat not in (None, "stage"):
            raise misuse(f"PipelineStrategy: remat: expected None or 'stage'; got {remat!r}")
        if memory_limit_mb is not None and not (
            _is_number(memory_limit_mb, int | float) and memory_limit_mb > 0
        ):
            what = "memory_limit_mb: expected MiB of a device, above 0"
            raise misuse(f"PipelineStrategy: {what}; got {memory_limit_mb!r}")
        self._limit = None if memory_limit_mb is None else int(memory_limit_mb * MIB)
        self.kept = {SCHEDULE: text, **({} if remat is None else {REMAT: remat})}
        """Further attributes of variables and inputs."""
        axes = () if batch is None else tuple(batch) if isinstance(batch, list | tuple) else (batch,)
        self._batch_axes = (MICRO, *axes)
        super().__init__(
            staged, tensor_axis if plan else None, plan, sequence, self._batch_axes, rules, cluster_resolver,
            communication_options, policy,
        )  # fmt: skip

    def attributes_kept(self, variable: Variable, layouts: NodeLayouts) -> Mapping[str, str]:
        return {**super().attributes_kept(variable, layouts), **self.kept}

    def settle(self, trained: Sequence[Variable] = (), states: int = 0) -> None:
        """Give a stage to each variable, and each list, as equal ones of two stages would become one; and to
        each operation, by costs, if the script names none.

        Raises `InvalidArgumentError` if a step that trains leaves a stage without operations, and
        `ResourceExhaustedError` if no stages fit in the memory of the devices.
        """
        graph = get_default_graph().root
        handles = [graph.operations[name] for name in self.extended.names if name in graph.operations]
        step = whole_graph(graph)
        if not any(stage_of(node.attrs) is not None for node in step):
            room = None if self._limit is None else self._room(self._limit, handles, states)
            for name, number in cut_stages(step, self.schedule.stages, room).items():
                _set_stage(graph.operations[name], number)
            step = whole_graph(graph)
        found = assign_stages(step)
        self._check(step, found)
        lists = [op for op in graph.get_operations() if any(t.dtype == variant for t in op.outputs)]
        for op in (*handles, *lists):
            if stage_of(op.node.attrs) is None:
                _set_stage(op, found[op.name])

    def _room(self, limit: int, handles: Sequence[Operation], states: int) -> Room:
        """The room of devices of ``limit`` bytes, if each trained variable has so many ``states``."""
        trained = {v.op.name for v in get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)}
        nbytes: list[tuple[str, int]] = []
        for op in handles:
            attrs, copies = op.node.attrs, 2 + states if op.name in trained else 1  # the value, its gradient
            mesh = parse_mesh(attrs[MESH])
            layouts = layouts_of(attrs, mesh)
            assert layouts is not None
            part = layouts.stored.local_shape(attrs["shape"], (0,) * len(mesh.axes))
            nbytes.append((op.name, copies * math.prod(part) * attrs["dtype"].size))
        schedule, sizes = self.schedule, {axis.name: axis.size for axis in self.mesh.axes}
        parts = math.prod(sizes[name] for name in self._batch_axes)
        again = recomputed_by_stages(schedule) if REMAT in self.kept else ()
        return Room(limit, held_by_stages(schedule), schedule.chunks, parts, again, tuple(nbytes))

    def _check(self, step: Subgraph, stages: Mapping[str, int]) -> None:
        """Raise `InvalidArgumentError` if ``step`` trains, and a stage or a scope has no operation."""
        backward = backward_nodes(step)
        if not backward:
            return
        for scope in itertools.chain(*self._scopes):
            if not any(_is_in(name, scope) for name in step.nodes):
                hint = nearest(scope, {name.partition("/")[0] for name in step.nodes})
                what = "expected the name scope of an operation"
                raise misuse(f"PipelineStrategy: stages: {what}; got {scope!r}.{hint}")
        found = {stages[name] for name in nodes_of_batch(step) - backward}
        absent = [number for number in range(self.schedule.stages) if number not in found]
        if absent:
            raise misuse(
                f"PipelineStrategy: expected operations at each of {self.schedule.stages} stages; got none "
                f"at stage {absent[0]}. A script that marks stages marks the first one, too"
            )

    def _extended_over(self, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry]) -> LayoutExtended:
        if self._is_alone:
            return PipelineExtended(self, mesh, batch, rules)
        return MultiWorkerPipelineExtended(self, mesh, batch, rules, self._worker)

    def stage_at(self, name: str) -> str:
        """The stage of a new operation with this name: that of its name scope, or to be found."""
        for number, scopes in enumerate(self._scopes):
            if any(_is_in(name, scope) for scope in scopes):
                return str(number)
        return FOUND


class PipelineExtended(LayoutExtended):
    """Gives stages to operations, besides layouts."""

    strategy: PipelineStrategy
    stage: int | None = None
    """The stage of operations that are made now; None outside `stage`."""

    def attributes_of_new(self, op: Operation) -> Mapping[str, Any]:
        attrs = super().attributes_of_new(op)
        text = self.strategy.stage_at(op.name) if self.stage is None else str(self.stage)
        return {**attrs, STAGE: text}

    def attributes_of_input(self) -> dict[str, Any]:
        return {**super().attributes_of_input(), **self.strategy.kept}


class MultiWorkerPipelineExtended(PipelineExtended, MultiWorkerLayoutExtended):
    """The same on several workers."""


@contextlib.contextmanager
def stage(index: int) -> Iterator[None]:
    """Operations made inside are at the stage ``index`` of the `PipelineStrategy` of the scope.

    >>> with strategy.scope(), stage(1):
    ...     h = tf.layers.dense(h, 64)

    Raises `FailedPreconditionError` outside such a scope, `InvalidArgumentError` for a stage that is none.
    """
    strategy = layout_strategy()
    if not isinstance(strategy, PipelineStrategy):
        got = "none" if strategy is None else f"that of {strategy!r}"
        raise misuse(f"stage: expected the scope of a PipelineStrategy; got {got}", FailedPreconditionError)
    count = strategy.schedule.stages
    if not _is_number(index, int | np.integer) or not 0 <= index < count:
        raise misuse(f"stage: expected an integer from 0 to {count - 1}, of {count} stages; got {index!r}")
    extended = strategy.extended
    assert isinstance(extended, PipelineExtended)
    outer, extended.stage = extended.stage, int(index)
    try:
        yield
    finally:
        extended.stage = outer


def whole_graph(graph: Graph) -> Subgraph:
    """All operations of ``graph``, without feeds and fetches."""
    return Subgraph({op.name: op.node for op in graph.get_operations()}, (), (), ())


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_in(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope}/")


def _set_stage(op: Operation, number: int) -> None:
    op.mutate(attrs={**op.node.attrs, STAGE: str(number)})


def _staged(mesh: Mesh, axis: Any, micro_batches: Any) -> Mesh:
    """``mesh`` with ``axis`` as that of stages, and turns for the micro-batches."""
    if type(micro_batches) is not int or micro_batches < 1:
        raise misuse(f"PipelineStrategy: micro_batches: expected an integer >= 1; got {micro_batches!r}")
    names = [each.name for each in mesh.axes]
    times = [each.name for each in mesh.axes if each.is_time]
    if times or mesh.stages is not None:
        raise misuse(
            "PipelineStrategy: expected a mesh with axes of devices only, as axis says which is that of "
            f"stages and micro_batches the number of turns; got the mesh {mesh}"
        )
    if axis not in names:
        hint = nearest(str(axis), names)
        raise misuse(f"PipelineStrategy: axis: expected one of the mesh {mesh}; got {axis!r}.{hint}")
    if MICRO in names:
        raise misuse(
            f"PipelineStrategy: expected another name than {MICRO!r}, which is that of the micro-batches, "
            f"for an axis of the mesh {mesh}"
        )
    return mesh.staged(axis).with_turns(Axis(MICRO, micro_batches, is_time=True))


def _text_of(schedule: Any, chunks: Any, mesh: Mesh) -> tuple[str, str]:
    """The text that a graph over ``mesh`` has of ``schedule``, and in errors the name of its file."""
    if chunks is not None and (type(chunks) is not int or chunks < 1):
        raise misuse(f"PipelineStrategy: chunks: expected an integer >= 1; got {chunks!r}")
    if isinstance(schedule, str) and schedule in TABLE:
        return schedule if chunks is None else f"{schedule} {chunks}", ""
    if schedule == AUTO:
        return format_schedule(best_schedule(len(mesh.positions), turns_of(mesh), chunks=chunks or 1)), ""
    if chunks is not None:
        raise misuse(
            f"PipelineStrategy: chunks: expected None, as the actions of a schedule tell; got {chunks!r}"
        )
    if isinstance(schedule, str) and ("\n" in schedule or _ACTIONS.match(schedule)):
        return f"{schedule}\n", ""
    if isinstance(schedule, Schedule):
        raise misuse(
            f"PipelineStrategy: schedule: expected text; got the Schedule {schedule.name!r}. "
            "format_schedule(schedule) gives its text"
        )
    return _text_in(schedule), f"{os.fspath(schedule)}: "


def _text_in(path: Any) -> str:
    """The text of the file ``path``."""
    names = [*TABLE, AUTO]
    try:
        with open(os.fspath(path), encoding="utf-8") as file:
            return file.read().rstrip() + "\n"
    except FileNotFoundError:
        why = f", which is no file either.{nearest(os.fspath(path).lower(), names)}"
    except (OSError, TypeError, ValueError) as error:  # ValueError: of bytes that are no text
        why = f": {error}"
    raise misuse(
        f"PipelineStrategy: schedule: expected one of {', '.join(names)}, or a line of actions per device, "
        f"as text or in a file; got {path!r}{why}"
    )


def _scopes_of(stages: Any, count: int) -> list[list[str]]:
    """The name scopes of each stage; none if they are to be found."""
    if stages == "auto":
        return []
    listed = stages if isinstance(stages, list | tuple) else []
    found = [list(each) if isinstance(each, list | tuple) else [each] for each in listed]
    if len(found) != count or not all(isinstance(scope, str) for each in found for scope in each):
        raise misuse(
            f"PipelineStrategy: stages: expected 'auto', or a name scope, or several, for each of {count} "
            f"stages; got {stages!r}"
        )
    scopes = [[scope.rstrip("/") for scope in each] for each in found]
    every = [*itertools.chain(*scopes)]
    twice = [scope for scope in dict.fromkeys(every) if every.count(scope) > 1]
    if twice:
        raise misuse(f"PipelineStrategy: stages: expected each name scope once; got {twice[0]!r} again")
    return scopes
