"""``flowrt.keras.optimizers.schedules``: `flowrt.train`'s learning rates as objects, which models save.

An optimizer calls its schedule with the number of updates so far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.typing import NumericLike
from flowrt.keras.identifiers import deserialize_object, lookup_in
from flowrt.train.optimizers import schedules


class LearningRateSchedule:
    """Base of the schedules, and of a user's own, which define ``__call__(step)`` and `get_config`."""

    def __call__(self, step: NumericLike) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __call__(step)")

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__}: expected a method get_config()")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        return cls(**config)


class _Decay(LearningRateSchedule):
    """A schedule of data: the arguments of ``_rule``, after which it is named, without the step."""

    _rule: Any

    def __call__(self, step: NumericLike) -> Tensor:
        first, *rest = self.get_config().values()
        return self._rule(first, step, *rest)

    def get_config(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


@dataclass(eq=False)
class ExponentialDecay(_Decay):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``, see `flowrt.train.exponential_decay`.

    Example:
        >>> rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)
        >>> rate(20).eval()
        np.float32(0.025)
    """

    initial_learning_rate: Any
    decay_steps: Any
    decay_rate: Any
    staircase: bool = False
    name: str | None = None
    _rule = staticmethod(schedules.exponential_decay)


@dataclass(eq=False)
class InverseTimeDecay(_Decay):
    """``initial_learning_rate / (1 + decay_rate * step / decay_steps)``."""

    initial_learning_rate: Any
    decay_steps: Any
    decay_rate: Any
    staircase: bool = False
    name: str | None = None
    _rule = staticmethod(schedules.inverse_time_decay)


@dataclass(eq=False)
class PolynomialDecay(_Decay):
    """A decay to ``end_learning_rate`` in ``decay_steps``, see `flowrt.train.polynomial_decay`."""

    initial_learning_rate: Any
    decay_steps: Any
    end_learning_rate: Any = 0.0001
    power: Any = 1.0
    cycle: bool = False
    name: str | None = None
    _rule = staticmethod(schedules.polynomial_decay)


@dataclass(eq=False)
class CosineDecay(_Decay):
    """Half a cosine wave to ``alpha`` times the rate, see `flowrt.train.cosine_decay`."""

    initial_learning_rate: Any
    decay_steps: Any
    alpha: Any = 0.0
    name: str | None = None
    _rule = staticmethod(schedules.cosine_decay)


@dataclass(eq=False)
class CosineDecayRestarts(_Decay):
    """`CosineDecay` again and again, see `flowrt.train.cosine_decay_restarts`."""

    initial_learning_rate: Any
    first_decay_steps: Any
    t_mul: Any = 2.0
    m_mul: Any = 1.0
    alpha: Any = 0.0
    name: str | None = None
    _rule = staticmethod(schedules.cosine_decay_restarts)


@dataclass(eq=False)
class LinearCosineDecay(_Decay):
    """A line times a cosine, see `flowrt.train.linear_cosine_decay`."""

    initial_learning_rate: Any
    decay_steps: Any
    num_periods: Any = 0.5
    alpha: Any = 0.0
    beta: Any = 0.001
    name: str | None = None
    _rule = staticmethod(schedules.linear_cosine_decay)


@dataclass(eq=False)
class PiecewiseConstantDecay(LearningRateSchedule):
    """``values[i]`` up to and with step ``boundaries[i]``, after the last of them ``values[-1]``.

    Raises `InvalidArgumentError` when called, unless there is one more value than boundaries.
    """

    boundaries: Sequence[Any]
    values: Sequence[Any]
    name: str | None = None

    def __call__(self, step: NumericLike) -> Tensor:
        x = convert_to_tensor(step)
        edges = [cast(edge, x.dtype) for edge in self.boundaries]
        return schedules.piecewise_constant(x, edges, self.values, self.name)

    def get_config(self) -> dict[str, Any]:
        return {"boundaries": self.boundaries, "values": self.values, "name": self.name}


_find = lookup_in({
    schedule.__name__: schedule
    for schedule in (
        ExponentialDecay, InverseTimeDecay, PolynomialDecay, CosineDecay, CosineDecayRestarts,
        LinearCosineDecay, PiecewiseConstantDecay,
    )
})  # fmt: skip


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """The schedule of `serialize`'s ``config``. Raises `InvalidArgumentError` for an unknown one."""
    return deserialize_object(config, _find, "schedule", custom_objects)


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """The schedule's class and arguments, as JSON can hold them."""
    return {
        "class_name": type(learning_rate_schedule).__name__, "config": learning_rate_schedule.get_config(),
    }  # fmt: skip
