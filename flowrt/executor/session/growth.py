"""A warning for scripts that build operations in their training loop.

Each run then finds a larger graph; what is new is compiled, and nothing is ever freed: steps become slower by
the hour. The usual cause is a call like ``tf.assign(...)`` or ``tf.train.Saver()`` between two runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import final

from flowrt.graph.construction.graph import Graph

LOGGER = logging.getLogger(__name__)

EVERY = 16
"""Runs between two looks: one costs as much as a percent of the shortest step."""

WARN_AT = 4
"""The number of looks at which operations of a line were the newest ones, before it is named."""


@final
class GraphGrowth:
    """The growth of a session's graph, line by line. `look` is called at every `EVERY`-th run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._size = len(graph.operations)
        self._seen = Counter[str]()

    def look(self) -> None:
        """Warn, once a line, if it has added operations between runs `WARN_AT` times."""
        size, grown = len(self._graph.operations), len(self._graph.operations) - self._size
        self._size = size
        if not grown:
            return
        newest = self._graph.get_operations()[-1]
        line = newest.source or "a library"
        self._seen[line] += 1
        if self._seen[line] == WARN_AT:
            LOGGER.warning(
                "%s: the graph grows between runs, by %d operations in the last %d (now %d; the newest is %s"
                " %r), so steps become slower and memory fills. Build operations before the loop;"
                " graph.finalize() makes such a call an error",
                line, grown, EVERY, size, newest.type, newest.name,
            )  # fmt: skip
