"""One form of call of `Session.run`, parsed once, with its plans."""

from __future__ import annotations

from typing import Any, final

from flowrt.errors import InvalidArgumentError
from flowrt.executor.ends.feeds import converter
from flowrt.executor.ends.fetches import Fetches
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.size_feeds import SizeFeeds, Values
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.shapes import is_static


@final
class Request:
    """Parsed fetches and feeds, and the plans by feed shapes. The operations named in ``done`` are not waited
    for. ``is_nested``: keys of its feed_dict are structures of tensors. Raises `InvalidArgumentError` for a
    tensor that is fed twice.
    """

    __slots__ = ("convert", "done", "feeds", "fetches", "is_nested", "plans", "shapes", "sized", "used")

    def __init__(
        self,
        fetches: Fetches,
        feeds: tuple[Tensor, ...],
        done: frozenset[str] = frozenset(),
        is_nested: bool = False,
    ) -> None:
        if len(set(feeds)) < len(feeds):
            raise InvalidArgumentError(
                "feed_dict: expected each tensor once; got two keys for the same tensor"
            )
        self.fetches, self.feeds, self.done, self.is_nested = fetches, feeds, done, is_nested
        self.convert = [converter(t) for t in feeds]
        """One function a feed, in order: the value given, as an array of the tensor's dtype."""
        shapes = [shape for t in feeds if is_static(shape := t.spec.shape)]
        self.shapes = tuple(shapes) if len(shapes) == len(feeds) else None
        """The feeds' shapes if all are static; otherwise they depend on the values of a run."""
        self.plans: dict[Any, Plan] = {}
        self.sized: dict[tuple[SizeFeeds[Plan], Values], Plan] = {}
        """Plans for certain values of the `SizeFeeds` of one of ``plans``, by both."""
        self.used = 0
        """Time of the last look-up, by the session's clock."""
