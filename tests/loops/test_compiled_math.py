"""The machine code of loops' math functions against mpmath: the bounds that `flowrt.loops.loop_math`
states,
which `tests.loops.test_loop_math` shows of its arithmetic, hold for what LLVM makes of it.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from flowrt.device.llvm import host_jit
from flowrt.loops.loop_math import expand_functions
from tests.loops.test_llvm_loops import Compiled
from tests.loops.test_loop_math import (
    HARD_FLOAT32,
    NEAR_WHOLE_TURNS,
    POW_ULP,
    ULP,
    UNARY,
    exact_ulp_error,
    exact_value,
    interesting,
    is_in_domain,
    program_of,
)

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

DTYPES = ("float32", "float64")


def compiled(name: str, *arguments: Any) -> Any:
    """The function of each element, by a loop over vectors and what is left over behind them."""
    dtype = str(arguments[0].dtype)
    program = expand_functions(program_of(name, dtype))
    (found,) = Compiled(program, [*[argument.reshape(1, -1) for argument in arguments], None]).run()
    return np.asarray(found, dtype).reshape(-1)


def arguments_of(name: str, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        x = interesting(np.random.default_rng(7), 200).astype(dtype)
    hard = HARD_FLOAT32[name] if dtype == "float32" else ()
    turns = [float.fromhex(text) for text in NEAR_WHOLE_TURNS] if name in ("sin", "cos") else []
    x = np.concatenate([x, np.array([*hard, *turns], dtype)])
    return x[np.isfinite(x) & is_in_domain(name, x)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str, dtype: str) -> None:
    x = arguments_of(name, dtype)
    with mpmath.workprec(160):
        for argument, value in zip(x, compiled(name, x), strict=True):
            error = exact_ulp_error(value, exact_value(name, float(argument)))
            assert error <= ULP[name], f"{name}({argument!r}) = {value!r}: {error} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers(dtype: str) -> None:
    """Over the whole range of results."""
    rng = np.random.default_rng(8)
    x = np.exp(rng.uniform(-0.4, 0.4, 400) * 2.0 ** rng.uniform(-20, 6, 400)).astype(dtype)
    powers = rng.uniform(-104, 89, 400) if dtype == "float32" else rng.uniform(-746, 710, 400)
    with np.errstate(all="ignore"):
        y = (powers / np.log(x.astype(np.float64))).astype(dtype)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    with mpmath.workprec(160):
        for base, exponent, value in zip(x, y, compiled("pow", x, y), strict=True):
            error = exact_ulp_error(value, mpmath.mpf(float(base)) ** mpmath.mpf(float(exponent)))
            assert error <= POW_ULP[dtype], f"{base!r} ** {exponent!r} = {value!r}: {error} ulp"
