"""The sections on what was run: facts that hold for all folders, and a table that compares folders."""

from __future__ import annotations

from collections.abc import Sequence

from flowrt.base.markup import Child, Markup, element
from flowrt.report.comparison import Row, common_facts, compared
from flowrt.report.parts import missing, section, table
from flowrt.report.read_run import Run

MAX_COMPARED = 16
"""Columns of the table: the last folders by name, as of dates."""

MAX_ROWS = 60

NONE = element("td", "–", class_="none")


def setup(run: Run) -> Markup:
    """Script, command, hyper-parameters, host and versions, as far as they are the same in all folders."""
    if not run.facts:
        return missing("Setup", "no record of script, host and versions", "A FileWriter writes it.")
    by_section: dict[str, list[Markup]] = {}
    for (title, name), value in common_facts(run).items():
        row = element("tr", element("th", name, scope="row"), element("td", value))
        by_section.setdefault(title, []).append(row)
    parts = [
        element("div", element("h3", title.capitalize()), element("table", rows, class_="pairs"))
        for title, rows in by_section.items()
    ]
    without = sorted(set(run.folders) - {folder for folder, _ in run.facts})
    note = element("p", f"There is no record of {', '.join(without)}.", class_="missing") if without else ""
    return section("Setup", element("div", parts, class_="setup"), note)


def comparison(run: Run) -> Markup:
    """A table of differences between the folders, and of their results; of a single folder nothing."""
    if len(run.folders) < 2:
        return Markup("")
    folders = sorted(run.folders)[-MAX_COMPARED:]
    rows = compared(run)
    hidden = len(run.folders) - len(folders)
    notes: list[Child] = []
    if hidden:
        notes.append(element("p", f"{hidden} more folders are not compared."))
    if len(rows) > MAX_ROWS:
        notes.append(element("p", f"{len(rows) - MAX_ROWS} more rows are not shown."))
    shown = [_cells(row, folders) for row in rows[:MAX_ROWS]]
    return section("Comparison", table(["", "", *folders], shown, kind="compared"), *notes)


def _cells(row: Row, folders: Sequence[str]) -> list[Markup]:
    cells = [
        element("td", row.cells[folder], class_="best" if folder in row.best else None)
        if folder in row.cells
        else NONE
        for folder in folders
    ]
    return [element("th", row.name, scope="row"), element("td", row.measure, class_="device none"), *cells]
