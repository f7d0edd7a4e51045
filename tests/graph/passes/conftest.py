"""Every test of the passes builds in a graph of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowrt.graph.construction.graph import Graph


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph() as graph:
        yield graph
