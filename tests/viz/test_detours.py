"""Wires of the HTML page that go around boxes: `page/detours.js`, in Node.js."""

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js, which runs the page's modules, is not here")

MODULE = Path(tf.viz.__file__).parent / "page" / "detours.js"
ASK = """
import { readFileSync } from "node:fs";
import { pointsAcross } from "./detours.mjs";
const asked = JSON.parse(readFileSync(0, "utf8"));
const found = asked.map(({ ends, boxes, outer }) =>
  pointsAcross({ order: boxes }, ends, boxes.slice(0, 2), outer.map((at) => boxes[at])));
console.log(JSON.stringify(found));
"""


def box(x, y, width=100, height=40, is_open=False):
    return {"x": x, "y": y, "width": width, "height": height, "isOpen": is_open}


def wire(a, b, *others, outer=(0, 1)):
    """From the right of ``a`` to the left of ``b``; ``outer`` are indices among all the boxes."""
    ends = [[a["x"] + a["width"], a["y"] + 20], [b["x"], b["y"] + 20]]
    return {"ends": ends, "boxes": [a, b, *others], "outer": outer}


def points_of(folder, *wires):
    shutil.copy(MODULE, folder / "detours.mjs")
    (folder / "ask.mjs").write_text(ASK)
    command = [str(NODE), "ask.mjs"]
    asked = json.dumps(wires)
    ran = subprocess.run(command, cwd=folder, input=asked, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def is_passed(points, box):
    """Whether the curve that `trace` draws through ``points`` is within ``box``."""
    t = np.linspace(0, 1, 200)[:, None]
    for (x1, y1), (x2, y2) in pairwise(points):
        bend = (x1 + x2) / 2
        ends = np.array([[x1, y1], [bend, y1], [bend, y2], [x2, y2]])
        weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
        x, y = (weights @ ends).T
        if np.any((x > box["x"]) & (x < box["x"] + box["width"]) & (y > box["y"]) & (y < box["y"] + 40)):
            return True
    return False


SAME_ROW = wire(box(0, 0), box(400, 0), box(200, 0))
ABOVE = wire(box(0, 300), box(400, 0), box(200, 150))
IN_GROUPS = wire(
    box(20, 300), box(520, 100), box(400, 100), box(0, 60, 150, 300, True), box(380, 60, 300, 300, True),
    outer=(3, 4),
)  # fmt: skip
ROWS_APART = wire(box(0, 0), box(400, 0), box(140, 12), box(140, -44))
"""Neither the lane above the start nor that below it is free: those beside the first box in the way are."""
WIRES = {"same row": SAME_ROW, "above": ABOVE, "in groups": IN_GROUPS, "rows apart": ROWS_APART}


@pytest.mark.parametrize("name", WIRES)
def test_a_wire_goes_around_what_stands_between_its_ends(tmp_path, name):
    asked = WIRES[name]
    between = [box for box in asked["boxes"][2:] if not box["isOpen"]]
    [points] = points_of(tmp_path, asked)
    assert is_passed(asked["ends"], between[0])
    assert not any(is_passed(points, box) for box in between)
    assert [points[0], points[-1]] == asked["ends"]
    xs = [x for x, _ in points]
    assert xs == sorted(xs)


def test_a_wire_is_straight_that_passes_nothing_or_is_one_of_too_many(tmp_path):
    free = wire(box(0, 0), box(400, 0), box(200, 100))
    crowded = wire(*SAME_ROW["boxes"], *[box(0, 1000 + 60 * i) for i in range(150)])
    assert points_of(tmp_path, free, crowded) == [free["ends"], crowded["ends"]]
