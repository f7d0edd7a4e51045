"""The benchmark that holds predictions against this host: what it computes, not what it measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.predicted import CASES, bars, keep, row_of, spearman, table_lines


def test_the_order_of_predictions_counts_for_spearman() -> None:
    assert spearman([1.0, 2.0, 30.0], [10.0, 11.0, 12.0]) == pytest.approx(1)
    assert spearman([3.0, 2.0, 1.0], [10.0, 11.0, 12.0]) == pytest.approx(-1)


def rows_of(predicted: Sequence[float], drift: Sequence[float]) -> dict[str, dict[str, float]]:
    same = {"measured": 1.0, "median": 1.2, "first": 0.9, "cpu": 0.9}
    rows = [{"predicted": a, "drift": b, **same} for a, b in zip(predicted, drift, strict=True)]
    return dict(zip(CASES, rows, strict=False))


def test_the_table_tells_the_median_and_the_worst_error() -> None:
    text = "\n".join(table_lines(rows_of((1.05, 0.8, 1.0), (0.0, 0.0, 0.0))))
    assert "median error: 0.050 (target 0.1): holds" in text
    assert "worst error: 0.200 (target 0.25): holds" in text


def test_a_run_on_a_machine_that_changed_does_not_count() -> None:
    text = "\n".join(table_lines(rows_of((1.05, 0.5), (0.02, 0.6))))
    assert "| 50% |" not in text
    assert "-50% | 900.0, 900.0 ms | 60% |" in text
    assert "1 of 2 cases have a drift of at most 10%" in text
    assert "worst error: 0.050" in text
    assert "0 of 1 cases" in "\n".join(table_lines(rows_of((1.0,), (0.6,))))


def test_of_several_runs_the_steadiest_is_kept(tmp_path: Path) -> None:
    """Whole: what one run predicted is not held against what another measured."""
    for before, after, low in ((1.0, 1.5, 9.0), (2.0, 2.2, 4.0), (1.0, 1.3, 2.0)):
        predicted = [{"predicted": 3 * first, "first": first} for first in (before, after)]
        keep(row_of(predicted[0], {"low": low, "step": 5.0, "cpu": 6.0}, predicted[1]), "case", tmp_path)
    row = json.loads((tmp_path / "case.json").read_text())
    assert row == pytest.approx(
        {"predicted": 6.3, "first": 2.1, "measured": 4.0, "median": 5.0, "cpu": 6.0, "drift": 0.1}
    )


def test_the_choice_is_held_against_the_best_of_its_net() -> None:
    rows = {
        "mlp_dp_2": {"predicted": 1.0, "measured": 1.2},
        "mlp_stage3_2": {"predicted": 1.1, "measured": 1.0},
        "gpt_dp_2": {"predicted": 9.0, "measured": 9.0},
    }
    assert {name: value for name, value, _ in bars(rows)}["chosen over best"] == pytest.approx(0.2)


def test_stages_that_sleep_have_a_target_of_their_own() -> None:
    rows = {
        "gpt_dp_2": {"predicted": 9.0, "measured": 10.0},
        "sleep_gpipe_2": {"predicted": 1.03, "measured": 1.0},
        "sleep_1f1b_4": {"predicted": 1.0, "measured": 1.0},
    }
    found = {name: (value, target) for name, value, target in bars(rows)}
    assert found["worst error"] == (pytest.approx(0.1), 0.25)
    assert found["worst error of stages that sleep"] == (pytest.approx(0.03), 0.05)


def test_there_are_twelve_cases_of_two_and_four_processes_that_compute() -> None:
    computing = [case for case in CASES.values() if case.net != "sleep"]
    assert len(computing) == 12
    assert {case.processes for case in computing} == {2, 4}
