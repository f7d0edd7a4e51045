"""`ReduceOp`: how the values of replicas become one."""

from __future__ import annotations

from enum import Enum
from typing import Any

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.variables.variable import VariableAggregation


class ReduceOp(Enum):
    """SUM adds the replicas' values, MEAN divides the sum by their number."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def from_variable_aggregation(aggregation: VariableAggregation) -> ReduceOp:
        """The reduction. Raises `UnimplementedError` for an aggregation that is not a reduction."""
        if aggregation not in (VariableAggregation.SUM, VariableAggregation.MEAN):
            raise UnimplementedError(f"ReduceOp: expected aggregation SUM or MEAN; got {aggregation.name}")
        return ReduceOp[aggregation.name]


def as_reduce_op(value: Any) -> ReduceOp:
    """``value``, which may be a name in any case. Raises `InvalidArgumentError`."""
    if isinstance(value, ReduceOp):
        return value
    if isinstance(value, str) and value.upper() in ReduceOp.__members__:
        return ReduceOp[value.upper()]
    raise InvalidArgumentError(f"reduction: expected ReduceOp.SUM or ReduceOp.MEAN; got {value!r}")
