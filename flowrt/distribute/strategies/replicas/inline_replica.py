"""One replica without a thread: its function is called as it is, and a merge has nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt.distribute.strategies.replicas.replica_context import ReplicaContext
from flowrt.variables.distribution_context import DistributionContext, entered_context


class InlineReplica(ReplicaContext):
    """The only replica of ``strategy``."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy, 0, 0)

    def _merge(self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with entered_context(DistributionContext(self._strategy)):
            return merge_fn(self._strategy, *args, **kwargs)
