"""The error tree: what an error says, what it also is, and TensorFlow's way of raising one."""

from __future__ import annotations

import pickle

import pytest

from flowrt import errors


def test_the_first_line_says_where() -> None:
    error = errors.InvalidArgumentError("expected 2; got 3", op="a/b", op_type="Add", source="x.py:7")
    assert str(error) == "Add 'a/b' (x.py:7): expected 2; got 3"
    assert (error.op, error.op_type, error.source) == ("a/b", "Add", "x.py:7")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.DTypeError, TypeError),
        (errors.NotFoundError, KeyError),
        (errors.FailedPreconditionError, RuntimeError),
        (errors.UnimplementedError, NotImplementedError),
    ],
)
def test_scripts_that_catch_the_builtin_catch_it(
    kind: type[errors.OpError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match="words"):
        raise kind("words")


def test_scripts_may_raise_in_tensorflows_argument_order() -> None:
    error = errors.OutOfRangeError(None, None, "the end")
    assert error.message == "the end"
    assert error.error_code == errors.OUT_OF_RANGE


def test_codes_are_the_canonical_ones_and_differ() -> None:
    kinds = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OpError)]
    codes = {
        k.error_code
        for k in kinds
        if k not in (errors.OpError, errors.DTypeError, errors.ForeignElementError)
    }
    assert codes == set(range(1, 17))


def test_an_error_survives_pickling_by_the_user() -> None:
    error = errors.DataLossError("damaged", op="r", source="y.py:1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is errors.DataLossError
    assert (again.message, again.op, again.source) == (error.message, "r", "y.py:1")
