"""`TensorParallelStrategy`: layers with weights that the devices of one axis share, by name.

    strategy = tf.distribute.TensorParallelStrategy(mesh, plan={
        r".*/(query|key|value|up)/kernel": "column",
        r".*/(output|down)/kernel": "row",
        r"words": "vocab"}, batch="dp")

A product with a column-parallel kernel gives each device some of the hidden units, or heads; the row-parallel
kernel after it takes them as they are, and the products are added up: one AllReduce in the forward pass, and
one in the backward pass, for such a pair (Shoeybi et al. 2019, Megatron-LM).

With ``sequence=True`` the sums are not made whole but in parts of dimension 1, the sequence, of a tensor
``[batch, sequence, ...]``. What follows, up to the next column-parallel product, is computed on these parts:
biases, dropout, residual sums and norms. An AllReduce becomes a ReduceScatter and an AllGather, of as many
bytes, and activations take less memory (Korthikanti et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias, final

from flowrt.distribute.strategies.layouts.argument_names import known_names
from flowrt.distribute.strategies.layouts.layout_strategy import (
    Entries,
    by_expression,
    check_matched,
    check_mesh,
    first_match,
)
from flowrt.distribute.strategies.layouts.multi_worker_layouts import MultiWorkerLayoutStrategy
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.graph.layouts.attributes import SUMMED, NodeLayouts
from flowrt.graph.layouts.layout import Entry, format_layout, layout_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.variables.variable import Variable

Style: TypeAlias = Literal["column", "row", "vocab"]

SEQUENCE = 1
"""The dimension of the sequence, in tensors [batch, sequence, ...]."""


def _column(rank: int, axis: str) -> Entries:
    return [*[None] * (rank - 1), axis]


def _row(rank: int, axis: str) -> Entries:
    """A bias is whole: it is added to the sum."""
    return [*[None] * (rank - 2), axis, None] if rank > 1 else [None]


def _vocab(rank: int, axis: str) -> Entries:
    return [axis, *[None] * (rank - 1)]


_LAYOUTS: Mapping[str, Callable[[int, str], Entries]] = {"column": _column, "row": _row, "vocab": _vocab}


class TensorParallelStrategy(MultiWorkerLayoutStrategy):
    """A `LayoutStrategy` that shards the variables which ``plan`` names by ``axis`` of ``mesh``.

    ``plan`` says how a layer is computed, by regular expressions that match whole names of variables; the
    first that matches counts:

        "column"   outputs are in parts: a kernel is ``[None, axis]``, and its bias ``[axis]``
        "row"      inputs are in parts and products are added up: ``[axis, None]``; its bias is whole
        "vocab"    the rows of an embedding are in parts: ``[axis, None]``

    A kernel has more dimensions in front if it is that of a convolution. The bias of a kernel
    ``layer/kernel`` is ``layer/bias``, and needs no expression of its own. ``get_variable(layout=)`` and
    `LayoutStrategy.variable_layouts` come before the plan; ``get_variable(stored=)`` adds to it.
    ``sequence``: see the module; the other arguments are those of `MultiWorkerLayoutStrategy`, which it is on
    several workers.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)])
    >>> strategy = TensorParallelStrategy(mesh, plan={"up/kernel": "column"}, batch="dp")
    >>> with tf.Graph().as_default(), strategy.scope():
    ...     y = tf.layers.dense(tf.placeholder(tf.float32, [8, 4]), 6, name="up")

    A scope that makes variables, none of which an expression matches, ends with `InvalidArgumentError`.
    Raises `InvalidArgumentError` for an unknown axis or style, an axis of time, and a text that is no
    regular expression.
    """

    @known_names
    def __init__(
        self,
        mesh: Mesh,
        axis: str | None = "tp",
        plan: Mapping[str, Style] | None = None,
        sequence: bool = False,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        policy: Precision | None = None,
    ) -> None:
        where = type(self).__name__
        check_mesh(mesh, where)
        self._plan = TensorPlan(mesh, axis, {} if plan is None else plan, sequence, where)
        super().__init__(mesh, batch, rules, cluster_resolver, communication_options, policy)

    def layout_by_name(self, variable: Variable) -> Entries | None:
        given = super().layout_by_name(variable)
        return self._plan.layout(variable) if given is None else given

    def attributes_kept(self, variable: Variable, layouts: NodeLayouts) -> Mapping[str, str]:
        return {**super().attributes_kept(variable, layouts), **self._plan.attributes(variable)}

    def check_names(self, names: Collection[str]) -> None:
        super().check_names(names)
        self._plan.check_names(names)


@final
class TensorPlan:
    """The layouts of variables by the styles of their layers. Raises `InvalidArgumentError`, of the strategy
    ``where``.
    """

    def __init__(
        self, mesh: Mesh, axis: str | None, styles: Mapping[str, Style], sequence: bool, where: str
    ) -> None:
        if axis is not None and mesh.axes[mesh.axis(axis, where)].is_time:
            raise misuse(f"{where}: expected an axis of space; got {axis!r}")
        if not isinstance(sequence, bool):
            raise misuse(f"{where}: sequence: expected a bool; got {sequence!r}")
        self._axis, self._where = axis, f"{where}: plan"
        self._styles = _checked(styles, self._where)
        if axis is None and styles:
            raise misuse(f"{where}: plan: expected an axis of {mesh} for it; got None")
        if axis is not None and not styles:
            raise misuse(
                f"{where}: plan: expected styles by names of variables, such as {{'up/kernel': 'column'}}; "
                "got none. MultiWorkerLayoutStrategy is the same without a plan"
            )
        self._ranks: dict[str, int] = {}
        """The largest rank of the variables with the style of each expression."""
        self._summed: dict[str, str] = {}
        """The attribute of the plan's variables: products that contract what is in parts are added up, those
        of rows in the forward pass and those of columns in the backward pass.
        """
        if sequence:
            sums = layout_of(mesh, [*[None] * SEQUENCE, axis], f"{where}: sequence")
            self._summed = {SUMMED: format_layout(sums)}

    def layout(self, variable: Variable) -> Entries | None:
        """The layout in which ``variable`` is used; None if the plan does not say."""
        style, rank = self._style(variable), variable.shape.ndims
        if style is None or self._axis is None or not rank:
            return None
        pattern = first_match({each: each for each in self._styles}, variable.op.name)
        if pattern is not None:
            self._ranks[pattern] = max(rank, self._ranks.get(pattern, 0))
        return _LAYOUTS[style](rank, self._axis)

    def attributes(self, variable: Variable) -> Mapping[str, str]:
        """Further attributes of ``variable``."""
        return {} if self._style(variable) is None else self._summed

    def check_names(self, names: Collection[str]) -> None:
        """Raise `InvalidArgumentError` for an expression that matches none of ``names``, and for rows of what
        has none.
        """
        check_matched(self._where, self._styles, names)
        for pattern, rank in self._ranks.items():
            if self._styles[pattern] == "row" and rank < 2:
                raise misuse(
                    f"{self._where}: expected 'row' for a kernel, of which it divides the rows; got "
                    f"{pattern!r}, which matches vectors alone. A bias follows the kernel of its layer"
                )

    def _style(self, variable: Variable) -> Style | None:
        name = variable.op.name
        scope, _, last = name.rpartition("/")
        style = first_match(self._styles, name)
        return first_match(self._styles, f"{scope}/kernel") if style is None and last == "bias" else style


def _checked(plan: Any, where: str) -> dict[str, Style]:
    found = by_expression(plan, where, "styles")
    for pattern, style in found.items():
        if not isinstance(style, str) or style not in _LAYOUTS:
            styles = ", ".join(map(repr, _LAYOUTS))
            raise misuse(f"{where}: expected {styles} for {pattern!r}; got {style!r}")
    return found
