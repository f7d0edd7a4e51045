"""The report in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowrt.report import read_run, write_page
from tests.report.run_dirs import write_whole_run
from tests.viz.browser import Page, chromium, find_chromium

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here; on Debian: apt-get install chromium"
)

CURVE = "figure [data-points]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Page]]:
    """The page of a whole run, by day and by night."""
    folder = tmp_path_factory.mktemp("run")
    path = write_page(read_run(write_whole_run(folder / "run")), folder / "report.html")
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield {
            name: browser.open(path, dark=name == "dark") for name in ("dark", "light")
        }  # the last is in front


def test_nothing_goes_wrong_and_nothing_is_loaded(pages: dict[str, Page]) -> None:
    for page in pages.values():
        assert page.errors == []
        assert all(address.startswith("file:") for address in page.requests)
        assert page.evaluate("document.querySelectorAll('svg').length") >= 5


def test_over_a_curve_the_caption_tells_its_values(pages: dict[str, Page]) -> None:
    page = pages["light"]
    caption = "document.querySelector('figcaption span').textContent"
    resting = page.evaluate(caption)
    x, y = page.evaluate(
        f"(() => {{ const curve = document.querySelector('{CURVE}'); curve.scrollIntoView();"
        " const box = curve.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.move(x, y)
    page.wait_for(f"{caption}.startsWith('step ')")
    page.move(0, 0)
    page.wait_for(f"{caption} === {resting!r}")


def test_it_has_colours_by_day_and_by_night(pages: dict[str, Page]) -> None:
    behind = "getComputedStyle(document.body).backgroundColor"
    assert pages["light"].evaluate(behind) != pages["dark"].evaluate(behind)


@pytest.mark.parametrize("width", [1440, 600])
def test_nothing_is_wider_than_the_window(pages: dict[str, Page], width: int) -> None:
    page = pages["light"]
    page.resize(width, 900)
    page.painted()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
