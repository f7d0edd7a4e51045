"""Amdahl's and Gustafson's laws, and their fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.laws import Fit, Law, amdahl, fit_amdahl, fit_gustafson, gustafson

BOTH = pytest.mark.parametrize("law, fit", [(amdahl, fit_amdahl), (gustafson, fit_gustafson)])
SHARES = st.floats(0, 1)
CURVE = [1, 2, 4, 8, 64]


def test_the_known_values() -> None:
    assert round(amdahl(0.95, 8), 3) == 5.926
    assert round(gustafson(0.95, 8), 3) == 7.65
    assert amdahl(0.95, 1e9) == pytest.approx(20)  # 1 / (1 - f) at most


@BOTH
def test_the_ends(law: Law, fit: object) -> None:
    assert law(1, 64) == pytest.approx(64)
    assert law(0, 64) == law(0.5, 1) == 1


@given(SHARES, st.floats(1, 1e4))
def test_a_job_that_grows_gains_at_least_as_much(share: float, devices: float) -> None:
    assert 1 - 1e-12 <= amdahl(share, devices) <= gustafson(share, devices) * (1 + 1e-12)
    assert gustafson(share, devices) <= devices * (1 + 1e-12)


@BOTH
def test_a_fit_finds_the_share(law: Law, fit: object) -> None:
    for share in (0.0, 0.3, 0.95, 1.0):
        found: Fit = fit(CURVE, [law(share, n) for n in CURVE])  # type: ignore[operator]
        assert found.share == pytest.approx(share, abs=1e-12)
        assert found.r_squared == pytest.approx(1)
        assert found.speedup(16) == pytest.approx(law(share, 16))


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_no_other_share_has_smaller_squares(law: Law, fit: object, seed: int) -> None:
    rng = np.random.default_rng(seed)
    curve = [law(0.9, n) * rng.uniform(0.8, 1.2) for n in CURVE]
    found: Fit = fit(CURVE, curve)  # type: ignore[operator]

    def squares(share: float) -> float:
        fitted = np.array([law(share, n) for n in CURVE])
        return float(
            np.sum((1 / fitted - 1 / np.array(curve)) ** 2 if law is amdahl else (fitted - curve) ** 2)
        )

    assert squares(found.share) <= min(map(squares, np.linspace(0, 1, 1001))) + 1e-12
    values = 1 / np.array(curve) if law is amdahl else np.array(curve)
    assert found.r_squared == pytest.approx(1 - squares(found.share) / np.sum((values - values.mean()) ** 2))


def test_a_curve_of_the_other_law_fits_worse() -> None:
    strong, weak = [amdahl(0.95, n) for n in CURVE], [gustafson(0.95, n) for n in CURVE]
    assert fit_gustafson(CURVE, strong).r_squared < 0.9 < fit_amdahl(CURVE, strong).r_squared
    assert fit_gustafson(CURVE, weak).r_squared > fit_amdahl(CURVE, weak).r_squared


@BOTH
def test_a_share_has_its_limits(law: Law, fit: object) -> None:
    assert fit([1, 4], [1, 5]).share == 1.0  # type: ignore[operator]
    assert fit([1, 4], [1, 0.5]).share == 0.0  # type: ignore[operator]
    flat: Fit = fit([2, 4], [1, 1])  # type: ignore[operator]
    assert (flat.share, flat.r_squared) == (0.0, 1.0)


@BOTH
def test_mistakes(law: Law, fit: object) -> None:
    for share, devices in ((1.5, 8), (-0.1, 8), (0.5, 0), (float("nan"), 2), (0.5, float("inf"))):
        with pytest.raises(
            InvalidArgumentError, match="expected a share from 0 to 1 and at least one device"
        ):
            law(share, devices)
    for numbers, speedups in (([1, 2], [1]), ([2, 2], [1, 2]), ([], []), ([0, 2], [1, 2]), ([1, 2], [1, -1])):
        with pytest.raises(InvalidArgumentError, match="expected positive speed-ups"):
            fit(numbers, speedups)  # type: ignore[operator]
