"""Values that differ from replica to replica, and structures of them.

`regroup` combines the replicas' structures, `select` extracts that of a replica: objects that are the same
for all replicas are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure, map_structure
from flowrt.dtypes import DType
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.surface.operators import overload_operators
from flowrt.variables.distribution_context import distribution_context


class DistributedValues:
    """One value per replica, in the order of the replicas."""

    fetch_hint = ". Use strategy.reduce() or strategy.experimental_local_results()"
    """Suffix of a session's error when it is fetched."""

    def __init__(self, values: Sequence[Any]) -> None:
        if not values:
            raise InvalidArgumentError(f"{type(self).__name__}: expected one value per replica; got none")
        self.values = tuple(values)

    def _here(self) -> Any:
        """The value of the replica that the thread builds. Raises `FailedPreconditionError` outside."""
        context = distribution_context()
        if context is not None and context.replica is not None:
            return self.values[context.replica.local_replica_id]
        if context is not None and context.updated_copy is not None:
            return self.values[context.updated_copy]
        raise FailedPreconditionError(
            f"{self!r}: expected one tensor; got one per replica. Use strategy.reduce(), or "
            "strategy.experimental_local_results() for all of them"
        )

    def __flowrt_tensor__(self) -> Tensor:
        return self._here()

    @property
    def dtype(self) -> DType:
        return self.values[0].dtype

    def __iter__(self) -> Iterator[Any]:
        raise InvalidArgumentError(
            f"{self!r}: expected strategy.experimental_local_results(value) for iteration over the "
            "replicas' values"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


overload_operators(DistributedValues)


class PerReplica(DistributedValues):
    """A separate value for each replica."""


class Mirrored(DistributedValues):
    """The same value on each replica's device. Used as a tensor outside of replicas, it is the first one."""

    def _here(self) -> Any:
        context = distribution_context()
        if context is None or (context.replica is None and context.updated_copy is None):
            return self.values[0]
        return super()._here()

    def _as_graph_element(self) -> Any:
        return self.values[0]


def regroup(values: Sequence[Structure], wrap: Callable[[Sequence[Any]], Any] = PerReplica) -> Structure:
    """One structure of the replicas' ``values``; leaves that are not the same for all are ``wrap``ped.

    Raises `InvalidArgumentError`, which names the replica, unless all have one structure.
    """
    first = values[0]
    if not isinstance(first, list | tuple | Mapping):
        return first if all(_is_same(first, other) for other in values[1:]) else wrap(tuple(values))
    for replica, other in enumerate(values):
        if not _fits(first, other):
            raise InvalidArgumentError(
                f"replicas: expected values of the same structure; replica 0 has {first!r:.200}, replica "
                f"{replica} has {other!r:.200}"
            )
    if isinstance(first, Mapping):
        packed: dict[Any, Any] = {key: regroup([value[key] for value in values], wrap) for key in first}
        return type(first)(packed)  # type: ignore[call-arg]
    children = [regroup(column, wrap) for column in zip(*values, strict=True)]
    return type(first)(*children) if hasattr(first, "_fields") else type(first)(children)


def select(replica: int, structure: Structure) -> Structure:
    """``structure`` as ``replica`` sees it."""
    return map_structure(
        lambda leaf: leaf.values[replica] if isinstance(leaf, DistributedValues) else leaf, structure
    )


def _fits(first: Any, other: Any) -> bool:
    """Whether two containers have the same kind and size, or the same keys."""
    if type(other) is not type(first) or len(other) != len(first):
        return False
    return not isinstance(first, Mapping) or all(key in other for key in first)


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, bool | int | float | str | bytes) and type(a) is type(b) and a == b)
