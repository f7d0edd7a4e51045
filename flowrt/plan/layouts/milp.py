"""A network of costs as a mixed-integer program, solved by HiGHS (extra ``plan``): the only door to highspy.

A choice is a binary variable, of which one per variable of the network is 1; a pair of choices is a
continuous one, with sums along rows and columns that are the two choices. So the pairs are integral where the
choices are. A limit of what the choices need together, such as bytes, is one row more.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.plan.layouts.cost_network import IMPOSSIBLE, CostNetwork, Table

TIME_LIMIT_S = 30.0


class Limit(NamedTuple):
    """``amounts`` have what each choice of some variables needs; all together may need ``most``."""

    amounts: Mapping[int, Table]
    most: float


class Solution(NamedTuple):
    """``at_least``: no choices cost less than this; the cost of ``choices`` if they are the best."""

    choices: list[int]
    at_least: float


def is_installed() -> bool:
    return importlib.util.find_spec("highspy") is not None


def best_found(
    network: CostNetwork, limit: Limit | None = None, time_limit_s: float = TIME_LIMIT_S
) -> Solution | None:
    """The best choices that are found in ``time_limit_s`` seconds; None if there are none."""
    highspy: Any = importlib.import_module("highspy")
    program = _Program(network, limit)
    solver = highspy.Highs()
    solver.silent()
    for option, value in {"time_limit": time_limit_s, "mip_rel_gap": 1e-9}.items():
        solver.setOptionValue(option, value)
    solver.passModel(program.model(highspy))
    solver.run()
    values = solver.getSolution().col_value
    info = solver.getInfo()
    if info.primal_solution_status != 2:  # kSolutionStatusFeasible
        return None
    return Solution(program.choices(values), float(info.mip_dual_bound) / SCALE)


SCALE = 1e6
"""Costs are in microseconds: HiGHS takes differences below 1e-7 for none."""


@final
class _Program:
    """Columns are choices, variable by variable, and then pairs."""

    def __init__(self, network: CostNetwork, limit: Limit | None) -> None:
        self._network, self._limit = network, limit
        sizes = [len(costs) for costs in network.own]
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self._pairs = {key: int(at) for key, at in zip(network.pairs, self._pair_columns(), strict=True)}

    def _pair_columns(self) -> list[int]:
        sizes = [table.size for table in self._network.pairs.values()]
        return list(np.cumsum([self._first[-1], *sizes])[:-1])

    def model(self, highspy: Any) -> Any:
        network, first = self._network, self._first
        own = np.concatenate(network.own)
        tables = [table.ravel() for table in network.pairs.values()]
        costs = np.concatenate([own, *tables])
        rows: list[tuple[np.ndarray, np.ndarray, float, float]] = []
        for i, choices in enumerate(network.own):
            columns = np.arange(first[i], first[i] + len(choices))
            rows.append((columns, np.ones(len(columns)), 1.0, 1.0))
        for (i, j), table in network.pairs.items():
            numbers = self._pairs[i, j] + np.arange(table.size).reshape(table.shape)
            for variable, lines in ((i, numbers), (j, numbers.T)):
                for choice, line in enumerate(lines):
                    columns = np.append(line, first[variable] + choice)
                    rows.append((columns, np.append(np.ones(len(line)), -1.0), 0.0, 0.0))
        if self._limit is not None:
            parts = [(first[i] + np.arange(len(a)), a) for i, a in self._limit.amounts.items()]
            columns = np.concatenate([c for c, _ in parts])
            amounts = np.concatenate([a for _, a in parts]) / self._limit.most
            rows.append((columns, amounts, -np.inf, 1.0))
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(costs), len(rows)
        possible = costs < IMPOSSIBLE
        model.col_cost_ = np.where(possible, costs, 0.0) * SCALE
        model.col_lower_ = np.zeros(len(costs))
        model.col_upper_ = possible.astype(float)
        model.row_lower_ = np.array([low for _, _, low, _ in rows])
        model.row_upper_ = np.array([high for _, _, _, high in rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(c) for c, _, _, _ in rows])])
        model.a_matrix_.index_ = np.concatenate([c for c, _, _, _ in rows])
        model.a_matrix_.value_ = np.concatenate([v for _, v, _, _ in rows])
        binary, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        model.integrality_ = [binary] * len(own) + [real] * (len(costs) - len(own))
        return model

    def choices(self, values: Sequence[float]) -> list[int]:
        found = np.array(values)
        return [
            int(found[start : start + len(own)].argmax())
            for start, own in zip(self._first, self._network.own, strict=False)
        ]
