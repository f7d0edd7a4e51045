"""`LayoutStrategy`: one global graph, computed in parts on the devices of a mesh.

    mesh = tf.distribute.Mesh([("dp", 2), ("tp", 2)])
    strategy = tf.distribute.LayoutStrategy(mesh, batch="dp")
    with strategy.scope():
        x = tf.placeholder(tf.float32, [None, 256])                  # its first dimension is sharded by dp
        w = tf.get_variable("w", [256, 1024], layout=[None, "tp"])   # its columns by tp
        loss = ...                                                   # of the whole batch

Shapes, losses, gradients and optimizers are those of one device; results are too, but for the last bits of
sums. Xu et al. 2021 (GSPMD) and TensorFlow's DTensor have the idea.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from flowrt.base.structure import Structure
from flowrt.distribute.resolvers import resolve
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, nearest
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.layouts.attributes import LAYOUT, MESH, STORED, NodeLayouts, attributes_of
from flowrt.graph.layouts.layout import Entry, Layout, Shard, layout_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.variables.distribution_context import distribution_context, entered_layouts, layout_strategy
from flowrt.variables.variable import GraphKeys, Variable

_log = logging.getLogger("flowrt")

Entries = Sequence[Entry]

INPUTS = (
    "Placeholder", "PlaceholderWithDefault", "IteratorGetNext", "QueueDequeueManyV2", "QueueDequeueUpToV2",
)  # fmt: skip
"""The operations from which a batch comes."""


class Wanted(NamedTuple):
    """The layout that a script asks of a variable: how it is used, and how it is kept."""

    layout: Entries | None
    stored: Entries | None


class LayoutStrategy(Strategy):
    """Computes one global graph on the devices of ``mesh``, each tensor in its layout.

    ``batch`` names the axis, or axes, by which the first dimension of placeholders and of datasets' elements
    is sharded. ``rules`` map logical axes, as in ``get_variable(axes=["embed", "hidden"])``, to axes of the
    mesh, as Mesh-TensorFlow does (Shazeer et al. 2018): one table may serve many models, so a rule that no
    variable uses is no error, as in Flax; a warning tells of an axis of the mesh along which nothing is
    divided. ``policy`` is the precision of the variables made in the scope.

    >>> strategy = LayoutStrategy(Mesh([("dp", 2)]), batch="dp", policy=Precision("bfloat16"))
    >>> strategy.num_replicas_in_sync
    1

    Raises `DTypeError` for a ``mesh`` or a ``policy`` that is none, `InvalidArgumentError` for an unknown
    axis.
    """

    def __init__(
        self,
        mesh: Mesh,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
        policy: Precision | None = None,
    ) -> None:
        where = type(self).__name__
        check_mesh(mesh, where)
        batch_layout = layout_of(mesh, [batch], f"{where}: batch")
        rules = _by_text({} if rules is None else rules, f"{where}: rules: expected axes by logical axis")
        for name, axes in rules.items():
            layout_of(mesh, [axes], f"{where}: rule of {name!r}")
        if policy is not None and not isinstance(policy, Precision):
            raise misuse(f"{where}: policy: expected a Precision; got {policy!r}", DTypeError)
        super().__init__(self._extended_over(mesh, batch_layout, rules))
        self.mesh, self.policy = mesh, policy
        self._told: set[str] = set()
        self._patterns: dict[str, Entries] = {}
        self.when_made: Callable[[Sequence[Variable]], None] = lambda variables: None
        """Called with the trainable variables that were made in the scope, when it ends."""
        if type(self) is LayoutStrategy:
            _warn_of_workers()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.mesh}>"

    def _extended_over(self, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry]) -> LayoutExtended:
        return LayoutExtended(self, mesh, batch, rules)

    def layout_by_name(self, variable: Variable) -> Entries | None:
        """The layout in which ``variable`` is used, unless the script gives one where it is made."""
        return first_match(self._patterns, variable.op.name)

    def layout_kept(self, variable: Variable, used: Layout) -> Layout:
        """The layout in which ``variable`` is kept unless the script gives one: that in which it is used."""
        del variable
        return used

    def attributes_kept(self, variable: Variable, layouts: NodeLayouts) -> Mapping[str, str]:
        """Further attributes of a new variable with these layouts: none."""
        del variable, layouts
        return {}

    def settle(self, trained: Sequence[Variable] = (), states: int = 0) -> None:
        """Decide what depends on the whole model, before an optimizer makes ``states`` of each of the
        ``trained`` variables: nothing.
        """
        del trained, states

    def variable_layouts(self, layouts: Mapping[str, Entries]) -> None:
        """Give layouts to variables by name, for scripts that cannot be changed: regular expressions that
        match whole names; the first that matches counts, and ``get_variable(layout=)`` comes before all.

        A scope that makes variables, none of which an expression matches, ends with `InvalidArgumentError`.
        Raises `InvalidArgumentError` for a text that is no regular expression, and for one that matches a
        variable which is there already.
        """
        found = by_expression(layouts, "variable_layouts", "layouts")
        for pattern, entries in found.items():
            layout_of(self.mesh, entries, f"variable_layouts: {pattern!r}")
            made = next((name for name in self.extended.names if re.fullmatch(pattern, name)), None)
            if made is not None:
                raise misuse(
                    f"variable_layouts: {pattern!r}: expected a call before the variables are made; got one "
                    f"after {made!r} was"
                )
        self._patterns.update(layouts)

    def check_names(self, names: Collection[str]) -> None:
        """Raise `InvalidArgumentError` for an expression that matches none of the ``names`` of variables."""
        check_matched("variable_layouts", self._patterns, names)

    def check_trained(self, variables: Sequence[Variable]) -> None:
        """Say so if an optimizer in the scope trains variables that were made outside it."""
        others = [variable.op.name for variable in variables if MESH not in variable.op.node.attrs]
        if others:
            self._warn(
                f"an optimizer in its scope trains variables made outside it, such as {others[0]!r}: they "
                "have no layouts, and every device keeps them whole. Make the model, its placeholders and "
                "its optimizer inside strategy.scope()"
            )

    def _check_axes(self) -> None:
        """Say so if neither batches nor what is in the graph are divided along an axis of the mesh."""
        of_graph = [op.node.attrs for op in get_default_graph().get_operations()]
        every = (self.extended.attributes_of_input(), *of_graph)
        layouts = (attrs[key] for attrs in every for key in (LAYOUT, STORED) if key in attrs)
        used = {name for text in set(layouts) for name in re.findall(r"\w+", text)}
        idle = [axis for axis in self.mesh.axes if axis.size > 1 and axis.name not in used]
        for axis in idle:
            self._warn(
                f"no batch, variable or relayout is divided along {axis.name!r}: its {axis.size} "
                f"{'turns' if axis.is_time else 'devices'} compute the same"
            )

    def _warn(self, message: str) -> None:
        """Log ``message`` the first time."""
        if message not in self._told:
            self._told.add(message)
            _log.warning("%r: %s", self, message)

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[Strategy]:
        if layout_strategy() is self:
            yield self
            return
        other = layout_strategy() or distribution_context()
        if other is not None:
            raise misuse(
                f"{type(self).__name__}.{what}: expected a call outside other strategies' scopes; got one "
                f"inside that of {getattr(other, 'strategy', other)!r}. Use one strategy, or leave the first "
                "scope",
                FailedPreconditionError,
            )
        with self.extended.opened_scope(), entered_layouts(self):
            yield self
        if self.extended.names:
            self.check_names(self.extended.names)
            trainable = get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)
            names = set(self.extended.names)
            made = [variable for variable in trainable if variable.op.name in names]
            self._check_policy(made)
            self.when_made(made)
            self.settle()
            self._check_axes()

    def _check_policy(self, made: Sequence[Variable]) -> None:
        """Raise `InvalidArgumentError` if variables were made, and the policy is about none of them."""
        policy = self.policy
        if policy is None or not made or any(variable.dtype is policy.keep for variable in made):
            return
        raise misuse(
            f"{type(self).__name__}: policy: expected variables of {policy.keep.name}, the dtype that "
            f"{policy!r} keeps; got none but such as {made[0].op.name!r} of {made[0].dtype.name}"
        )


class LayoutExtended(StrategyExtended):
    """Gives layouts to variables and inputs. There is one replica: the global graph."""

    strategy: LayoutStrategy

    def __init__(
        self, strategy: LayoutStrategy, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry]
    ) -> None:
        super().__init__(strategy, ["/device:CPU:0"], ReductionToOneDevice())
        self._mesh, self._batch, self._rules = mesh, batch, rules
        self.names: list[str] = []
        """The names of the variables so far."""
        self._wanted = threading.local()

    # --- variables

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        variable = next_creator(**arguments)
        self.names.append(variable.op.name)
        attrs = self.attributes(variable, self._pop_wanted() or Wanted(None, None))
        variable.op.mutate(attrs={**variable.op.node.attrs, **attrs})
        return variable

    def attributes(self, variable: Variable, wanted: Wanted) -> dict[str, Any]:
        """The attributes that the strategy gives to ``variable``."""
        if wanted.layout is None:
            wanted = wanted._replace(layout=self.strategy.layout_by_name(variable))
        layouts = self._layouts(variable, wanted)
        kept, policy = self.strategy.attributes_kept(variable, layouts), self.strategy.policy
        in_precision = {} if policy is None else policy.attributes(variable.dtype)
        return {**attributes_of(*layouts), **kept, **in_precision}

    def check_reused(self, variable: Variable) -> None:
        """Raise `InvalidArgumentError` if the script asks for another layout of an existing ``variable``."""
        wanted, attrs = self._pop_wanted(), variable.op.node.attrs
        if wanted is None:
            return
        asked = attributes_of(*self._layouts(variable, wanted))
        have = {key: attrs[key] for key in (MESH, LAYOUT, STORED) if key in attrs}
        if have != asked:
            raise misuse(
                f"variable {variable.op.name!r}: expected {_text(have)}, as reuse shares the existing one;"
                f" got {_text(asked)}"
            )

    def _layouts(self, variable: Variable, wanted: Wanted) -> NodeLayouts:
        where = f"Variable {variable.op.name!r}"
        used = self._layout(variable, wanted.layout, where)
        if wanted.stored is None:
            return NodeLayouts(used, self.strategy.layout_kept(variable, used))
        return NodeLayouts(used, self._layout(variable, wanted.stored, f"{where}: stored"))

    def _layout(self, variable: Variable, entries: Entries | None, where: str) -> Layout:
        if entries is None:
            return Layout.replicated(self._mesh)
        layout = layout_of(self._mesh, entries, where)
        rank = variable.shape.ndims
        if rank != len(entries):
            raise misuse(f"{where}: expected an entry for each of {rank} dimensions; got {list(entries)}")
        times = [axis.name for axis, p in zip(self._mesh.axes, layout.placements, strict=True)
                 if axis.is_time and isinstance(p, Shard)]  # fmt: skip
        if times:
            raise misuse(f"{where}: expected axes of space; got {times[0]!r}, an axis of time")
        return layout

    @contextlib.contextmanager
    def variable_layout(
        self, layout: Entries | None, stored: Entries | None, axes: Sequence[str | None] | None
    ) -> Iterator[None]:
        """The next variable made inside has this layout, or that of its logical ``axes``."""
        if axes is not None and layout is not None:
            raise misuse(f"get_variable: expected layout or axes; got {layout} and {list(axes)}")
        if axes is not None:
            layout = [None if axis is None else self._rules.get(axis) for axis in axes]
        self._wanted.value = Wanted(layout, stored)
        try:
            yield
        finally:
            self._wanted.value = None

    def _pop_wanted(self) -> Wanted | None:
        wanted = getattr(self._wanted, "value", None)
        self._wanted.value = None
        return wanted

    # --- inputs

    @contextlib.contextmanager
    def opened_scope(self) -> Iterator[None]:
        with super().opened_scope(), self.reading_input():
            yield

    def reading_input(self) -> contextlib.AbstractContextManager[None]:
        return get_default_graph().attributes_by(self.attributes_of_new)

    def attributes_of_new(self, op: Operation) -> Mapping[str, Any]:
        """The attributes of a new operation: those of an input give its first dimension to the batch."""
        is_batch = op.type in INPUTS and any(t.shape.ndims != 0 for t in op.outputs)
        return self.attributes_of_input() if is_batch else {}

    def attributes_of_input(self) -> dict[str, Any]:
        """The attributes of an operation with a batch."""
        return attributes_of(self._batch)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        return fn(*args, **kwargs)


def _warn_of_workers() -> None:
    """Say so if other processes run this script, which is not meant for it."""
    try:
        spec = resolve(os.environ).spec
    except InvalidArgumentError:  # it does not matter here
        return
    workers = sum(len(spec.task_indices(job)) for job in ("chief", "worker") if job in spec.jobs)
    if workers > 1:
        _log.warning(
            "LayoutStrategy is of this process alone: each of the %d workers trains a model of its own. "
            "MultiWorkerLayoutStrategy, TensorParallelStrategy and FullyShardedStrategy are of all of them",
            workers,
        )


def check_mesh(mesh: Any, where: str) -> None:
    """Raise `DTypeError` unless ``mesh`` is one."""
    if not isinstance(mesh, Mesh):
        raise misuse(f"{where}: expected a Mesh; got {mesh!r}", DTypeError)


_Value = TypeVar("_Value")


def first_match(patterns: Mapping[str, _Value], name: str) -> _Value | None:
    """The value of the first of ``patterns`` that matches the whole of ``name``."""
    return next((value for pattern, value in patterns.items() if re.fullmatch(pattern, name)), None)


def check_matched(what: str, patterns: Iterable[str], names: Collection[str]) -> None:
    """Raise `InvalidArgumentError` for one of ``patterns``, of ``what``, that matches none of ``names``."""
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise misuse(
                f"{what}: expected the name of a variable to match {pattern!r}; none does."
                f"{nearest(pattern, names)}"
            )


def by_expression(found: Any, where: str, what: str) -> dict[str, Any]:
    """``found``, a mapping by regular expressions. Raises `InvalidArgumentError` otherwise."""
    patterns = _by_text(found, f"{where}: expected {what} by expression")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise misuse(f"{where}: expected a regular expression; got {pattern!r}: {error}") from None
    return patterns


def _by_text(found: Any, expected: str) -> dict[str, Any]:
    """``found``, a mapping by texts. Raises `InvalidArgumentError` otherwise."""
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise misuse(f"{expected}; got {found!r}")
    return dict(found)


def _text(attrs: Mapping[str, Any]) -> str:
    """The layouts that the attributes of a variable name."""
    if LAYOUT not in attrs:
        return "no layout"
    return f"layout {attrs[LAYOUT]}" + (f", stored {attrs[STORED]}" if STORED in attrs else "")


def relayout(tensor: Any, layout: Entries, name: str | None = None) -> Tensor:
    """``tensor`` in ``layout``: an entry per dimension, None, an axis of the mesh or several.

    >>> strategy = LayoutStrategy(Mesh([("dp", 2), ("tp", 2)]))
    >>> with strategy.scope():
    ...     h = relayout(tf.ones([8, 4]), ["dp", "tp"])

    Raises `FailedPreconditionError` outside the scope of a `LayoutStrategy`, `InvalidArgumentError` for a
    layout that does not fit.
    """
    strategy = layout_strategy()
    if strategy is None:
        raise misuse("relayout: expected the scope of a LayoutStrategy; got none", FailedPreconditionError)
    value = convert_to_tensor(tensor)
    found = layout_of(strategy.mesh, layout, "relayout")
    rank = value.shape.ndims
    if rank is not None and rank != len(layout):
        raise misuse(f"relayout: expected an entry for each of {rank} dimensions; got {list(layout)}")
    return relayout_op(value, name=name, **attributes_of(found))
