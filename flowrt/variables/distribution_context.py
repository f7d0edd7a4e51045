"""The strategy and the replica for which a thread builds the graph.

A strategy (`flowrt.distribute.strategies`) enters a context when its scope is opened, when it calls a
function for a replica, and when it updates a variable's copies. Code that builds graphs and depends on
replicas, such as optimizers and variables, queries this module, without having to import strategies.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

_log = logging.getLogger("flowrt")

unopened_strategies: weakref.WeakSet[Any] = weakref.WeakSet()
"""Strategies over several processes of which no scope has been opened yet."""


class DistributionContext(NamedTuple):
    """The ``strategy``; its ``replica`` (a ReplicaContext) inside a function that runs once per replica, None
    outside (cross-replica context); and the index of the copy that is being updated, or None.
    """

    strategy: Any
    replica: Any = None
    updated_copy: int | None = None


class _Thread(threading.local):
    context: DistributionContext | None = None
    layouts: Any = None


_thread = _Thread()


def distribution_context() -> DistributionContext | None:
    """The thread's innermost context; None without a strategy."""
    return _thread.context


def layout_strategy() -> Any:
    """The thread's `LayoutStrategy`, None without one. It has no replicas, so it is no `DistributionContext`:
    a script builds for it as for one device.
    """
    return _thread.layouts


def warn_of_unopened_strategies() -> None:
    """Say so, once, if a script trains without a strategy, and has made one that it does not use."""
    if layout_strategy() is not None:
        return
    for strategy in list(unopened_strategies):
        unopened_strategies.discard(strategy)
        _log.warning(
            "%r has no variables, as no scope of it was opened: each process trains a model of its own, on "
            "one device. Make the model, its placeholders and its optimizer inside strategy.scope()",
            strategy,
        )


@contextlib.contextmanager
def entered_layouts(strategy: Any) -> Iterator[None]:
    """A context in which `layout_strategy` is ``strategy``."""
    outer, _thread.layouts = _thread.layouts, strategy
    try:
        yield
    finally:
        _thread.layouts = outer


@contextlib.contextmanager
def entered_context(context: DistributionContext | None) -> Iterator[None]:
    """A context in which the thread builds for ``context``."""
    outer, _thread.context = _thread.context, context
    try:
        yield
    finally:
        _thread.context = outer
