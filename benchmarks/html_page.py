"""How fast the HTML page of 20,000 operations reacts: ``python -m benchmarks.html_page``. Needs Chromium.

Groups are opened one after the other, from outside to inside and each with all before it open; then the
stages are shown in turn, and at last all is open. What is measured is from the reader's act to the painted
picture, by the browser's clock; the bar is for opening. Exits with 1 if it is missed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import flowrt as tf
from benchmarks.exports import layers
from benchmarks.report import format_seconds
from tests.viz.browser import Page, chromium, find_chromium

OPERATIONS = 20_000
GROUPS = 40
BAR_S = 0.2

MEASURE = """async (act) => {
    const { canvas } = flowrtPage;
    const painted = new Promise((done) => canvas.addEventListener("painted", done, { once: true }));
    const start = performance.now();
    act();
    await painted;
    return (performance.now() - start) / 1e3;
}"""

NEXT_GROUP = """(() => {
    const { tree } = flowrtPage.stage;
    const open = flowrtPage.state.open.get(tree);
    const isClosed = ({ item }) => !tree.isOperation(item) && !open.has(tree.names[item]);
    return flowrtPage.picture.order.find(isClosed)?.item ?? null;
})()"""


def measure(page: Page, act: str) -> float:
    """Seconds until what ``act``, a JavaScript expression, does is painted."""
    seconds: float = page.evaluate(f"({MEASURE})(() => {act})")
    return seconds


def openings(page: Page) -> list[float]:
    """Seconds for each of `GROUPS` groups."""
    found = []
    while len(found) < GROUPS and (group := page.evaluate(NEXT_GROUP)) is not None:
        found.append(measure(page, f"flowrtPage.toggle({group})"))
    return found


def main() -> int:
    """Return 1 if the bar was missed."""
    if find_chromium() is None:
        sys.exit("benchmarks.html_page: found no Chromium; on Debian: apt-get install chromium")
    print(f"load {os.getloadavg()[0]:.1f} before the run, {len(os.sched_getaffinity(0))} cores\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.html"
        tf.viz.export(layers(OPERATIONS), path)
        with chromium(Path(folder) / "profile") as browser:
            page = browser.open(path)
            opened = openings(page)
            stages = page.evaluate("flowrtPage.graph.stages.length")
            switched = [
                measure(page, f"flowrtPage.showStage({stage})") for stage in range(stages - 1, -1, -1)
            ]
            everything = measure(page, "document.getElementById('open-all').click()")
            panned = measure(page, "(flowrtPage.viewport.pan(9, 9), flowrtPage.redraw())")
    print("| reader's act | median | slowest | bar |\n|---|---|---|---|")
    for act, seconds, bar in (
        (f"opens a group ({len(opened)} of them)", opened, format_seconds(BAR_S)),
        (f"shows a stage ({len(switched)} of them)", switched, ""),
        ("opens all", [everything], ""),
        ("pans, all open", [panned], ""),
    ):
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"| {act} | {format_seconds(middle)} | {format_seconds(max(seconds))} | {bar} |")
    return 1 if max(opened) > BAR_S else 0


if __name__ == "__main__":
    sys.exit(main())
