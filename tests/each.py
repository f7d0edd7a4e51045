"""Decorators for tests with many parameters: what is one test, and what is left to the night.

@of_each_op(cases)       a test for each op, which goes through its cases
nightly(values, 3)       parameters, of which all but the first 3 are slow
daily(rows, chosen)      rows of parameters, of which all but the chosen ones are slow
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def of_each_op(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for a test of one of ``cases``, `pytest.param`s with ids that begin with ``op-``: one test
    for each op calls it for each case, and the first error names the case. A test for each of thousands of
    cases costs more than what it checks.
    """
    groups: dict[str, list[Any]] = {}
    for case in cases:
        groups.setdefault(case.id.partition("-")[0], []).append(case)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("group", groups.values(), ids=groups)
        def test(group: list[Any]) -> None:
            for case in group:
                try:
                    check(*case.values)
                except Exception as error:
                    error.add_note(f"in the case {case.id}")
                    raise

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def nightly(values: Iterable[Any], first: int) -> list[Any]:
    """Parameters, of which ``make test`` has the ``first`` ones: the others are more of the same kind, such
    as random graphs of further seeds, and slow.
    """
    return [
        value if number < first else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]


def daily(rows: Iterable[tuple[Any, ...]], chosen: Callable[..., bool]) -> list[Any]:
    """Rows of parameters, of which ``make test`` has those that are ``chosen(*row)``: what the others reach,
    these reach in other combinations.
    """
    return [pytest.param(*row, marks=[] if chosen(*row) else pytest.mark.slow) for row in rows]
