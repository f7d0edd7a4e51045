"""Fair shares of ports: by hand, and what makes rates max-min fair; flows under a clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.events import Events, Transfer
from flowrt.plan.replay.network import Fabric, Flow, Network


def rates(capacities: list[float], flows: list[Flow]) -> list[float]:
    network = Network(np.array(capacities, float))
    network.start(flows)
    return network.rates.tolist()


def test_a_flow_that_is_held_up_elsewhere_leaves_its_share_to_others() -> None:
    flows = [Flow((0, 1), 1), Flow((0,), 1), Flow((0,), 1)]
    assert rates([12, 2], flows) == [2, 5, 5]
    assert rates([12, 9], flows) == [4, 4, 4]


def test_a_full_port_is_shared_by_weight() -> None:
    assert rates([12], [Flow((0,), 1, 1), Flow((0,), 1, 3)]) == [3, 9]


def test_a_flow_within_a_host_takes_no_time() -> None:
    assert rates([1], [Flow((), 5)]) == [math.inf]
    ended: list[float] = []
    events = Events(Network(np.ones(1)))
    events.transfer(Transfer(2.0, [Flow((), 5)]), lambda: ended.append(events.now))
    events.run()
    assert ended == [2.0]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[Flow]]:
    capacities = draw(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=6))
    routes = st.sets(st.integers(0, len(capacities) - 1), min_size=1).map(tuple)
    flows = st.builds(Flow, routes, st.integers(1, 50), st.sampled_from([1.0, 2.0, 5.0]))
    return capacities, draw(st.lists(flows, min_size=1, max_size=12))


@given(networks())
def test_each_flow_has_a_full_port_where_none_gets_more_for_its_weight(network) -> None:  # type: ignore[no-untyped-def]
    capacities, flows = network
    found = rates(capacities, flows)
    used = [sum(r for r, f in zip(found, flows, strict=True) if p in f.route) for p in range(len(capacities))]
    assert all(use <= capacity * (1 + 1e-9) for use, capacity in zip(used, capacities, strict=True))
    for rate, flow in zip(found, flows, strict=True):
        assert any(
            used[port] >= capacities[port] * (1 - 1e-9)
            and all(
                other / f.weight <= rate / flow.weight * (1 + 1e-9)
                for other, f in zip(found, flows, strict=True)
                if port in f.route
            )
            for port in flow.route
        )


@given(networks(), st.floats(0, 1e6))
def test_all_bytes_arrive_and_no_port_was_overloaded(network, start: float) -> None:  # type: ignore[no-untyped-def]
    capacities, flows = network
    ends: list[float] = []
    events = Events(Network(np.array(capacities)))
    for number, flow in enumerate(flows):
        events.transfer(Transfer(start + number % 3, [flow]), lambda: ends.append(events.now))
    events.run()
    assert len(ends) == len(flows)
    for port, capacity in enumerate(capacities):
        through = sum(flow.nbytes for flow in flows if port in flow.route)
        assert max(ends) - start >= through / capacity * (1 - 1e-6)


def test_rates_change_when_a_flow_ends() -> None:
    ends: dict[str, float] = {}
    events = Events(Network(np.array([10.0])))
    for name, nbytes in {"short": 10, "long": 40}.items():
        events.transfer(
            Transfer(1.0, [Flow((0,), nbytes)]), lambda name=name: ends.update({name: events.now})
        )
    events.run()
    assert ends == pytest.approx({"short": 3.0, "long": 6.0})


def test_rates_change_when_a_flow_begins() -> None:
    ends: list[float] = []
    events = Events(Network(np.array([10.0])))
    for start in (0.0, 0.5):
        events.transfer(Transfer(start, [Flow((0,), 10)]), lambda: ends.append(events.now))
    events.run()
    assert ends == pytest.approx([1.5, 2.0])


def test_hosts_of_a_rack_share_its_uplink() -> None:
    fabric = Fabric(4, 10.0, rack=2, uplink_bytes_per_second=10.0)
    network = Network(fabric.capacities)
    network.start([Flow(fabric.route(*pair), 1) for pair in [(0, 2), (1, 3), (2, 3), (3, 2)]])
    assert network.rates.tolist() == [5, 5, 5, 5]
    assert fabric.route(0, 0) == ()


@pytest.mark.parametrize(
    "wrong", [{"hosts": 0}, {"bytes_per_second": -1.0}, {"rack": 0}, {"latency_s": -1.0}]
)
def test_a_wrong_fabric(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        Fabric(**({"hosts": 2} | wrong))
