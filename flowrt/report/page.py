"""The page: the sections in the template, with style and script inside."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from flowrt.base.markup import Markup, element, joined
from flowrt.report.read_run import Run
from flowrt.report.sections import sections_of
from flowrt.version import VERSION
from flowrt.viz.target import check_target, write_target


def make_page(run: Run) -> str:
    """The HTML text of a run's report."""
    parts = {
        "title": element("title", f"{run.directory.resolve().name}: report"),
        "style": element("style", Markup(_resource("page.css"))),
        "script": element("script", Markup(_resource("page.js"))),
        "body": joined(section(run) for section in sections_of(run)),
        "version": Markup(VERSION),
    }
    page = _resource("template.html")
    for name, part in parts.items():  # a "<" of the run's own text is escaped: it names no part
        page = page.replace(f"<!-- {name} -->", part)
    return page


def write_page(run: Run, target: Path) -> Path:
    """Atomically write the report of ``run`` to ``target``, and return ``target``. Raises the `OpError` of a
    path that cannot be written.
    """
    check_target(target)
    write_target(target, make_page(run).encode("utf-8", "replace"))  # file names may not be valid text
    return target


def _resource(name: str) -> str:
    return files("flowrt.report").joinpath(name).read_text("utf-8")
