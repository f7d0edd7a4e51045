"""`AutoStrategy`: the strategy of a plan, or one that is planned for the model in its scope."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from flowrt.device.spec import parse_device
from flowrt.distribute.resolvers import resolve
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutStrategy
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.plan.in_place import InPlaceStrategy, take_in_inputs
from flowrt.plan.plan_file import Plan, read_plan, text_of
from flowrt.plan.step.recorded import RecordingStrategy
from flowrt.variables.distribution_context import layout_strategy
from flowrt.variables.variable import Variable


def AutoStrategy(
    plan: str | os.PathLike[str] | int | Sequence[str],
    policy: Precision | None = None,
    batch_size: int | None = None,
) -> LayoutStrategy:
    """The strategy of the file ``plan``, which ``flowrt plan --json`` writes; or for a number of devices of
    this process, or their names, the best for the model that is made in its scope.

    >>> strategy = tf.distribute.AutoStrategy("plan.json")
    >>> strategy = tf.distribute.AutoStrategy(4)
    >>> with strategy.scope():
    ...     train = model()

    The whole model and its optimizer are made in the scope. Inputs that were made before it are taken in. For
    devices the plan is found when the scope ends, in seconds and by rates; ``batch_size`` is that of
    placeholders with a first dimension of None.

    With a file the scope ends with `InvalidArgumentError` if the script has made other variables than those
    that were planned. Raises as `read_plan`, as the strategy that it is, as `InPlaceStrategy`, and
    `InvalidArgumentError` for devices that are not CPUs of one process.
    """
    recording = layout_strategy()
    if isinstance(recording, RecordingStrategy):  # the script is being planned
        recording.policy = policy
        return recording
    if not isinstance(plan, str | os.PathLike):
        return _in_place(plan, policy, batch_size)
    if batch_size is not None:
        raise misuse("AutoStrategy: batch_size: expected it with devices; a plan's file has it")
    read = read_plan(plan)
    strategy = read.choice.strategy(policy=policy)
    strategy.when_made = partial(_check, read, strategy, f"AutoStrategy {os.fspath(plan)}")
    return strategy


def _in_place(devices: Any, policy: Precision | None, batch_size: int | None) -> LayoutStrategy:
    is_count = isinstance(devices, int) and not isinstance(devices, bool)
    is_names = isinstance(devices, list | tuple) and all(isinstance(name, str) for name in devices)
    if not (is_count or is_names):
        what = "expected a plan's file, a number of devices or their names"
        raise misuse(f"AutoStrategy: {what}; got {devices!r}", DTypeError)
    names = None if isinstance(devices, int) else list(devices)
    count = devices if isinstance(devices, int) else len(devices)
    if count < 1:
        raise misuse(f"AutoStrategy: expected at least one device; got {devices!r}")
    for name in names or ():
        if parse_device(name).device_type != "CPU":
            raise misuse(
                f"AutoStrategy: expected CPUs, whose rates are known; got {name!r}. For others, "
                "flowrt plan --cluster FILE --json plan.json, and AutoStrategy('plan.json')"
            )
    _check_alone()
    return InPlaceStrategy(count, names, policy, batch_size)


def _check_alone() -> None:
    """Raise `InvalidArgumentError` if other processes run this script, too: each would plan by itself."""
    spec = resolve(os.environ).spec
    workers = sum(len(spec.task_indices(job)) for job in ("chief", "worker") if job in spec.jobs)
    if workers > 1:
        raise misuse(
            f"AutoStrategy: expected a plan's file, as {workers} workers run this script. flowrt plan "
            f"--processes {workers} --json plan.json writes one"
        )


def _check(plan: Plan, strategy: LayoutStrategy, where: str, variables: Sequence[Variable]) -> None:
    plan.check({variable.op.name: text_of(variable) for variable in variables}, where)
    take_in_inputs(get_default_graph(), strategy)
