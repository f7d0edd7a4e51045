"""Pictures of schedules: each action is drawn where, and as long as, it runs; the command that draws them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from flowrt.cli.main import main
from flowrt.errors import ResourceExhaustedError
from flowrt.graph.pipeline.replay import Replay, replay
from flowrt.graph.pipeline.schedule_file import format_schedule
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.times import Times
from flowrt.viz import schedule_picture
from flowrt.viz.schedule_picture import schedule_svg

SVG = "{http://www.w3.org/2000/svg}"
TIP = re.compile(r"([FBIW])\((\d+),(\d+)\): ([\d.]+) to ([\d.]+)")


def attribute(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


@pytest.mark.parametrize("times", [Times(1, 1, 1), Times(2, 3, 1)], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_every_action_is_a_box_at_its_time(name: str, times: Times) -> None:
    played = replay(order(name, 4, 12), times)
    root = ET.fromstring(schedule_svg(played))
    boxes = drawn(root)
    assert len(boxes) == len(played.end)
    idle = [each for each in root.iter(f"{SVG}rect") if attribute(each, "height") == schedule_picture.ROW]
    lanes = {attribute(each, "y"): each for each in idle if each.get("class") is None}
    for tip, (rect, text) in boxes.items():
        kind, stage, micro_batch, start, end = tip
        device = played.schedule.device_of(int(stage))
        lane = lanes[sorted(lanes)[device]]
        assert attribute(rect, "y") == attribute(lane, "y")
        pixel = attribute(lane, "width") / float(played.makespan)
        assert attribute(rect, "x") == pytest.approx(attribute(lane, "x") + float(start) * pixel, abs=0.01)
        assert attribute(rect, "width") == pytest.approx((float(end) - float(start)) * pixel, abs=0.01)
        assert text == micro_batch
        assert float(end) == float(played.end[(kind, int(stage), int(micro_batch))])  # type: ignore[index]


def drawn(root: ET.Element) -> dict[tuple[str, ...], tuple[ET.Element, str]]:
    """The box and the text of each action, by the parts of its tooltip."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        title, rect, text = group.find(f"{SVG}title"), group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert title is not None
        assert rect is not None
        match = TIP.fullmatch(title.text or "")
        assert match
        found[match.groups()] = rect, (text.text or "") if text is not None else ""
    return found


def test_the_title_and_what_devices_hold() -> None:
    texts = texts_of(replay(order("1f1b", 4, 8)))
    assert "1f1b: 4 devices, 8 micro-batches, makespan 33, bubble 9 (27 %)" in texts
    assert [text for text in texts if text.startswith("holds")] == [
        "holds 4",
        "holds 3",
        "holds 2",
        "holds 1",
    ]


def texts_of(played: Replay) -> list[str]:
    root = ET.fromstring(schedule_svg(played))
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def test_kinds_and_chunks_have_colours() -> None:
    boxes = drawn(ET.fromstring(schedule_svg(replay(order("zbv", 2, 4)))))
    colours = {(tip[0], int(tip[1]) // 2): rect.attrib["fill"] for tip, (rect, _) in boxes.items()}
    assert len(set(colours.values())) == 6


def test_nothing_that_takes_no_time_breaks_the_picture() -> None:
    assert "makespan 0, bubble 0 (0 %)" in texts_of(replay(order("1f1b", 2, 2), Times(0, 0, 0)))[0]
    assert "makespan 3" in texts_of(replay(order("1f1b", 2, 2), Times(1, 0, 0)))[0]


@pytest.mark.slow
def test_too_many_actions() -> None:
    with pytest.raises(ResourceExhaustedError, match="at most 20000 actions in a picture; got 32768"):
        schedule_svg(replay(order("1f1b", 16, 1024)))


def command(*words: str, out: Path) -> list[str]:
    return ["export", *words, "--out", str(out)]


def test_the_command_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--devices", "4", "--micro-batches", "8"]
    svg, text, again = tmp_path / "a.svg", tmp_path / "a.txt", tmp_path / "b.svg"
    assert main(command("--schedule", "1f1b", *sizes, "--times", "1,3/2,0.5", out=svg)) == 0
    assert svg.read_text() == schedule_svg(replay(order("1f1b", 4, 8), Times(1, 1.5, 0.5)))
    assert main(command("--schedule", "1f1b", *sizes, out=text)) == 0
    assert text.read_text() == format_schedule(order("1f1b", 4, 8))
    assert main(command("--schedule", str(text), "--times", "1,3/2,0.5", out=again)) == 0
    assert drawn(ET.fromstring(again.read_text())).keys() == drawn(ET.fromstring(svg.read_text())).keys()
    assert capsys.readouterr().out.split() == [str(svg), str(text), str(again)]


def test_the_command_finds_a_schedule(tmp_path: Path) -> None:
    out = tmp_path / "a.txt"
    sizes = ["--devices", "4", "--micro-batches", "16", "--chunks", "1"]
    assert main(command("--schedule", "auto", *sizes, "--times", "1,1,1", out=out)) == 0
    assert len(out.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "words, out, message",
    [
        (["--schedule", "1f1"], "a.svg", "schedule: expected one of naive, .*; got '1f1'. Nearest: 1f1b"),
        (["--schedule", "1f1b"], "a.svg", "schedule '1f1b': expected --devices and --micro-batches"),
        (
            ["--schedule", "FILE"],
            "a.svg",
            r".*line 1, column 4 \(device 0\), F\(0,0\): expected once; got it again",
        ),
        (
            ["--schedule", "FILE", "--chunks", "2"],
            "a.svg",
            "--chunks: expected none with a file, which has its own",
        ),
        (["--schedule", "FILE"], "a.png", ".*a.png: expected a name that ends in .svg or .txt"),
        (["--schedule", "FILE"], "FILE", ".*expected a file other than the source; got the source"),
        (["--schedule", "1f1b", "g.pb"], "a.svg", "source: expected none with --schedule"),
        (["--schedule", "1f1b", "--depth", "2"], "a.svg", "--depth: expected none with --schedule"),
        (["--schedule", "1f1b", "--view", "logical"], "a.svg", "--view: expected none with --schedule"),
        (["g.pb", "--micro-batches", "2"], "a.svg", "--micro-batches: expected it only with --schedule"),
        ([], "a.svg", "source: expected a graph, or --schedule; got none"),
    ],
)
def test_a_command_that_is_wrong(
    words: list[str], out: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("F0 F0\n")
    words = [str(mine) if word == "FILE" else word for word in words]
    target = mine if out == "FILE" else tmp_path / out
    assert main(command(*words, out=target)) == 2
    assert re.match(f"flowrt export: {message}", capsys.readouterr().err)
    assert mine.read_text() == "F0 F0\n"


@pytest.mark.parametrize("times", ["1,1", "1,1,x", "1,1,1/0", "1,-1,1"])
def test_times_that_are_none(times: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command("--schedule", "1f1b", "--times", times, out=tmp_path / "a.svg"))
    assert "argument --times: expected" in capsys.readouterr().err


def test_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_bytes(b"\xff\xfe")
    assert main(command("--schedule", str(tmp_path / "mine"), out=tmp_path / "a.svg")) == 2
    assert "expected text in UTF-8; got other bytes" in capsys.readouterr().err


def test_thirds_of_activations_fit_their_column() -> None:
    texts = texts_of(replay(order("interleaved", 3, 12, 3)))
    assert [text for text in texts if text.startswith("holds")] == ["holds 3.67", "holds 3", "holds 2.33"]
