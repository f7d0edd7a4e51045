"""A thread's strategy and replica: query functions for scripts, and the default strategy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from flowrt.base.structure import Structure
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice
from flowrt.distribute.strategies.replicas.replica_context import InlineReplica, ReplicaContext
from flowrt.distribute.strategies.values.reduce_op import ReduceOp
from flowrt.errors import FailedPreconditionError
from flowrt.variables.distribution_context import distribution_context
from flowrt.variables.variable import Variable


@final
class DefaultStrategy(Strategy):
    """One replica, wherever operations are placed; variables are plain ones. Code that is written for a
    strategy runs without one through it, and its scope changes nothing.
    """

    def __init__(self) -> None:
        super().__init__(_DefaultExtended(self, [""], ReductionToOneDevice()))

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[Strategy]:
        self._check_not_nested(distribution_context(), what)
        yield self


class _DefaultExtended(StrategyExtended):
    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        return next_creator(**arguments)

    def variable_created_in_scope(self, v: Any) -> bool:
        return getattr(v, "strategy", self.strategy) is self.strategy

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        return fn(*args, **kwargs)


@final
class _DefaultReplica(InlineReplica):
    """The replica outside of all scopes, where a thread is from the start."""

    def _is_built(self) -> bool:
        return distribution_context() is None


_DEFAULT = DefaultStrategy()
_DEFAULT_REPLICA = _DefaultReplica(_DEFAULT)


def get_strategy() -> Strategy:
    """The strategy of the enclosing scope; by default one of a single replica."""
    context = distribution_context()
    return _DEFAULT if context is None else context.strategy


def has_strategy() -> bool:
    """Whether the thread is in the scope of a strategy."""
    return get_strategy() is not _DEFAULT


def in_cross_replica_context() -> bool:
    """Whether the thread is in a strategy's scope and in none of its replicas."""
    context = distribution_context()
    return context is not None and context.replica is None


def get_replica_context() -> ReplicaContext | None:
    """The replica with the function being called, the only one without a strategy; None cross-replica."""
    context = distribution_context()
    return _DEFAULT_REPLICA if context is None else context.replica


class _SetForGood(threading.local):
    """The scope that a thread entered by `experimental_set_strategy`."""

    def __init__(self) -> None:
        self.scope = contextlib.ExitStack()


_set_for_good = _SetForGood()


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Enter the scope of ``strategy`` until another is set; None leaves it. Raises `FailedPreconditionError`
    inside a scope that was opened by ``with``.
    """
    _set_for_good.scope.close()
    if distribution_context() is not None:
        raise FailedPreconditionError(
            "experimental_set_strategy: expected a call outside strategies' scopes; got one inside"
        )
    if strategy is not None:
        _set_for_good.scope.enter_context(strategy.scope())


def get_loss_reduction() -> ReduceOp:
    """Reduction of the replicas' gradients in optimizers: their sum."""
    return ReduceOp.SUM
