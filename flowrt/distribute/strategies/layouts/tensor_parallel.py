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

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from flowrt.distribute.strategies.layouts.layout_strategy import (
    Entries,
    LayoutExtended,
    LayoutStrategy,
    by_expression,
    first_match,
)
from flowrt.graph.layouts.attributes import SUMMED
from flowrt.graph.layouts.layout import Entry, Layout, format_layout, layout_of
from flowrt.graph.layouts.mesh import Mesh
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


class TensorParallelStrategy(LayoutStrategy):
    """A `LayoutStrategy` that shards the variables which ``plan`` names by ``axis`` of ``mesh``.

    ``plan`` says how a layer is computed, by regular expressions that match whole names of variables; the
    first that matches counts:

        "column"   outputs are in parts: a kernel is ``[None, axis]``, and its bias ``[axis]``
        "row"      inputs are in parts and products are added up: ``[axis, None]``; its bias is whole
        "vocab"    the rows of an embedding are in parts: ``[axis, None]``

    A kernel has more dimensions in front if it is that of a convolution. The bias of a kernel
    ``layer/kernel`` is ``layer/bias``, and needs no expression of its own. ``get_variable(layout=)`` and
    `LayoutStrategy.variable_layouts` come before the plan; ``get_variable(stored=)`` adds to it.
    ``sequence``, ``batch`` and ``rules``: see the module, and `LayoutStrategy`.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)])
    >>> strategy = TensorParallelStrategy(mesh, plan={"up/kernel": "column"}, batch="dp")
    >>> with tf.Graph().as_default(), strategy.scope():
    ...     y = tf.layers.dense(tf.placeholder(tf.float32, [8, 4]), 6, name="up")

    A scope that makes variables, none of which an expression matches, ends with `InvalidArgumentError`.
    Raises `InvalidArgumentError` for an unknown axis or style, an axis of time, and a text that is no
    regular expression.
    """

    def __init__(
        self,
        mesh: Mesh,
        axis: str = "tp",
        plan: Mapping[str, Style] | None = None,
        sequence: bool = False,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
    ) -> None:
        self._axis, self._sequence = axis, sequence
        self._plan = _checked({} if plan is None else plan)
        super().__init__(mesh, batch, rules)

    def _extended_over(self, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry]) -> LayoutExtended:
        if mesh.axes[mesh.axis(self._axis)].is_time:
            raise misuse(f"TensorParallelStrategy: expected an axis of space; got {self._axis!r}")
        return TensorParallelExtended(
            self, mesh, batch, rules, plan=self._plan, axis=self._axis, sequence=self._sequence
        )


def _checked(plan: Any) -> dict[str, Style]:
    found: dict[str, Style] = by_expression(plan, "TensorParallelStrategy: plan", "styles")
    for pattern, style in found.items():
        if style not in _LAYOUTS:
            raise misuse(
                f"TensorParallelStrategy: plan: expected {', '.join(map(repr, _LAYOUTS))} for {pattern!r}; "
                f"got {style!r}"
            )
    return found


class TensorParallelExtended(LayoutExtended):
    """Gives variables the layouts of a plan."""

    def __init__(self, *args: Any, plan: Mapping[str, Style], axis: str, sequence: bool) -> None:
        super().__init__(*args)
        self._plan, self._axis = plan, axis
        self._summed: dict[str, str] = {}
        """The attribute of the plan's variables: products that contract what is in parts are added up, those
        of rows in the forward pass and those of columns in the backward pass.
        """
        if sequence:
            sums = layout_of(self._mesh, [*[None] * SEQUENCE, axis], "TensorParallelStrategy: sequence")
            self._summed = {SUMMED: format_layout(sums)}

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        variable = super().create_variable(next_creator, **arguments)
        if self._style(variable) is not None:
            variable.op.mutate(attrs={**variable.op.node.attrs, **self._summed})
        return variable

    def _by_name(self, variable: Variable) -> Entries | None:
        given, style, rank = super()._by_name(variable), self._style(variable), variable.shape.ndims
        return given if given is not None or style is None or not rank else _LAYOUTS[style](rank, self._axis)

    def _style(self, variable: Variable) -> Style | None:
        name = variable.op.name
        scope, _, last = name.rpartition("/")
        style = first_match(self._plan, name)
        return first_match(self._plan, f"{scope}/kernel") if style is None and last == "bias" else style

    def check_patterns(self) -> None:
        """Raise `InvalidArgumentError` for an expression of the plan, or of
        `LayoutStrategy.variable_layouts`, without a match.
        """
        super().check_patterns()
        self._check_matched("TensorParallelStrategy: plan", self._plan)
