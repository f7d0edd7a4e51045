"""Random ops: seeds, streams, distributions."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (an op of one module may use ops of later ones)
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.random.random_ops import (
    get_seed,
    random_normal,
    random_uniform,
    random_uniform_op,
    set_random_seed,
    truncated_normal,
)
from flowrt.graph.ops.random.sampling import (
    categorical,
    multinomial,
    multinomial_op,
    random_crop,
    random_gamma,
    random_poisson,
    random_shuffle,
)
from flowrt.graph.resources.random_stream import RandomStream
from tests.graph.evaluation import value_of, values_of

FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as g:
        yield g


def stream(seed: int = 1, seed2: int = 2) -> RandomStream:
    return RandomStream(SimpleNamespace(attrs={"seed": seed, "seed2": seed2}))  # type: ignore[arg-type]


def many(tensor: Any) -> Any:
    return np.asarray(value_of(tensor)).astype(np.float64)


# --- seeds


def test_get_seed_follows_tensorflows_rule(graph: Graph) -> None:
    assert get_seed(None) == (None, None)
    assert get_seed(7) == (87654321, 7)
    set_random_seed(3)
    assert get_seed(7) == (3, 7)
    assert get_seed(None) == (3, graph.version)
    set_random_seed(0)
    assert get_seed(0) == (0, 2**31 - 1)  # (0, 0) would mean no seed
    assert get_seed(2**31 - 1 + 5) == (0, 5)


def test_a_seeded_graph_gives_the_same_values_in_every_session_and_copy() -> None:
    def values() -> Any:
        with Graph():
            set_random_seed(5)
            return values_of([random_uniform([4]), random_normal([4]), truncated_normal([4])])

    first, second = values(), values()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], first[1])


def test_ops_without_any_seed_differ_between_sessions() -> None:
    draw = random_uniform([8])
    assert not np.array_equal(value_of(draw), value_of(draw))


def test_two_ops_of_a_seeded_graph_draw_different_values() -> None:
    set_random_seed(5)
    a, b = values_of([random_uniform([8]), random_uniform([8])])
    assert not np.array_equal(a, b)


def test_an_op_seed_alone_repeats_the_values() -> None:
    np.testing.assert_array_equal(value_of(random_normal([3], seed=9)), value_of(random_normal([3], seed=9)))


# --- streams


def test_a_draw_depends_on_its_number_only() -> None:
    a, b = stream(), stream()
    first = [a.next().random(5) for _ in range(3)]
    b.next()  # a draw that nobody uses up
    b.next().random(100)
    np.testing.assert_array_equal(b.next().random(5), first[2])


def test_streams_do_not_depend_on_the_order_in_which_they_draw() -> None:
    def draws(order: str) -> dict[str, Any]:
        streams = {"a": stream(1, 2), "b": stream(1, 3)}
        found: dict[str, Any] = {"a": [], "b": []}
        for name in order:
            found[name].append(streams[name].next().standard_normal(7))
        return found

    one, other = draws("aabb"), draws("baba")
    for name in "ab":
        np.testing.assert_array_equal(one[name], other[name])
    assert not np.array_equal(one["a"], one["b"])


def test_long_draws_do_not_run_into_the_next_one() -> None:
    s = stream()
    long, following = s.next().random(10_000), s.next().random(10)
    assert not np.isin(following, long).any()


def test_threads_share_a_stream_and_each_gets_draws_of_its_own() -> None:
    s, lock = stream(), threading.Lock()
    found: list[float] = []

    def work() -> None:
        mine = [float(s.next().random()) for _ in range(200)]
        with lock:
            found.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone = stream()
    assert sorted(found) == sorted(float(alone.next().random()) for _ in range(800))


def test_a_draw_is_not_disturbed_by_another_thread() -> None:
    s = stream()
    mine = s.next()
    other = threading.Thread(target=lambda: s.next().random(3))
    other.start()
    other.join()
    np.testing.assert_array_equal(mine.random(5), stream().next().random(5))


def test_an_interleaved_32_bit_draw_leaves_nothing_behind() -> None:
    s, t = stream(), stream()
    s.next().integers(0, 10, 1, np.uint32)  # leaves half a word in the generator
    t.next()
    np.testing.assert_array_equal(
        s.next().integers(0, 100, 8, np.uint32), t.next().integers(0, 100, 8, np.uint32)
    )


# --- uniform and normal


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_is_uniform_and_never_reaches_the_upper_bound(dtype: Any) -> None:
    set_random_seed(1)
    x = many(random_uniform([20_000], dtype=dtype))
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01
    assert abs(x.var() - 1 / 12) < 0.003


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_with_bounds_stays_within_them_although_sums_round_up(dtype: Any) -> None:
    set_random_seed(1)
    x = many(random_uniform([50_000], 10, 11, dtype))
    assert x.min() >= 10
    assert x.max() < 11
    y = many(random_uniform([50_000], -3.0, 5.0, dtype))
    assert y.min() >= -3
    assert y.max() < 5
    assert abs(y.mean() - 1) < 0.05


def test_uniform_bounds_may_be_the_other_way_round() -> None:
    up = random_uniform([100], -1.0, 2.0, seed=1)
    down = [random_uniform([100], high, -1.0, seed=1) for high in (2.0, constant(2.0))]
    values = values_of([up, *down])
    for each in values[1:]:
        np.testing.assert_allclose(1 - each, values[0], rtol=1e-5, atol=1e-6)


def test_uniform_draws_into_the_given_array() -> None:
    out = np.empty((3, 2), np.float32)
    assert random_uniform_op.kernel(np, (3, 2), dtypes.float32, stream(), out=out) is out
    np.testing.assert_array_equal(out, random_uniform_op.kernel(np, (3, 2), dtypes.float32, stream()))
    strided = np.empty((2, 3), np.float32).T
    np.testing.assert_array_equal(
        random_uniform_op.kernel(np, (3, 2), dtypes.float32, stream(), out=strided), out
    )


def test_integers_are_equally_likely_and_within_bounds() -> None:
    set_random_seed(1)
    counts = np.bincount(value_of(random_uniform([30_000], 0, 6, "int32")), minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 5000).max() < 300  # 4.6 standard deviations
    wide = value_of(random_uniform([1000], -(2**62), 2**62, "int64"))
    assert wide.dtype == np.int64
    assert wide.min() < -(2**61)
    assert wide.max() > 2**61


def test_integers_need_an_upper_bound_above_the_lower() -> None:
    with pytest.raises(InvalidArgumentError, match="expected maxval"):
        random_uniform([2], dtype="int32")
    with pytest.raises(InvalidArgumentError, match="expected minval < maxval"):
        value_of(random_uniform([2], 3, 3, "int32"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_has_the_asked_mean_and_deviation(dtype: Any) -> None:
    set_random_seed(1)
    x = many(random_normal([20_000], mean=2.0, stddev=3.0, dtype=dtype))
    assert abs(x.mean() - 2) < 0.1
    assert abs(x.std() - 3) < 0.1
    assert abs(np.mean(((x - x.mean()) / x.std()) ** 4) - 3) < 0.3


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncated_normal_stays_within_two_deviations(dtype: Any) -> None:
    set_random_seed(1)
    x = many(truncated_normal([20_000], stddev=2.0, dtype=dtype))
    assert np.abs(x).max() <= 4
    assert np.abs(x).max() > 3.9
    assert abs(x.std() - 2 * 0.8796) < 0.03  # of a normal cut at 2


def test_mean_and_deviation_broadcast_and_get_gradients() -> None:
    set_random_seed(1)
    mean, deviation = constant([0.0, 100.0]), constant([1.0, 2.0])
    x = random_normal([500, 2], mean, deviation)
    assert abs(many(x)[:, 1].mean() - 100) < 1
    np.testing.assert_array_equal(value_of(gradients(x, mean)[0]), [500, 500])


def test_shapes_may_be_known_in_part_or_at_run_time() -> None:
    assert random_uniform([2, 3]).shape.as_list() == [2, 3]
    dims = placeholder("int32", [2])
    assert random_uniform(dims).shape.as_list() == [None, None]
    assert value_of(random_uniform(dims), {dims: [4, 0]}).shape == (4, 0)
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        random_uniform([-1])
    with pytest.raises(DTypeError):
        random_uniform([1.5])


def test_names_are_those_of_tensorflow(graph: Graph) -> None:
    assert random_normal([1], 1.0).name == "random_normal:0"
    assert random_uniform([1], 0, 5, "int32").name == "random_uniform:0"
    assert "random_normal/RandomStandardNormal" in graph.operations


# --- choices


def test_shuffle_permutes_the_rows() -> None:
    set_random_seed(1)
    rows = np.arange(200).reshape(100, 2)
    mixed = value_of(random_shuffle(rows))
    assert not np.array_equal(mixed, rows)
    np.testing.assert_array_equal(mixed[np.argsort(mixed[:, 0])], rows)


def test_multinomial_draws_classes_with_their_probabilities() -> None:
    set_random_seed(1)
    p = np.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    with np.errstate(divide="ignore"):
        drawn = value_of(multinomial(np.log(p) + 3, 20_000))
    assert drawn.dtype == np.int64
    for row, expected in zip(drawn, p, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20_000, expected, atol=0.02)


def test_multinomial_takes_huge_logits_and_another_dtype() -> None:
    drawn = categorical(np.array([[1e4, 0.0], [0.0, 1e4], [-1e4, -2e4]], np.float32), 5, dtype="int32")
    assert drawn.dtype == "int32"
    np.testing.assert_array_equal(value_of(drawn), [[0] * 5, [1] * 5, [0] * 5])
    assert multinomial(placeholder("float32", [None, 3]), 4).shape.as_list() == [None, 4]
    with pytest.raises(InvalidArgumentError, match=r"\[batch, classes\]"):
        multinomial([1.0, 2.0], 3)


def test_multinomial_never_takes_an_impossible_class_even_when_0_is_drawn() -> None:
    class Zeros:
        def next(self) -> Any:
            return self

        def random(self, shape: Any) -> Any:
            return np.zeros(shape)

    logits = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    drawn = multinomial_op.kernel(np, logits, 3, dtypes.int64, Zeros())
    np.testing.assert_array_equal(drawn, [[1] * 3, [0] * 3])


def test_random_crop_takes_every_place() -> None:
    set_random_seed(1)
    image = np.arange(12).reshape(3, 4)
    corners = {int(value_of(random_crop(image, [2, 2], seed=s))[0, 0]) for s in range(60)}
    assert corners == {0, 1, 2, 4, 5, 6}
    assert random_crop(image, [2, 2]).shape.as_list() == [2, 2]


def test_gamma_has_the_moments_of_its_parameters() -> None:
    set_random_seed(1)
    x = many(random_gamma([20_000], [0.5, 4.0], [1.0, 2.0]))
    assert x.shape == (20_000, 2)
    assert (x > 0).all()
    np.testing.assert_allclose(x.mean(axis=0), [0.5, 2.0], rtol=0.05)
    np.testing.assert_allclose(x.var(axis=0), [0.5, 1.0], rtol=0.1)


def test_poisson_has_the_mean_and_variance_of_its_rate() -> None:
    set_random_seed(1)
    x = many(random_poisson([0.5, 40.0], [20_000]))
    np.testing.assert_allclose(x.mean(axis=0), [0.5, 40.0], rtol=0.05)
    np.testing.assert_allclose(x.var(axis=0), [0.5, 40.0], rtol=0.1)
