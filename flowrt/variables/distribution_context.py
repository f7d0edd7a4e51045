"""Which strategy a thread builds for, and as which of its replicas.

A strategy (`flowrt.distribute.strategies`) enters a context when its scope is opened, when it calls a
function for a replica, and when it updates a variable's copies. What builds graph and has to know of
replicas, as optimizers and variables do, asks here, and needs no strategy to be loaded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class DistributionContext(NamedTuple):
    """``strategy``; its ``replica`` (a ReplicaContext) inside a function that runs once a replica, None
    outside, which is called cross-replica; and the number of the copy that is being updated, or None.
    """

    strategy: Any
    replica: Any = None
    updated_copy: int | None = None


class _Thread(threading.local):
    context: DistributionContext | None = None


_thread = _Thread()


def distribution_context() -> DistributionContext | None:
    """The thread's innermost context; None where there is no strategy."""
    return _thread.context


@contextlib.contextmanager
def entered_context(context: DistributionContext | None) -> Iterator[None]:
    """Inside, the thread builds in ``context``."""
    outer, _thread.context = _thread.context, context
    try:
        yield
    finally:
        _thread.context = outer
