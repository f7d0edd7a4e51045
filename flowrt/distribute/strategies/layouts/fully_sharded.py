"""`FullyShardedStrategy`: variables, gradients and optimizer states in parts; variables whole while in use.

    mesh = tf.distribute.Mesh([("dp", 4)])
    strategy = tf.distribute.FullyShardedStrategy(mesh, axis="dp", stage=3)
    with strategy.scope():
        ...                                                    # the model, as for one device

It is `LayoutStrategy` with a `stored` layout for every variable. The stages are those of ZeRO (Rajbhandari et
al. 2020); units, and gathering again for the backward pass, are those of FSDP (Zhao et al. 2023).

    stage   parameters          gradients               optimizer states
    0       whole               whole, AllReduce        whole
    1       whole               whole, then in parts    in parts
    2       whole               in parts, as made       in parts
    3       in parts; gathered  in parts, as made       in parts
            where needed
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

from flowrt.distribute.strategies.layouts.argument_names import known_names
from flowrt.distribute.strategies.layouts.layout_strategy import check_mesh
from flowrt.distribute.strategies.layouts.tensor_parallel import Style, TensorParallelStrategy
from flowrt.distribute.strategies.layouts.unit_places import place_units
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.errors import DTypeError, nearest
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.layouts.attributes import (
    COPY,
    HOST,
    IN_PARTS,
    LAST,
    REGATHER,
    RESIDENT,
    ROWS,
    UNIT,
    NodeLayouts,
)  # fmt: skip
from flowrt.graph.layouts.layout import REPLICATED, Entry, Layout, Shard
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.passes.layouts.join_units import Block
from flowrt.graph.precision import COMPUTE, Precision
from flowrt.graph.source import misuse
from flowrt.variables.variable import Variable

_BLOCK = re.compile(r"(?:.*?/)?[^/]*\d(?=/)")
"""The scope of a repeated block: up to the first part of a name that ends in a digit."""


class FullyShardedStrategy(TensorParallelStrategy):
    """Keeps each variable, its gradient and its optimizer's slots in parts along ``axis`` of ``mesh``.

    ``axis`` may be several, such as ``("replica", "shard")``: the batch is sharded by all of them, variables
    by the last one (HSDP). ``batch`` are the batch's axes, if there are more, such as one of time. ``stage``
    is one of the module's table. At stage 3 the variables of a *unit* are gathered at once where the first of
    them is used, and freed after their last reader; with ``reshard_after_forward`` again for the backward
    pass. ``units`` is a regular expression: variables with names that begin with equal matches are one unit.
    Others, and all without it, are joined in the order in which they are made, blocks as a whole, up to 25
    MiB. Variables below ``min_bytes`` stay whole, as do their states: a message costs more than the memory.

    ``offload`` keeps variables in host memory: ``"optimizer"`` those that are updated, with a copy on the
    devices; ``"parameters"``, at stage 3, all but the units in use; a number of bytes the same, but units
    stay on a device as long as there is room for so many bytes. ``plan`` and ``sequence`` are those of
    `TensorParallelStrategy`, along ``tensor_axis``. The other arguments are those of
    `MultiWorkerLayoutStrategy`, which it is on several workers.

    >>> strategy = FullyShardedStrategy(Mesh([("dp", 2)]), axis="dp", stage=2)
    >>> strategy.stage
    2

    Raises `InvalidArgumentError` for a stage that is none, an axis that the mesh does not have or that is one
    of time, and ``units`` that are no regular expression; and what `TensorParallelStrategy` raises.
    """

    @known_names
    def __init__(
        self,
        mesh: Mesh,
        axis: str | Sequence[str] = "dp",
        stage: int = 3,
        reshard_after_forward: bool = True,
        units: str | None = None,
        min_bytes: int = 4096,
        offload: str | int | None = None,
        plan: Mapping[str, Style] | None = None,
        tensor_axis: str = "tp",
        sequence: bool = False,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        policy: Precision | None = None,
    ) -> None:
        check_mesh(mesh, "FullyShardedStrategy")
        axes = _axes(axis)
        _check(mesh, axes, stage)
        _check_memory(stage, reshard_after_forward, min_bytes, offload)
        if plan:
            _check_tensor_axis(mesh, axes, tensor_axis)
        elif sequence is True:
            raise misuse("FullyShardedStrategy: sequence=True: expected a plan of the layers; got none")
        batch = tuple(axes) if batch is None else batch
        super().__init__(
            mesh, tensor_axis if plan else None, plan, sequence, batch, rules, cluster_resolver,
            communication_options, policy,
        )  # fmt: skip
        self.stage, self._axis, self._min_bytes = stage, mesh.axis(axes[-1]), min_bytes
        self._regathers, self._units = reshard_after_forward, _Units(_expression(units))
        self._offload = offload

    def layout_kept(self, variable: Variable, used: Layout) -> Layout:
        size = self.mesh.axes[self._axis].size
        if self.stage == 0 or size == 1 or not self._is_worth_it(variable):
            return used
        dim = _dim_to_cut(used, _shape(variable), size)
        return used if dim is None else used.with_placement(self._axis, Shard(dim))

    def attributes_kept(self, variable: Variable, layouts: NodeLayouts) -> Mapping[str, str]:
        attrs = dict(super().attributes_kept(variable, layouts))
        is_offloaded = self._offload is not None and self._is_worth_it(variable)
        if layouts.used is layouts.stored and not is_offloaded:
            return attrs
        attrs[UNIT] = self._units.of(variable)
        if is_offloaded:
            attrs[HOST] = "1"
        is_copy = self._dtype_of_copy(variable) == variable.dtype.name
        if self.stage < 3 and not is_offloaded and is_copy and _are_rows(layouts):
            attrs[ROWS] = "1"
        elif self.stage < 3:
            attrs[COPY] = self._dtype_of_copy(variable)
        elif self._offload == "optimizer":
            attrs[COPY] = f"{self._dtype_of_copy(variable)}{IN_PARTS}"
        if self.stage == 3 and self._regathers:
            attrs[REGATHER] = "1"
        if self.stage == 1:
            attrs[LAST] = "1"
        if isinstance(self._offload, int):
            attrs[RESIDENT] = str(self._offload)
        return attrs

    def settle(self, trained: Sequence[Variable] = (), states: int = 0) -> None:
        """Give each variable that has none yet a place in the memory of its unit, and the states of those of
        a unit that are ``trained`` places in another.
        """
        super().settle(trained, states)
        place_units(get_default_graph().root, self.mesh, {variable.op.name for variable in trained})

    def check_names(self, names: Collection[str]) -> None:
        super().check_names(names)
        self._units.check(names)

    def _dtype_of_copy(self, variable: Variable) -> str:
        """The name of the dtype in which products read ``variable``."""
        narrow = {} if self.policy is None else self.policy.attributes(variable.dtype)
        return narrow.get(COMPUTE, variable.dtype.name)

    def _is_worth_it(self, variable: Variable) -> bool:
        """Whether ``variable``, or its states, are large enough to be kept in parts or elsewhere."""
        has_parts = variable.trainable or self.stage == 3
        return has_parts and variable.shape.is_fully_defined() and _nbytes(variable) >= self._min_bytes


def _axes(axis: Any) -> list[str]:
    axes = [axis] if isinstance(axis, str) else axis
    if not isinstance(axes, list | tuple) or not all(isinstance(name, str) for name in axes):
        raise misuse(f"FullyShardedStrategy: expected an axis, or several; got {axis!r}")
    return list(axes)


def _check_memory(stage: int, regathers: Any, min_bytes: Any, offload: Any) -> None:
    if not isinstance(regathers, bool):
        hint = ". For parts within groups of devices: axis=('replica', 'shard')" * isinstance(regathers, int)
        raise misuse(f"FullyShardedStrategy: reshard_after_forward: expected a bool; got {regathers!r}{hint}")
    if not isinstance(min_bytes, int) or isinstance(min_bytes, bool) or min_bytes < 0:
        raise misuse(f"FullyShardedStrategy: min_bytes: expected a number of bytes; got {min_bytes!r}")
    if stage < 3 and not regathers:
        raise misuse(
            f"FullyShardedStrategy: reshard_after_forward=False: expected stage 3; got {stage}, at which "
            "nothing is gathered for the forward pass alone. SHARD_GRAD_OP is stage=3 with it, or stage=2 "
            "without"
        )
    is_bytes = isinstance(offload, int) and not isinstance(offload, bool) and offload > 0
    if not is_bytes and offload not in (None, "optimizer", "parameters"):
        raise misuse(
            "FullyShardedStrategy: offload: expected 'optimizer', 'parameters' or a number of bytes; got "
            f"{offload!r}"
        )
    if stage < 3 and offload not in (None, "optimizer"):
        raise misuse(
            f"FullyShardedStrategy: offload={offload!r}: expected stage 3; got {stage}, at which each device "
            "keeps all parameters. offload='optimizer' moves the optimizer's states"
        )
    if is_bytes and not regathers:
        raise misuse(
            f"FullyShardedStrategy: offload={offload!r}: expected reshard_after_forward=True, as units come "
            "and go within this limit; got False"
        )


def _check(mesh: Mesh, axes: Sequence[str], stage: Any) -> None:
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        raise misuse(f"FullyShardedStrategy: expected a stage from 0 to 3; got {stage!r}")
    if not axes:
        raise misuse(f"FullyShardedStrategy: expected an axis of the mesh {mesh}; got none")
    if len({*axes}) < len(axes):
        raise misuse(f"FullyShardedStrategy: axis: expected different axes; got {', '.join(axes)}")
    numbers = [mesh.axis(name, "FullyShardedStrategy: axis") for name in axes]
    if mesh.axes[numbers[-1]].is_time:
        raise misuse(
            f"FullyShardedStrategy: expected an axis of devices, on which parts of variables can be; got "
            f"{axes[-1]!r}, an axis of time of the mesh {mesh}"
        )


def _check_tensor_axis(mesh: Mesh, axes: Sequence[str], tensor_axis: Any) -> None:
    mesh.axis(tensor_axis, "FullyShardedStrategy: tensor_axis")
    if tensor_axis in axes:
        raise misuse(
            f"FullyShardedStrategy: tensor_axis: expected another axis than {', '.join(axes)}, which share "
            f"the batch; got {tensor_axis!r}. A plan divides layers among devices that have the same rows"
        )


def _are_rows(layouts: NodeLayouts) -> bool:
    """Whether what a device keeps of a variable is rows of what it uses, one behind the other."""
    used, stored = layouts
    pairs = zip(used.placements, stored.placements, strict=True)
    differing = [(one, other) for one, other in pairs if one != other]
    is_cut = any(isinstance(p, Shard) and p.dim == 0 for p in used.placements)
    return not is_cut and all(pair == (REPLICATED, Shard(0)) for pair in differing)


def _expression(units: str | None) -> re.Pattern[str] | None:
    if units is None:
        return None
    if not isinstance(units, str):
        raise misuse(
            "FullyShardedStrategy: units: expected one regular expression, such as 'l0|l1', that matches how "
            f"the names of a unit's variables begin; got {units!r}",
            DTypeError,
        )
    try:
        return re.compile(units)
    except re.error as error:
        raise misuse(
            f"FullyShardedStrategy: units: expected a regular expression; got {units!r}: {error}"
        ) from None


def _dim_to_cut(used: Layout, shape: Sequence[int], size: int) -> int | None:
    """The dimension of which each coordinate keeps a part: the first if ``size`` divides it, as its parts
    join to the whole without a copy; else the largest, of those that it divides if there are any. None if
    all are shorter or cut by another axis.
    """
    cut = {p.dim for p in used.placements if isinstance(p, Shard)}
    free = [dim for dim, length in enumerate(shape) if dim not in cut and length >= size]
    return max(
        free, key=lambda d: (shape[d] % size == 0, d == 0 and shape[d] % size == 0, shape[d]), default=None
    )


@final
class _Units:
    """The units of variables, as far as they are known before the step."""

    def __init__(self, expression: re.Pattern[str] | None) -> None:
        self._expression = expression

    def check(self, names: Collection[str]) -> None:
        """Raise `InvalidArgumentError` if the expression matches the beginning of none of ``names``."""
        pattern = self._expression
        if pattern is not None and not any(map(pattern.match, names)):
            raise misuse(
                f"FullyShardedStrategy: units: expected the name of a variable to begin with a match of "
                f"{pattern.pattern!r}; none does.{nearest(pattern.pattern, names)}"
            )

    def of(self, variable: Variable) -> str:
        """The unit of ``variable``: what matches of its name, else its block, see `join_units`."""
        name = variable.op.name
        found = None if self._expression is None else self._expression.match(name)
        if found is not None:
            return found.group()
        match = _BLOCK.match(name)
        kind = variable.dtype.name if variable.trainable else f"frozen-{variable.dtype.name}"
        return str(Block(match.group() if match else name, kind))


def _shape(variable: Variable) -> list[int]:
    return [size or 0 for size in variable.shape.as_list()]


def _nbytes(variable: Variable) -> int:
    return math.prod(_shape(variable)) * variable.dtype.size
