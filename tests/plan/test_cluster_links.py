"""Seconds of collectives and messages of a cluster, against schedules, formulas and plain loops."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives import cost
from flowrt.graph.collectives.algorithms import Group, algorithms_for
from flowrt.graph.collectives.cost import Link, Links, schedule_of
from flowrt.plan.cluster.cluster_file import Cluster, DeviceKind, Host, Rack, Uplink, Wire
from flowrt.plan.cluster.cluster_links import KINDS, ClusterLinks
from flowrt.plan.replay.played import Meeting, Message

GPU = DeviceKind("gpu", {"float32": 1e13}, 1 << 34, 1e12, {"float32": 1.0})
LINK, UPLINK = Wire(2e-6, 100e9), Uplink(10e-6, 25e9)
A, B = 50e-6, 1e-9
MEGA = 1 << 20


def cluster_of(
    devices: int, hosts: int = 1, racks: int = 1, *, link: Wire = LINK, uplink: Uplink = UPLINK
) -> Cluster:
    return Cluster((GPU,), Host(GPU, devices, link), Rack(hosts, uplink), racks)


def seconds(cluster: Cluster, shape: dict[str, int], kind: str, *axes: str, nbytes: int = MEGA) -> np.ndarray:
    return ClusterLinks(cluster, shape).meeting(0, Meeting(kind, axes, nbytes))


# --- flat algorithms are those of the schedules


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", range(2, 18))
def test_devices_with_a_link_of_their_own_take_the_time_of_the_schedule(kind: str, size: int) -> None:
    wire, uplink = Wire(A, 1 / B), Uplink(A, 1 / B)
    links, tasks, meeting = Links(Link(A, B), Link(A, B)), tuple(range(size)), Meeting(kind, ("x",), MEGA)
    for cluster in (cluster_of(size, link=wire), cluster_of(1, size, link=wire, uplink=uplink)):
        found = ClusterLinks(cluster, {"x": size}).algorithms(0, meeting)
        flat = {name: each for name, each in found.items() if "hierarchical" not in name}
        assert set(flat) == set(algorithms_for(KINDS[kind], Group(tasks))) - {"hierarchical"}
        for name, each in flat.items():
            schedule = schedule_of(KINDS[kind], name, Group(tasks))
            assert each.tolist() == pytest.approx([cost.seconds(schedule, tasks, MEGA, links)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "devices"), [(4, 2), (6, 3), (7, 3), (8, 2), (8, 4), (12, 5), (16, 4)])
def test_devices_of_a_host_share_its_uplink_as_ranks_share_the_port_of_a_task(
    kind: str, size: int, devices: int
) -> None:
    """Without latencies: messages of one port follow each other there, and pass together here."""
    hosts = math.ceil(size / devices)
    cluster = cluster_of(devices, hosts, link=Wire(0, math.inf), uplink=Uplink(0, 1 / B))
    tasks = tuple(rank // devices for rank in range(size))
    links = Links(Link(0, 0), Link(0, B))
    found = ClusterLinks(cluster, {"x": size}).algorithms(0, Meeting(kind, ("x",), MEGA))
    for name in set(algorithms_for(KINDS[kind], Group(tasks))) - {"hierarchical"}:
        schedule = schedule_of(KINDS[kind], name, Group(tasks))
        expected = cost.seconds(schedule, tasks, MEGA, links)
        if name == "pairwise" and size % devices:  # not the same host is the busiest in each step
            assert 0.7 * expected < float(found[name][0]) <= expected * (1 + 1e-9)
        else:
            assert float(found[name][0]) == pytest.approx(expected)


# --- many groups at a time: the same by plain loops


def looped(cluster: Cluster, groups: list[list[int]], name: str, kind: str, nbytes: int) -> list[float]:
    """Seconds of each group, message by message."""
    took = [0.0] * len(groups)
    uplink, link = cluster.rack.uplink, cluster.host.link
    assert uplink is not None
    assert link is not None
    for step in schedule_of(KINDS[kind], name, Group(tuple(range(len(groups[0]))))).steps:
        sent, loads = [], Counter[tuple[str, int]]()
        for number, group in enumerate(groups):
            for t in step:
                size = (
                    nbytes
                    * (t.end - t.first)
                    / (len(group) if name == "ring" else _chunks(kind, name, group))
                )
                hosts = [group[rank] // cluster.host.devices for rank in (t.source, t.target)]
                racks = [host // cluster.rack.hosts for host in hosts]
                ports = list(zip(("host out", "host in"), hosts, strict=True)) if hosts[0] != hosts[1] else []
                if racks[0] != racks[1]:
                    ports += zip(("rack out", "rack in"), racks, strict=True)
                sent.append((number, size, ports))
                loads.update(dict.fromkeys(ports, size))
        slowest = [0.0] * len(groups)
        for number, size, ports in sent:
            rack_bandwidth = uplink.bandwidth * cluster.rack.hosts / uplink.oversubscription
            through = [
                loads[port] / (uplink.bandwidth if port[0].startswith("host") else rack_bandwidth)
                for port in ports
            ]
            own = size * uplink.ports / uplink.bandwidth if ports else 0.0
            latency = uplink.latency if ports else link.latency
            slowest[number] = max(slowest[number], latency + max(size / link.bandwidth, own, *through, 0.0))
        took = [before + now for before, now in zip(took, slowest, strict=True)]
    return took


def _chunks(kind: str, name: str, group: list[int]) -> int:
    return schedule_of(KINDS[kind], name, Group(tuple(range(len(group))))).chunks


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Cluster, dict[str, int], tuple[str, ...]]:
    uplink = Uplink(
        draw(st.sampled_from([0.0, 1e-5])),
        draw(st.sampled_from([1e9, 25e9])),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1.0, 3.0, 20.0])),
    )
    shape = {name: draw(st.integers(1, 5)) for name in "xyz"}
    devices, hosts = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    racks = math.ceil(2 * math.prod(shape.values()) / (devices * hosts))
    axes = draw(st.sets(st.sampled_from("xyz"), min_size=1).map(sorted))
    return cluster_of(devices, hosts, racks, uplink=uplink), shape, tuple(axes)


def groups_of(shape: dict[str, int], axes: tuple[str, ...], first: int) -> list[list[int]]:
    numbers = {c: first + i for i, c in enumerate(itertools.product(*map(range, shape.values())))}
    others = [i for i, name in enumerate(shape) if name not in axes]
    found: dict[tuple[int, ...], list[int]] = {}
    for c, number in numbers.items():
        found.setdefault(tuple(c[i] for i in others), []).append(number)
    return list(found.values())


@pytest.mark.slow
@given(meshes(), st.sampled_from(sorted(set(KINDS) - {"all_to_all"})), st.sampled_from([0, 1000, 10**7]))
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_all_groups_at_a_time_are_as_message_by_message(
    case: tuple[Cluster, dict[str, int], tuple[str, ...]], kind: str, nbytes: int
) -> None:
    cluster, shape, axes = case
    links, position = ClusterLinks(cluster, shape), 1
    found = links.algorithms(position, Meeting(kind, axes, nbytes))
    groups = groups_of(shape, axes, links.size)
    for name, each in found.items():
        assert each.shape == tuple(1 if axis in axes else size for axis, size in shape.items())
        if name == "none":
            assert not each.any()
        elif "hierarchical" not in name:
            assert each.ravel() == pytest.approx(looped(cluster, groups, name, kind, nbytes))


@given(meshes(), st.sampled_from([0, 1000, 10**7]))
@settings(deadline=None)
def test_an_exchange_of_all_with_all_takes_the_time_of_its_busiest_port(
    case: tuple[Cluster, dict[str, int], tuple[str, ...]], nbytes: int
) -> None:
    cluster, shape, axes = case
    links = ClusterLinks(cluster, shape)
    found = links.algorithms(0, Meeting("all_to_all", axes, nbytes)).get("pairwise")
    if found is None:
        return
    uplink, link, groups = cluster.rack.uplink, cluster.host.link, groups_of(shape, axes, 0)
    assert uplink is not None
    assert link is not None
    chunk = nbytes / len(groups[0]) ** 2
    rack_bandwidth = uplink.bandwidth * cluster.rack.hosts / uplink.oversubscription
    took = Counter[tuple[str, int]]()
    used = [set[tuple[str, int]]() for _ in groups]
    for own, group in zip(used, groups, strict=True):
        for source, target in itertools.permutations(group, 2):
            hosts = (source // cluster.host.devices, target // cluster.host.devices)
            racks = (hosts[0] // cluster.rack.hosts, hosts[1] // cluster.rack.hosts)
            through = {("device", source): chunk / link.bandwidth}
            if hosts[0] != hosts[1]:
                through |= {("host", host): chunk / uplink.bandwidth / 2 for host in hosts}  # out and in
                through["port", source] = chunk * uplink.ports / uplink.bandwidth
            if racks[0] != racks[1]:
                through |= {("rack", rack): chunk / rack_bandwidth / 2 for rack in racks}
            took.update(through)
            own |= set(through)
    for seconds_, own in zip(found.ravel(), used, strict=True):
        latency = uplink.latency if any(kind == "host" for kind, _ in own) else link.latency
        assert seconds_ == pytest.approx((len(groups[0]) - 1) * latency + max(took[port] for port in own))
    assert (
        found.ravel() <= np.array(looped(cluster, groups, "pairwise", "all_to_all", nbytes)) * (1 + 1e-9)
    ).all()


@given(meshes(), st.sampled_from(sorted(KINDS)))
@settings(deadline=None)
def test_the_cheapest_is_taken_and_more_bytes_take_longer(
    case: tuple[Cluster, dict[str, int], tuple[str, ...]], kind: str
) -> None:
    cluster, shape, axes = case
    links, last = ClusterLinks(cluster, shape), 0.0
    for nbytes in (0, 10, 10**4, 10**8):
        meeting = Meeting(kind, axes, nbytes)
        slowest = float(links.meeting(0, meeting).max())
        assert slowest == min(float(each.max()) for each in links.algorithms(0, meeting).values())
        assert last <= slowest
        last = slowest


# --- sharing


def test_groups_of_a_meeting_share_the_uplinks() -> None:
    free = Uplink(0, 25e9)
    alone = seconds(cluster_of(8, 4, uplink=free), {"dp": 4, "tp": 1}, "all_reduce", "dp")
    assert alone.shape == (1, 1)  # on the four first devices, which are of one host
    one_a_host = seconds(cluster_of(1, 4, uplink=free), {"dp": 4}, "all_reduce", "dp")
    eight = seconds(cluster_of(8, 4, uplink=free), {"dp": 4, "tp": 8}, "all_reduce", "dp")
    assert eight.shape == (1, 8)
    assert eight.ravel() == pytest.approx([8 * float(one_a_host[0])] * 8)
    ports = cluster_of(8, 4, uplink=Uplink(0, 8 * 25e9, 8))
    assert seconds(ports, {"dp": 4, "tp": 8}, "all_reduce", "dp") == pytest.approx(eight / 8)


def test_one_message_uses_one_port() -> None:
    cluster = cluster_of(1, 4, uplink=Uplink(0, 200e9, 8))
    assert seconds(cluster, {"dp": 4}, "all_gather", "dp") == pytest.approx([3 * MEGA / 4 / 25e9])


def test_an_oversubscribed_rack_slows_what_leaves_it() -> None:
    def all_to_all(ratio: float) -> float:
        cluster = cluster_of(1, 4, 2, uplink=Uplink(0, 25e9, 1, ratio))
        return float(
            ClusterLinks(cluster, {"x": 8}).algorithms(0, Meeting("all_to_all", ("x",), MEGA))["pairwise"][0]
        )

    # Of 7 chunks of a host 4 leave the rack, and these of 4 hosts pass at 4 / ratio times the bandwidth.
    chunk = MEGA / 64 / 25e9
    assert all_to_all(1) == pytest.approx(7 * chunk)
    assert all_to_all(7 / 4) == pytest.approx(7 * chunk)
    assert all_to_all(10) == pytest.approx(40 * chunk)


def test_messages_between_positions_share_the_uplinks() -> None:
    cluster = cluster_of(8, 4, uplink=Uplink(10e-6, 25e9))
    links = ClusterLinks(cluster, {"tp": 8})
    sent = links.message(0, Message(1, "a", MEGA, True))
    assert sent.shape == (8,)
    assert sent == pytest.approx(np.full(8, 10e-6 + 8 * MEGA / 25e9))
    assert links.message(1, Message(0, "a", MEGA, False)) == pytest.approx(sent)
    two_in_a_host = ClusterLinks(cluster, {"dp": 2, "tp": 2})
    inside = two_in_a_host.message(0, Message(1, "a", MEGA, True))
    assert inside == pytest.approx(np.full((2, 2), 2e-6 + MEGA / 100e9))


def test_messages_share_the_uplinks_at_both_ends() -> None:
    """Devices 0 to 5 of hosts 0 and 1 send to devices 6 to 11 of hosts 1 and 2: each port passes 4, or 2."""
    links = ClusterLinks(cluster_of(4, 3, uplink=Uplink(0, 25e9)), {"x": 6})
    sent = links.message(0, Message(1, "a", MEGA, True)) * 25e9 / MEGA
    assert sent == pytest.approx(
        [4, 4, 4, 4, 4, 4]
    )  # 4 and 5 share host 1's with none, host 2's with 2 and 3


def test_a_group_inside_a_host_or_a_rack_does_not_wait_for_those_that_leave_it() -> None:
    """Devices 0 to 2, and 3 to 5."""
    meeting, chunk = Meeting("all_to_all", ("x",), MEGA), MEGA / 9
    in_host = ClusterLinks(cluster_of(4, 2), {"g": 2, "x": 3}).meeting(0, meeting)
    assert float(in_host[0, 0]) == pytest.approx(2 * (2e-6 + chunk / 100e9))
    assert in_host[1, 0] > in_host[0, 0]
    racks = cluster_of(1, 4, 2, uplink=Uplink(10e-6, 25e9, 1, 100.0))
    in_rack = ClusterLinks(racks, {"g": 2, "x": 3}).meeting(0, meeting)
    assert float(in_rack[0, 0]) == pytest.approx(2 * (10e-6 + chunk / 25e9))
    assert in_rack[1, 0] > in_rack[0, 0]


# --- hierarchies


def test_a_hierarchical_all_reduce_is_that_of_its_levels() -> None:
    cluster = cluster_of(4, 4, 2, link=Wire(0, 100e9), uplink=Uplink(0, 25e9, 1, 2.0))
    found = ClusterLinks(cluster, {"x": 32}).algorithms(0, Meeting("all_reduce", ("x",), MEGA))
    in_host = 2 * 3 / 4 * MEGA / 100e9
    in_rack = 2 * 3 / 4 * MEGA / 4 * 4 / 25e9  # a quarter in each of 4 groups that share the uplink
    between = 2 * 1 / 2 * MEGA / 16 * 16 / (4 * 25e9 / 2)
    assert float(found["hierarchical 4x4x2"][0]) == pytest.approx(in_host + in_rack + between)
    assert {name for name in found if "hierarchical" in name} == {
        "hierarchical 4x4x2",
        "hierarchical 4x8",
        "hierarchical 16x2",
    }


def test_hierarchies_of_other_kinds() -> None:
    cluster = cluster_of(4, 2, link=Wire(1e-6, 100e9), uplink=Uplink(1e-5, 25e9))
    links = ClusterLinks(cluster, {"x": 8})
    found = {kind: links.algorithms(0, Meeting(kind, ("x",), MEGA)) for kind in KINDS}
    gather = 2 * 1e-6 + 3 / 4 * MEGA / 100e9 + 1e-5 + MEGA / 4 / 2 * 4 / 25e9
    assert float(found["all_gather"]["hierarchical 4x2"][0]) == pytest.approx(gather)
    assert float(found["reduce_scatter"]["hierarchical 4x2"][0]) == pytest.approx(gather)
    # Each device has MEGA / 8, sends it to 4 in its host, and then half to the other host.
    twice = 3 * (1e-6 + MEGA / 8 / 4 / 100e9) + 1e-5 + 4 * MEGA / 8 / 2 / 25e9
    assert float(found["all_to_all"]["hierarchical 4x2"][0]) == pytest.approx(twice)
    assert list(found["broadcast"]) == ["tree"]


@pytest.mark.parametrize(("devices", "size"), [(4, 6), (3, 4), (8, 8), (1, 5)])
def test_groups_that_are_not_spread_alike_have_no_hierarchy(devices: int, size: int) -> None:
    links = ClusterLinks(cluster_of(devices, 8), {"x": size})
    assert not any(
        "hierarchical" in name for name in links.algorithms(0, Meeting("all_reduce", ("x",), MEGA))
    )
    # Devices 16 to 19 are two in each of two hosts, 20 to 23 are four in one.
    unlike = ClusterLinks(cluster_of(6, 8), {"g": 2, "x": 4}).algorithms(
        2, Meeting("all_reduce", ("x",), MEGA)
    )
    assert not any("hierarchical" in name for name in unlike)


# --- bytes


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_schedule(kind: str) -> None:
    cluster = cluster_of(2, 3, 2)
    links, meeting = ClusterLinks(cluster, {"x": 12}), Meeting(kind, ("x",), 12 * 12 * 1000)
    links_flat = {name: phases for name, phases in links._phases(0, meeting).items() if len(phases) == 1}
    for name, (phase,) in links_flat.items():
        schedule = schedule_of(KINDS[kind], name, Group(tuple(range(12))))
        expected = [0.0] * 3
        for t in schedule.messages():
            tier = (t.source // 2 != t.target // 2) + (t.source // 6 != t.target // 6)
            expected[tier] += meeting.nbytes * (t.end - t.first) / schedule.chunks
        assert phase.bytes_sent(meeting.nbytes).tolist() == pytest.approx(expected)


def test_a_hierarchy_sends_less_between_hosts() -> None:
    links = ClusterLinks(cluster_of(4, 4), {"x": 16})
    meeting = Meeting("all_reduce", ("x",), MEGA)
    assert links.cheapest(0, meeting) == "hierarchical 4x4"
    assert links.traffic(0, meeting) == pytest.approx((2 * 3 * 4 * MEGA, 2 * 3 * MEGA, 0))


# --- ends and mistakes


def test_a_group_of_one_takes_no_time() -> None:
    links = ClusterLinks(cluster_of(4, 2), {"dp": 8, "tp": 1})
    for kind in KINDS:
        assert links.meeting(0, Meeting(kind, ("tp",), MEGA)).tolist() == [[0.0]] * 8
        assert links.meeting(0, Meeting(kind, (), MEGA)).tolist() == [[0.0]] * 8
        assert links.traffic(0, Meeting(kind, ("tp",), MEGA)) == (0, 0, 0)
    assert ClusterLinks(cluster_of(1), {}).meeting(0, Meeting("all_reduce", (), MEGA)).shape == ()


def test_positions_are_on_devices_of_their_own() -> None:
    cluster = cluster_of(4, 3)  # positions of 6 devices: the second begins in the middle of a host
    links = ClusterLinks(cluster, {"x": 3, "y": 2})
    along = Meeting("all_reduce", ("x",), MEGA)
    assert links.meeting(0, along).shape == (1, 2)
    tp = [links.meeting(position, Meeting("all_reduce", ("y",), MEGA)).ravel() for position in (0, 1)]
    assert tp[0] == pytest.approx(tp[1])  # pairs do not straddle
    odd = ClusterLinks(cluster_of(4, 3), {"x": 2, "y": 3})
    first, second = odd.meeting(0, Meeting("all_reduce", ("y",), MEGA)).ravel()
    assert first < second  # devices 0, 1, 2 and 3, 4, 5


def test_results_are_kept_and_cannot_be_overwritten() -> None:
    links = ClusterLinks(cluster_of(4), {"x": 4})
    meeting = Meeting("all_reduce", ("x",), MEGA)
    found = links.meeting(0, meeting)
    assert links.meeting(0, meeting) is found
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


def test_mistakes() -> None:
    links = ClusterLinks(cluster_of(4, 2), {"dp": 2, "tp": 2})
    with pytest.raises(
        InvalidArgumentError, match=r"expected one of all_reduce, .*got 'al_reduce'\. Nearest: all_reduce"
    ):
        links.meeting(0, Meeting("al_reduce", ("dp",), 1))
    with pytest.raises(
        InvalidArgumentError, match=r"all_reduce along dpp: expected one of dp, tp; got 'dpp'\."
    ):
        links.meeting(0, Meeting("all_reduce", ("dpp",), 1))
    with pytest.raises(
        InvalidArgumentError, match="position 2: expected a cluster of at least 12 devices; got one of 8"
    ):
        links.meeting(2, Meeting("all_reduce", ("dp",), 1))
    with pytest.raises(InvalidArgumentError, match="position 3"):
        links.message(1, Message(3, "a", 1, True))
    with pytest.raises(InvalidArgumentError, match="expected a link between 2 hosts; got none"):
        Cluster((GPU,), Host(GPU, 1), Rack(2))
    with pytest.raises(InvalidArgumentError, match="expected a link between 2 devices of a host; got none"):
        Cluster((GPU,), Host(GPU, 2))
