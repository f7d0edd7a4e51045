"""The benchmark that holds predictions against this host: what it computes, not what it measures."""

from __future__ import annotations

import pytest

from benchmarks.predicted import CASES, bars, spearman, table_lines


def test_the_order_of_predictions_counts_for_spearman() -> None:
    assert spearman([1.0, 2.0, 30.0], [10.0, 11.0, 12.0]) == pytest.approx(1)
    assert spearman([3.0, 2.0, 1.0], [10.0, 11.0, 12.0]) == pytest.approx(-1)


def test_the_table_tells_the_median_and_the_worst_error() -> None:
    rows = {
        name: {"predicted": predicted, "measured": 1.0, "median": 1.2, "first": 0.9, "cpu": 0.9}
        for name, predicted in zip(CASES, (1.05, 0.8, 1.0), strict=False)
    }
    text = "\n".join(table_lines(rows))
    assert "median error: 0.050 (target 0.1): holds" in text
    assert "worst error: 0.200 (target 0.25): holds" in text


def test_the_choice_is_held_against_the_best_of_its_net() -> None:
    rows = {
        "mlp_dp_2": {"predicted": 1.0, "measured": 1.2},
        "mlp_stage3_2": {"predicted": 1.1, "measured": 1.0},
        "gpt_dp_2": {"predicted": 9.0, "measured": 9.0},
    }
    assert {name: value for name, value, _ in bars(rows)}["chosen over best"] == pytest.approx(0.2)


def test_there_are_twelve_cases_of_two_and_four_processes() -> None:
    assert len(CASES) == 12
    assert {case.processes for case in CASES.values()} == {2, 4}
