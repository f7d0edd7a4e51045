"""`AutoStrategy`: the strategy of a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from flowrt.distribute.strategies.layouts.layout_strategy import LayoutStrategy
from flowrt.graph.precision import Precision
from flowrt.plan.plan_file import Plan, read_plan, text_of
from flowrt.plan.step.recorded import RecordingStrategy
from flowrt.variables.distribution_context import layout_strategy
from flowrt.variables.variable import Variable


def AutoStrategy(plan: str | os.PathLike[str], policy: Precision | None = None) -> LayoutStrategy:
    """The strategy of the file ``plan``, which ``flowrt plan --json`` writes.

    >>> strategy = tf.distribute.AutoStrategy("plan.json")
    >>> with strategy.scope():
    ...     model()

    The scope ends with `InvalidArgumentError` if the script has made other variables than those that were
    planned. Raises as `read_plan`, and as the strategy that it is.
    """
    recording = layout_strategy()
    if isinstance(recording, RecordingStrategy):  # the script is being planned
        return recording
    read = read_plan(plan)
    strategy = read.choice.strategy(policy=policy)
    strategy.check_made = partial(_check, read, f"AutoStrategy {os.fspath(plan)}")  # type: ignore[method-assign]
    return strategy


def _check(plan: Plan, where: str, variables: Sequence[Variable]) -> None:
    plan.check({variable.op.name: text_of(variable) for variable in variables}, where)
