"""Lists that converted blocks append to.

A graph contains the body of a loop once, and both branches. A list from outside would get a single inner
tensor, which is not readable outside. Rule: a block over tensors must not change the length of lists from
outside; a list created in the block is not restricted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from flowrt.autograph.variables import is_symbolic
from flowrt.base.structure import flatten
from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import user_line

HINT = "Use flowrt.TensorArray: array = array.write(i, value)"


def keeps_lists(what: str, block: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``block``, a part of ``what``, to raise `InvalidArgumentError` if it has appended tensors to a
    list from outside; the list is then restored.
    """

    @functools.wraps(block)
    def kept(*args: Any) -> Any:
        before = [(name, found, len(found)) for name, found in _lists(inspect.unwrap(block))]
        result = block(*args)
        for name, found, count in before:
            added = found[count:]
            if any(map(is_symbolic, flatten(added))):
                del found[count:]
                raise InvalidArgumentError(
                    f"{what}: expected list {name!r} to keep its length {count}, because this block is traced"
                    f" once, no matter how often it runs; got {count + len(added)}. {HINT}",
                    source=user_line(),
                )
        return result

    return kept


def _lists(block: Callable[..., Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of the functions around that ``block`` names."""
    code, cells = getattr(block, "__code__", None), getattr(block, "__closure__", None)
    for name, cell in zip(code.co_freevars, cells, strict=True) if code and cells else ():
        try:
            found = cell.cell_contents
        except ValueError:  # no value yet
            continue
        if isinstance(found, list):
            yield name, found
