"""Random sizes and schedules for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.times import Times


@st.composite
def schedules(draw: st.DrawFn, least_devices: int = 1) -> Schedule:
    name = draw(st.sampled_from(list(TABLE)))
    devices = draw(st.integers(least_devices, 5))
    return order(name, devices, draw(st.integers(1, 9)))


fractions = st.fractions(0, 8, max_denominator=12)
times = st.builds(Times, fractions, fractions, fractions)
