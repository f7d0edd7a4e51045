"""`ListSlices`: the gradient of a list of tensors, for those of its elements that were read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, final

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import op_def


@final
class ListSlices:
    """A list as long as the list tensor ``like``, zero but for ``value`` at ``index``.

    ``index`` is an int32 scalar, or ``[n]`` with rows of ``value`` ``[n, ...]``; equal indices add up. It
    stays sparse until it is summed, because `sum_lists` then adds an element to the other list in O(1);
    otherwise a loop that reads one element per step would add two whole lists in each step.
    """

    def __init__(self, like: Tensor, index: Tensor, value: Tensor) -> None:
        self.like, self.index, self.value = like, index, value

    @property
    def dtype(self) -> DType:
        return dtypes.variant

    def added_to(self, total: Tensor) -> Tensor:
        """The list ``total`` plus this one."""
        return op_def("TensorListAddAt")(total, self.index, self.value)

    def __flowrt_tensor__(self) -> Tensor:
        return self.added_to(op_def("TensorListZerosLike")(self.like))

    def __repr__(self) -> str:
        return f"ListSlices({self.value!r}, index={self.index!r})"


def sum_lists(shares: Sequence[Any]) -> Tensor:
    """The sum of one or more lists of one length, each a list tensor or `ListSlices`."""
    whole = [s for s in shares if isinstance(s, Tensor)]
    slices = [s for s in shares if isinstance(s, ListSlices)]
    total: Tensor = reduce(op_def("TensorListAdd"), whole) if whole else slices.pop(0).__flowrt_tensor__()
    for part in slices:
        total = part.added_to(total)
    return total
