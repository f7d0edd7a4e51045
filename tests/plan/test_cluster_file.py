"""Cluster files: what they say, what is wrong with them by file and line, and the way back to text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Link
from flowrt.plan.cluster.cluster_file import (
    Cluster,
    DeviceKind,
    Host,
    Rack,
    Speed,
    Uplink,
    Wire,
    format_cluster,
    parse_cluster,
    read_cluster,
    this_host,
)

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "clusters"
TEXT = """\
[device.a100]
flops.bfloat16 = 312e12
flops.float32 = 19.5e12
memory = "80GiB"
bandwidth = "2.0TB/s"
efficiency = 0.55

[host]
devices = "8 x a100"
link = { latency = "3us", bandwidth = "300GB/s" }

[rack]
hosts = 16
uplink = { latency = "8us", bandwidth = "200GB/s", oversubscription = 2 }

[cluster]
racks = 79

[speed]
3 = 0.5
16-31 = 1.25
"""
A100 = DeviceKind(
    "a100", {"bfloat16": 312e12, "float32": 19.5e12}, 80 << 30, 2e12, {"bfloat16": 0.55, "float32": 0.55}
)


def test_a_file_says_what_there_is() -> None:
    cluster = parse_cluster(TEXT)
    uplink = Uplink(8e-6, 200e9, 1, 2.0)
    host = Host(A100, 8, Wire(3e-6, 300e9))
    assert cluster == Cluster((A100,), host, Rack(16, uplink), 79, (Speed(3, 3, 0.5), Speed(16, 31, 1.25)))
    assert cluster.num_hosts == 16 * 79
    assert cluster.num_devices == 8 * 16 * 79
    assert cluster.host.kind.flops_reached("bfloat16") == pytest.approx(0.55 * 312e12)
    speeds = cluster.device_speeds().reshape(-1, 8)
    assert speeds.shape == (1264, 8)
    assert speeds[:, 0].tolist() == speeds[:, 7].tolist()
    assert [speeds[host, 0] for host in (2, 3, 4, 15, 16, 31, 32)] == [1, 0.5, 1, 1, 1.25, 1.25, 1]


def test_efficiency_may_differ_by_dtype() -> None:
    text = TEXT.replace("efficiency = 0.55", "efficiency = { float32 = 0.9, bfloat16 = 0.4 }")
    kind = parse_cluster(text).host.kind
    assert kind.flops_reached("bfloat16") == pytest.approx(0.4 * 312e12)
    assert kind.flops_reached("float32") == pytest.approx(0.9 * 19.5e12)
    with pytest.raises(InvalidArgumentError, match=r"device a100: .*got 'bfloat61'\. Nearest: bfloat16"):
        kind.flops_reached("bfloat61")


@pytest.mark.parametrize(
    ("text", "latency", "bandwidth"),
    [
        ('latency = "3us", bandwidth = "300GB/s"', 3e-6, 300e9),
        ('latency = "0.25 ms", bandwidth = "100Gbit/s"', 0.25e-3, 12.5e9),
        ('latency = "120ns", bandwidth = "1e3MiB/s"', 120e-9, 1000 * 2**20),
        ('latency = "0s", bandwidth = "1TiB/s"', 0.0, 2.0**40),
    ],
)
def test_units(text: str, latency: float, bandwidth: float) -> None:
    found = parse_cluster(TEXT.replace('latency = "3us", bandwidth = "300GB/s"', text))
    assert found.host.link == Wire(latency, bandwidth)


def test_one_host_and_one_device_need_no_links() -> None:
    text = TEXT.partition("[rack]")[0].replace("8 x", "1 x").replace("link =", "# link =")
    cluster = parse_cluster(text)
    assert (cluster.num_devices, cluster.host.link, cluster.rack) == (1, None, Rack(1, None))


def test_this_host_has_the_links_of_its_environment() -> None:
    cluster = this_host(4, A100, {})
    assert cluster.num_devices == 4
    assert cluster.host.link is not None
    assert cluster.host.link.link == pytest.approx(DEFAULT_LINKS.between)
    measured = this_host(2, A100, {"FLOWRT_LINKS": "between=1e-4,1e-9"}).host.link
    assert measured is not None
    assert measured.link == pytest.approx(Link(1e-4, 1e-9))
    for processes, links in ((0, ""), (2, "between=1e-4,0"), (2, "nonsense")):
        with pytest.raises(InvalidArgumentError, match="expected"):
            this_host(processes, A100, {"FLOWRT_LINKS": links})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_are_clusters(path: Path) -> None:
    cluster = read_cluster(path)
    assert parse_cluster(format_cluster(cluster)) == cluster
    assert cluster.num_devices == {"laptop": 2, "gpus_64": 64}[path.stem]


# --- mistakes


@pytest.mark.parametrize(
    ("good", "bad", "line", "expected"),
    [
        ('"80GiB"', '"80GIB"', 4, r"device\.a100\.memory: .*got '80GIB'\. Nearest: .*GiB"),
        ('"80GiB"', "80", 4, r"memory: expected a number with a unit .*'2\.5GiB'; got 80$"),
        ('"80GiB"', '"GiB"', 4, "memory: expected a number with a unit"),
        ('"80GiB"', '"-1GiB"', 4, "memory: expected a number with a unit"),
        ('"80GiB"', '"1e999GiB"', 4, "memory: expected from 1 to 1e"),
        ('"2.0TB/s"', '"2.0TB"', 5, r"bandwidth: .*got '2\.0TB'\. Nearest: .*TB/s"),
        ('"2.0TB/s"', '"0TB/s"', 5, "bandwidth: expected from 1 to"),
        ('"300GB/s"', '"300GB/h"', 10, r"host\.link\.bandwidth: .*Nearest: .*GB/s"),
        ('"8us"', '"8GB/s"', 14, r"rack\.uplink\.latency: expected a number with a unit \(s, ms, us, ns\)"),
        ("0.55", "1.5", 6, "efficiency: expected a number from 1e-06 to 1; got 1.5"),
        ("0.55", "true", 6, "efficiency: expected a number from 1e-06 to 1; got true"),
        ("0.55", "{ float32 = 1 }", 6, "efficiency: expected 'bfloat16', which is missing"),
        ("0.55", "[0.5]", 6, "efficiency: .*got an array"),
        ("0.55", "nan", 6, "efficiency: .*got nan"),
        ("0.55", "0x" + "f" * 3600, 6, "efficiency: .*got a number of more than 64 bits"),
        ("0.55", "9" * 5000, 1, "expected TOML; got an error"),
        ("0.55", "[" * 5000, 1, "expected TOML; got an error"),
        ("flops.float32", "flops.flaot32", 3, r"device\.a100\.flops\.flaot32: .*Nearest: float32"),
        ("efficiency =", "efficency =", 6, r"device\.a100\.efficency: .*Nearest: efficiency"),
        ("device.a100", 'device."a b"', 1, "expected a name of letters"),
        ("8 x a100", "8 a100", 9, r"host\.devices: expected a number and a kind, such as '8 x a100'"),
        ("8 x a100", "8 x a10", 9, r"expected a kind with a table \[device\.a10\]; got none\. Nearest: a100"),
        ("8 x a100", "0 x a100", 9, "expected a number and a kind"),
        ("8 x a100", "900000 x a100", 8, "at most 1,000,000 devices in all; got 1,137,600,000"),
        ('"8 x a100"', "8", 9, "devices: expected a number and a kind.*; got 8$"),
        ("link =", "lnk =", 10, r"host\.lnk: .*Nearest: link"),
        ("link =", "# link =", 8, "host: expected a link, as there are several devices"),
        ("uplink =", "# uplink =", 12, "rack: expected an uplink, as there are several hosts"),
        ("hosts = 16", "hosts = 0", 13, r"rack\.hosts: expected a whole number from 1 to 1,000,000; got 0"),
        ("hosts = 16", "hosts = 16.0", 13, "expected a whole number .*; got 16.0"),
        ("hosts = 16", "hosts = true", 13, "expected a whole number .*; got true"),
        ("hosts = 16", "", 12, "rack: expected 'hosts', which is missing"),
        ("oversubscription = 2", "oversubscription = 0.5", 14, "expected a number from 1 to"),
        ("oversubscription = 2", "ports = 0", 14, r"ports: expected a whole number"),
        ("racks = 79", "racks = '79'", 17, r"cluster\.racks: expected a whole number .*; got '79'"),
        ("[cluster]", "[clutser]", 16, r"clutser: .*Nearest: cluster"),
        ("[host]", "[hots]", 8, r"hots: expected one of .*Nearest: host"),
        ("3 = 0.5", "1264 = 0.5", 20, r"expected the numbers of hosts from 0 to 1263"),
        ("3 = 0.5", "host3 = 0.5", 20, r"expected the numbers of hosts.*; got 'host3'"),
        ("3 = 0.5", "31-32 = 0.5", 21, "expected one speed for each host; got a second"),
        ("3 = 0.5", "3 = 0", 20, r"speed\.3: expected a number"),
        ("racks = 79", "racks = ", 17, "expected TOML; got an error: Invalid value"),
        ("racks = 79", "racks = [1,\n2]", 17, r"cluster\.racks: .*got an array"),
        ("racks = 79", 'racks = """\n[rack]\nhosts = 1"""', 17, "racks: expected a whole number"),
    ],
)
def test_a_mistake_is_named_with_its_line(good: str, bad: str, line: int, expected: str) -> None:
    assert TEXT.count(good) >= 1
    with pytest.raises(InvalidArgumentError, match=rf"(?s)^c\.toml:{line}: .*{expected}") as caught:
        parse_cluster(TEXT.replace(good, bad, 1), "c.toml")
    assert len(str(caught.value)) < 400


def test_lines_are_counted_in_files_of_windows_too() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^cluster\.toml:13: rack\.hosts"):
        parse_cluster(TEXT.replace("hosts = 16", "hosts = 0").replace("\n", "\r\n"))


def test_a_missing_table_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="expected 'host', which is missing; got device"):
        parse_cluster(TEXT.partition("[host]")[0])
    with pytest.raises(InvalidArgumentError, match="expected 'device', which is missing; got nothing"):
        parse_cluster("")
    head, _, rest = TEXT.partition("[rack]")
    with pytest.raises(InvalidArgumentError, match=r"12: cluster: expected a table \[rack\]"):
        parse_cluster(f"{head}[cluster]{rest.partition('[cluster]')[2]}".partition("[speed]")[0])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / "bytes.toml", "a\0b"):
        with pytest.raises(InvalidArgumentError, match="expected a readable file with a cluster"):
            read_cluster(path)


# --- properties


NAMES = st.text("abcXYZ019-_", min_size=1, max_size=8)
SIZES = st.floats(1, 1e15, allow_nan=False)
LATENCIES = st.floats(0, 10)
SHARES = st.floats(1e-6, 1)


@st.composite
def kinds(draw: st.DrawFn, name: str) -> DeviceKind:
    flops = draw(st.dictionaries(st.sampled_from(["float32", "bfloat16", "int8"]), SIZES, min_size=1))
    shares = {dtype: draw(SHARES) for dtype in flops}
    return DeviceKind(name, flops, draw(st.integers(1, 10**15)), draw(SIZES), shares)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    every = tuple(draw(kinds(name)) for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    devices, hosts, racks = (draw(st.integers(1, 20)) for _ in range(3))
    wire = Wire(draw(LATENCIES), draw(SIZES)) if devices > 1 or draw(st.booleans()) else None
    uplink = Uplink(draw(LATENCIES), draw(SIZES), draw(st.integers(1, 9)), draw(st.floats(1, 100)))
    rack = Rack(hosts, uplink if hosts * racks > 1 or draw(st.booleans()) else None)
    cuts = draw(st.lists(st.integers(0, hosts * racks), max_size=6, unique=True).map(sorted))
    speeds = [
        Speed(first, end - 1, draw(st.floats(0.01, 100)))
        for first, end in zip(cuts[::2], cuts[1::2], strict=False)
    ]
    host = Host(draw(st.sampled_from(every)), devices, wire)
    return Cluster(every, host, rack, racks, tuple(speeds))


@given(clusters())
@settings(deadline=None)
def test_a_cluster_comes_back_from_its_text(cluster: Cluster) -> None:
    assert parse_cluster(format_cluster(cluster)) == cluster


def check_text(text: str) -> None:
    try:
        found = parse_cluster(text)
    except InvalidArgumentError:
        return
    assert parse_cluster(format_cluster(found)) == found


PIECES = [
    *TEXT.split(), "[[", "]]", '"', "'", '"""', "\n", "#", "=", ".", "\0", "\r", "µs", "1e400", "-1", "inf",
    "1979-05-27", "{", "}", "{}", "[]", "0x" + "f" * 40, "[" * 2000, "9" * 5000, "[host]", "[speed]",
    "true", "\ud800",
]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 12), st.sampled_from(PIECES)), max_size=4)
)
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_a_damaged_file_is_a_cluster_or_one_error(edits: list[tuple[int, int, str]]) -> None:
    text = TEXT
    for place, length, piece in edits:
        text = text[:place] + piece + text[place + length :]
    check_text(text)


VALUES = st.recursive(
    st.sampled_from(
        ["0", "-3", "1.5", "inf", "nan", "true", '"3us"', '"1GB/s"', '"8 x a"', '""', "07:32:00", '"2 x "']
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda found: f"[{', '.join(found)}]"),
        st.dictionaries(NAMES | st.sampled_from(["latency", "float32"]), inner, max_size=3).map(
            lambda found: "{ " + ", ".join(f"{key} = {value}" for key, value in found.items()) + " }"
        ),
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(["device", "device.a", "host", "rack", "cluster", "speed"])
INNER = NAMES | st.sampled_from(
    ["flops", "memory", "bandwidth", "efficiency", "devices", "link", "hosts", "uplink", "racks", "3"]
)


@given(st.dictionaries(KEYS, st.dictionaries(INNER, VALUES, max_size=4), max_size=6))
@settings(deadline=None)
def test_tables_of_anything_are_a_cluster_or_one_error(tables: dict[str, dict[str, str]]) -> None:
    lines = [
        f"[{table}]\n" + "".join(f"{key} = {value}\n" for key, value in found.items())
        for table, found in tables.items()
    ]
    check_text("\n".join(lines))


@given(st.text())
@settings(deadline=None)
def test_any_text_is_a_cluster_or_one_error(text: str) -> None:
    check_text(text)
