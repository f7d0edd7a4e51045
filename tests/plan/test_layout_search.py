"""The cheapest layouts of nets, held against what is emitted, and against plans made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from flowrt.graph.passes.layouts.lower_layouts import lowered_by
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.plan.layout_costs import cost_of
from flowrt.plan.layout_search import Way, cheapest_layouts
from tests.distribute.strategies.nets_with_layouts import NETS, Net
from tests.plan.steps import mesh_of, prices, step_of

CHEAP, DEAR = prices(1e-7, 1e-13), prices(1e-4, 1e-9)


def emitted(layouts: Layouts) -> tuple[Counter[str], Counter[str]]:
    """The counts of collectives that a lowering in ``layouts`` emits, and the bytes that all receive."""
    counts, nbytes = Counter[str](), Counter[str]()
    for move in lowered_by(layouts).moves:
        if move.step.collective != "Slice":
            counts[move.step.collective] += 1
            nbytes[move.step.collective] += move.nbytes
    return counts, nbytes


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_what_is_counted_is_what_is_emitted(build: Callable[[], Net]) -> None:
    found = cheapest_layouts(step_of(build), mesh_of(dp=4), CHEAP)
    assert found.way is Way.ELIMINATION
    assert emitted(found.layouts) == (found.cost.collectives, found.cost.moved_bytes)
    assert found.cost == cost_of(found.layouts, CHEAP)
