"""Matrix products, einsum, decompositions, norms and clipping, beyond the generic test of all ops."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from flowrt.graph.ops.linalg.decompositions import (
    cholesky,
    cholesky_solve,
    logdet,
    matrix_inverse,
    matrix_solve,
    matrix_triangular_solve,
    slogdet,
)
from flowrt.graph.ops.linalg.einsum import einsum, einsum_op
from flowrt.graph.ops.linalg.matmul import batch_matmul, matmul, matmul_op, matvec, tensordot
from flowrt.graph.ops.linalg.matrix_parts import diag, eye, matrix_diag_part, matrix_set_diag, trace
from flowrt.graph.ops.linalg.spectral import self_adjoint_eig, svd
from flowrt.graph.ops.nn.norms import (
    clip_by_average_norm,
    clip_by_global_norm,
    clip_by_norm,
    global_norm,
    norm,
)
from tests.graph.evaluation import value_of

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as g:
        yield g


def draw(*shape: int) -> Any:
    return rng.standard_normal(shape)


def check_gradient(f: Any, x: np.ndarray[Any, Any], rtol: float = 1e-5) -> None:
    """First and second derivatives of sum(w * f(x)) along random directions, against central differences."""
    variable = placeholder("float64", x.shape)
    y = f(variable)
    weight, direction, second = draw(*y.shape.as_list()), draw(*x.shape), draw(*x.shape)
    (dx,) = gradients(y, variable, constant(weight))
    (ddx,) = gradients(reduce_sum(multiply(dx, constant(direction))), variable)

    def at(tensor: Tensor, step: float, along: Any) -> Any:
        return value_of(tensor, {variable: x + step * along})

    h = 1e-6
    numeric = np.sum(weight * (at(y, h, direction) - at(y, -h, direction))) / (2 * h)
    np.testing.assert_allclose(np.sum(value_of(dx, {variable: x}) * direction), numeric, rtol=rtol, atol=1e-6)
    numeric = np.sum(direction * (at(dx, h, second) - at(dx, -h, second))) / (2 * h)
    np.testing.assert_allclose(np.sum(value_of(ddx, {variable: x}) * second), numeric, rtol=1e-4, atol=1e-5)


# --- products


def test_matmul_takes_one_matrix_op_for_matrices_and_a_batched_one_otherwise() -> None:
    assert matmul(draw(2, 3), draw(3, 4)).op.type == "MatMul"
    assert matmul(draw(5, 2, 3), draw(3, 4)).op.type == "BatchMatMulV2"
    assert matmul(placeholder("float64"), draw(3, 4)).op.type == "BatchMatMulV2"


def test_matmul_is_named_as_in_tensorflow() -> None:
    assert matmul(draw(2, 3), draw(3, 4)).name == "MatMul:0"
    assert matmul(draw(2, 3), draw(3, 4), name="product").name == "product:0"


@pytest.mark.parametrize("a, b", [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4))])
@pytest.mark.parametrize("flag", ["transpose", "adjoint"])
def test_matmul_agrees_with_numpy_for_transposed_and_adjoint_inputs(a: Any, b: Any, flag: str) -> None:
    x, y = draw(*a) + 1j * draw(*a), draw(*b) + 1j * draw(*b)
    swap = (lambda z: z.swapaxes(-1, -2).conj()) if flag == "adjoint" else lambda z: z.swapaxes(-1, -2)
    left = matmul(swap(x).copy(), y, **{f"{flag}_a": True})
    right = matmul(x, swap(y).copy(), **{f"{flag}_b": True})
    np.testing.assert_allclose(value_of(left), x @ y)
    np.testing.assert_allclose(value_of(right), x @ y)


def test_matmul_of_float16_adds_up_in_float32() -> None:
    ones = np.ones((1, 4096), np.float16)
    assert value_of(matmul(ones, ones, transpose_b=True)) == 4096  # float16 sums stall at 2048
    low = np.ones((1, 512), dtypes.bfloat16.np)
    assert value_of(matmul(low, low, transpose_b=True)).astype(float) == 512  # bfloat16 sums stall at 256


def test_matmul_of_unknown_dimensions_keeps_what_is_known() -> None:
    x = placeholder("float32", [None, 3])
    assert matmul(x, np.ones((3, 4), np.float32)).shape.as_list() == [None, 4]
    batches = matmul(placeholder("float32", [None, 7, 2, 3]), placeholder("float32", [5, 1, 3, 4]))
    assert batches.shape.as_list() == [5, 7, 2, 4]


def test_matmul_says_which_shapes_do_not_fit() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"expected a \[m, k\] and b \[k, n\]; got \[2, 3\], \[2, 3\]"
    ):
        matmul(draw(2, 3), draw(2, 3))
    with pytest.raises(InvalidArgumentError, match="vector or scalar"):
        batch_matmul(draw(3), draw(3, 2))
    with pytest.raises(InvalidArgumentError, match="got both"):
        matmul(draw(2, 3), draw(2, 3), transpose_a=True, adjoint_a=True)
    with pytest.raises(DTypeError):
        matmul(constant([[1.0]]), constant([[1]]))


def test_matmul_counts_its_flops() -> None:
    def flops(y: Tensor) -> float:
        op = y.op
        assert op.op_def.cost is not None
        return op.op_def.cost([x.spec for x in op.inputs], [y.spec])

    assert flops(matmul(draw(2, 3), draw(3, 4))) == pytest.approx(2 * 2 * 3 * 4)
    assert flops(matmul(draw(2, 3), draw(4, 3), transpose_b=True)) == pytest.approx(2 * 2 * 3 * 4)
    assert flops(matmul(draw(7, 2, 3), draw(7, 3, 4))) == pytest.approx(7 * 2 * 2 * 3 * 4)
    assert flops(einsum("bij,bjk->bik", draw(7, 2, 3), draw(7, 3, 4))) == pytest.approx(7 * 2 * 2 * 3 * 4)


def test_matmul_writes_into_the_given_array() -> None:
    a, b, out = draw(2, 3), draw(3, 4), np.empty((2, 4))
    assert matmul_op.kernel(np, a, b, False, False, out=out) is out
    np.testing.assert_array_equal(out, a @ b)


def test_matvec_is_matmul_with_a_column() -> None:
    a, b = draw(5, 2, 3), draw(5, 3)
    np.testing.assert_allclose(value_of(matvec(a, b)), np.einsum("bij,bj->bi", a, b))


@pytest.mark.parametrize(
    "a, b, axes",
    [
        ((2, 3, 4), (4, 2, 5), [[0, 2], [1, 0]]),
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (4, 5), 0),
        ((3,), (3,), 1),
        ((2, 3, 4), (5, 3), [[-2], [-1]]),
        ((2, 3), (3, 2), ([1, 0], [0, 1])),
        ((0, 3), (3, 2), 1),
    ],
)
def test_tensordot_agrees_with_numpy_for_static_and_unknown_shapes(a: Any, b: Any, axes: Any) -> None:
    x, y = draw(*a), draw(*b)
    expected = np.tensordot(x, y, axes)
    known = tensordot(x, y, axes)
    assert known.shape.as_list() == list(expected.shape)
    np.testing.assert_allclose(value_of(known), expected)
    u, v = placeholder("float64", [None] * x.ndim), placeholder("float64", [None] * y.ndim)
    np.testing.assert_allclose(value_of(tensordot(u, v, axes), {u: x, v: y}), expected)


@pytest.mark.parametrize("axes", [3, -1, [[0], [0, 1]], [[5], [0]], "x", [[0]]])
def test_tensordot_refuses_axes_that_do_not_fit(axes: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="ax"):
        tensordot(draw(2, 3), draw(2, 3), axes)


# --- einsum


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("i,j->ji", [(2,), (3,)]),
        ("ij,ij", [(2, 3), (2, 3)]),
        ("ba", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("iij,jjk->ik", [(2, 2, 3), (3, 3, 4)]),
        ("...ij,...jk->...ik", [(4, 1, 2, 3), (5, 3, 2)]),
        ("i...,...j->...ij", [(2, 3, 4), (4, 5)]),
        ("abc,cd,de,be->a", [(2, 3, 4), (4, 5), (5, 6), (3, 6)]),
        ("a,b,c->cab", [(2,), (3,), (4,)]),
        ("...a,...b,ab->...", [(3, 2), (3, 4), (2, 4)]),
        (",i->i", [(), (3,)]),
        (" i j , j -> i ", [(2, 3), (3,)]),
    ],
)
def test_einsum_agrees_with_numpy(equation: str, shapes: Any) -> None:
    arrays = [draw(*shape) for shape in shapes]
    expected = np.einsum(equation.replace(" ", ""), *arrays)
    result = einsum(equation, *arrays)
    assert result.shape.as_list() == list(expected.shape)
    np.testing.assert_allclose(value_of(result), expected, atol=1e-12)


def test_einsum_of_random_equations_agrees_with_numpy() -> None:
    generator = np.random.default_rng(5)
    for _ in range(150):
        sizes = dict(zip("abcde", generator.integers(1, 4, 5).tolist(), strict=True))
        terms = [
            "".join(generator.choice(list("abcde"), generator.integers(0, 4)))
            for _ in range(generator.integers(1, 4))
        ]
        letters = sorted(set("".join(terms)))
        output = "".join(generator.permutation([c for c in letters if generator.random() < 0.5]))
        arrays = [draw(*(sizes[c] for c in term)) for term in terms]
        equation = f"{','.join(terms)}->{output}"
        np.testing.assert_allclose(
            value_of(einsum(equation, *arrays)), np.einsum(equation, *arrays), atol=1e-10, err_msg=equation
        )


@pytest.mark.parametrize("equation", ["aab,b->a", "ab,ac->bc", "abb->a", "...ab,b->...a", "a...,ab->b..."])
def test_einsum_has_first_and_second_derivatives(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    sizes = {"a": 3, "b": 2, "c": 4}
    arrays = [draw(*(2 if c == "." else sizes[c] for c in t.replace("...", "."))) for t in terms]
    check_gradient(lambda x: einsum(equation, multiply(x, x), *arrays[1:]), arrays[0])


def test_einsum_cuts_long_products_into_pairs_in_a_cheap_order() -> None:
    # (a b) (b c) (c) is cheap from the right only
    result = einsum("ab,bc,c->a", draw(50, 50), draw(50, 50), draw(50))
    operations = [o for o in result.graph.get_operations() if o.type == "Einsum"]
    assert [len(o.inputs) for o in operations] == [2, 2]
    assert operations[0].outputs[0].shape.as_list() == [50]


def test_einsum_of_batches_is_a_batched_matrix_product() -> None:
    calls = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(np, name)

    einsum_op.kernel(Spy(), (draw(2, 3, 4), draw(2, 5, 4)), "bqd,bkd->bqk")
    assert "matmul" in calls
    assert "einsum" not in calls


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("ij->ik", [(2, 3)]),
        ("ij->ii", [(2, 3)]),
        ("ij,jk->ik", [(2, 3)]),
        ("i->i", [(2, 3)]),
        ("i1->i", [(2, 3)]),
        ("...i->i", [(2, 3)]),
        ("i->...i", [(2,)]),
        ("......->...", [(2,)]),
    ],
)
def test_einsum_refuses_equations_that_do_not_fit(equation: str, shapes: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        einsum(equation, *[draw(*shape) for shape in shapes])


@pytest.mark.parametrize(
    "equation, a, b",
    [("ijk,jkl->il", (2, 2, 3), (3, 2, 4)), ("bi,bi->b", (1, 3), (2, 3)), ("ij,jk->ik", (2, 3), (4, 5))],
)
def test_einsum_refuses_sizes_that_differ_when_run(equation: str, a: Any, b: Any) -> None:
    x, y = placeholder("float64", [None] * len(a)), placeholder("float64", [None] * len(b))
    with pytest.raises(InvalidArgumentError, match="expected one size per label"):
        value_of(einsum(equation, x, y), {x: draw(*a), y: draw(*b)})


def test_einsum_imports_opt_einsum_only_when_it_has_a_choice() -> None:
    program = (
        "import sys; from flowrt.graph.ops.linalg.einsum import einsum; einsum('ij,jk->ik', [[1.]], [[1.]]);"
        "assert 'opt_einsum' not in sys.modules; einsum('i,i,i->', [1.], [1.], [1.]);"
        "assert 'opt_einsum' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- decompositions


def spd(n: int) -> Any:
    x = draw(n, n)
    return x @ x.T + np.eye(n)


def symmetric(x: Tensor) -> Tensor:
    """A positive definite matrix made of any: so that differences in every direction stay symmetric."""
    return add_v2(matmul(x, x, transpose_b=True), constant(2 * np.eye(x.shape.as_list()[-1])))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: cholesky(symmetric(x)),
        lambda x: matrix_inverse(symmetric(x)),
        lambda x: logdet(symmetric(x)),
        lambda x: self_adjoint_eig(symmetric(x))[0],
        lambda x: multiply(*[self_adjoint_eig(symmetric(x))[1]] * 2),
        lambda x: cholesky_solve(cholesky(symmetric(x)), x),
        lambda x: norm(x, 2, axis=[0, 1]),
        lambda x: multiply(svd(x)[1], svd(x)[1]),
    ],
)
def test_decompositions_have_first_and_second_derivatives(f: Any) -> None:
    check_gradient(f, draw(3, 3))


def test_cholesky_reads_only_the_lower_triangle() -> None:
    a = spd(3)
    np.testing.assert_allclose(value_of(cholesky(np.tril(a))), np.linalg.cholesky(a))


def test_solves_agree_with_their_definitions() -> None:
    a, b = draw(2, 3, 3) + 3 * np.eye(3), draw(2, 3, 2)
    np.testing.assert_allclose(a @ value_of(matrix_solve(a, b)), b)
    np.testing.assert_allclose(np.tril(a) @ value_of(matrix_triangular_solve(a, b)), b)
    np.testing.assert_allclose(np.triu(a) @ value_of(matrix_triangular_solve(a, b, lower=False)), b)
    s = spd(3)
    np.testing.assert_allclose(s @ value_of(cholesky_solve(np.linalg.cholesky(s), b[0])), b[0])


def test_slogdet_gives_sign_and_logarithm_by_name() -> None:
    a = np.diag([2.0, -3.0])
    result = slogdet(a)
    assert value_of(result.sign) == -1
    np.testing.assert_allclose(value_of(result.log_abs_determinant), np.log(6))


@pytest.mark.parametrize("build", [matrix_inverse, lambda a: matrix_solve(a, np.ones((2, 1)))])
def test_a_singular_matrix_is_an_error_that_says_so(build: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an invertible matrix"):
        value_of(build(np.ones((2, 2))))


def test_cholesky_of_an_indefinite_matrix_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a positive definite matrix"):
        value_of(cholesky(-np.eye(2)))


def test_decompositions_refuse_matrices_that_are_not_square() -> None:
    for build in (matrix_inverse, cholesky, slogdet, self_adjoint_eig):
        with pytest.raises(InvalidArgumentError, match="expected square matrices"):
            build(draw(2, 3))


def test_svd_returns_values_first_and_v_not_transposed() -> None:
    a = draw(4, 3)
    s, u, v = (value_of(t) for t in svd(a))
    np.testing.assert_allclose(u @ np.diag(s) @ v.T, a)
    np.testing.assert_allclose(value_of(svd(a, compute_uv=False)), s)
    assert svd(a, full_matrices=True)[1].shape.as_list() == [4, 4]


# --- parts


def test_eye_is_a_constant_when_small_and_computed_when_large_or_unknown() -> None:
    assert eye(3).op.type == "Const"
    assert eye(3).name == "eye_1:0"
    np.testing.assert_array_equal(
        value_of(eye(2, 3, [2], "int32")), np.broadcast_to(np.eye(2, 3, dtype=np.int32), (2, 2, 3))
    )
    np.testing.assert_array_equal(value_of(eye(40)), np.eye(40, dtype=np.float32))
    n = placeholder("int32", [])
    np.testing.assert_array_equal(value_of(eye(n), {n: 3}), np.eye(3, dtype=np.float32))


def test_diagonals_are_read_written_and_summed() -> None:
    a = draw(2, 3, 4)
    np.testing.assert_allclose(value_of(trace(a)), np.trace(a, axis1=1, axis2=2))
    np.testing.assert_array_equal(value_of(matrix_diag_part(a)), np.diagonal(a, axis1=1, axis2=2))
    changed = value_of(matrix_set_diag(a, np.zeros((2, 3))))
    np.testing.assert_array_equal(changed[0], a[0] * (1 - np.eye(3, 4)))
    np.testing.assert_array_equal(value_of(diag([1, 2])), np.diag([1, 2]))


@pytest.mark.parametrize("k", [1, -2, (-1, 1), (-2, 3), (0, 2), (-2, -1)], ids=str)
def test_other_diagonals_are_read_the_shorter_padded_at_their_end(k: int | tuple[int, int]) -> None:
    a, a_fed = draw(2, 3, 4), placeholder("float64", [None, None, None])
    low, high = k if isinstance(k, tuple) else (k, k)
    length = min(3 + min(high, 0), 4 + min(-low, 0))
    expected = np.full((2, high - low + 1, length), 9.0)
    for i, place in enumerate(range(high, low - 1, -1)):
        found = np.diagonal(a, place, 1, 2)
        expected[:, i, : found.shape[-1]] = found
    expected = expected if isinstance(k, tuple) else expected[:, 0]
    read = matrix_diag_part(a, k=k, padding_value=9)
    assert read.shape.as_list() == list(expected.shape)
    np.testing.assert_array_equal(value_of(read), expected)
    np.testing.assert_array_equal(
        value_of(matrix_diag_part(a_fed, k=k, padding_value=9), {a_fed: a}), expected
    )


@pytest.mark.parametrize("k", [4, (2, 1), (-3, 0)], ids=str)
def test_diagonals_that_a_matrix_lacks_are_an_error(k: int | tuple[int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected k as \(low, high\) in shape \(2, 3, 4\)"):
        matrix_diag_part(draw(2, 3, 4), k=k)


# --- norms and clipping


@pytest.mark.parametrize("ord", ["euclidean", 1, 2, np.inf, 3.5])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_vector_norms_agree_with_numpy(ord: Any, axis: Any, keepdims: bool) -> None:
    a = draw(2, 3)
    ours, theirs = value_of(norm(a, ord, axis, keepdims)), None if ord == "euclidean" else ord
    flat = a if axis is not None else a.reshape(-1)
    expected = np.linalg.norm(flat, theirs, axis if axis is not None else 0)
    np.testing.assert_allclose(np.squeeze(ours), expected)
    assert ours.ndim == (2 if keepdims else 0 if axis is None else 1)


@pytest.mark.parametrize("ord", ["euclidean", "fro", 1, 2, np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms_agree_with_numpy(ord: Any, keepdims: bool) -> None:
    a = draw(2, 3, 4)
    theirs = "fro" if ord == "euclidean" else ord
    np.testing.assert_allclose(
        value_of(norm(a, ord, axis=[0, -1], keepdims=keepdims)), np.linalg.norm(a, theirs, (0, 2), keepdims)
    )


@pytest.mark.parametrize("ord, axis", [("nuclear", None), (-1, None), (3, (0, 1)), (2, (0, 0)), (2, "x")])
def test_norm_refuses_other_orders_and_axes(ord: Any, axis: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="norm: expected"):
        norm(draw(2, 3), ord, axis)


def test_clip_by_norm_scales_down_only_what_is_longer() -> None:
    np.testing.assert_allclose(value_of(clip_by_norm([3.0, 4.0], 1.0)), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(value_of(clip_by_norm([3.0, 4.0], 10.0)), [3, 4], rtol=1e-6)
    np.testing.assert_allclose(
        value_of(clip_by_norm([[3.0, 4.0], [0.3, 0.4]], 1.0, axes=[1])), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6
    )


def test_clip_by_norm_of_zeros_has_a_finite_gradient() -> None:
    x = constant([0.0, 0.0])
    np.testing.assert_array_equal(value_of(gradients(clip_by_norm(x, 1.0), x)[0]), [1, 1])


def test_clip_by_global_norm_keeps_none_and_sparse_gradients() -> None:
    sparse = IndexedSlices(constant([[4.0]]), constant([1]), constant([3, 1]))
    clipped, length = clip_by_global_norm([constant([3.0]), None, sparse], 1.0)
    assert value_of(length) == 5
    assert clipped[1] is None
    assert isinstance(clipped[2], IndexedSlices)
    np.testing.assert_allclose(value_of(clipped[0]), [0.6], rtol=1e-6)
    np.testing.assert_allclose(value_of(clipped[2].values), [[0.8]], rtol=1e-6)


def test_clip_by_global_norm_makes_everything_nan_when_the_norm_is_not_finite() -> None:
    clipped, _ = clip_by_global_norm([constant([1.0]), constant([np.inf])], 1.0)
    assert all(np.isnan(value_of(t)).all() for t in clipped)


def test_clip_by_global_norm_refuses_anything_but_a_list_of_tensors() -> None:
    with pytest.raises(DTypeError, match="expected a list"):
        clip_by_global_norm(constant([1.0]), 1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="at least one tensor"):
        global_norm([None])


def test_clip_by_average_norm_divides_by_the_number_of_elements() -> None:
    np.testing.assert_allclose(value_of(clip_by_average_norm([6.0, 8.0], 1.0)), [1.2, 1.6], rtol=1e-6)


# --- LU decompositions, roots and logarithms, tridiagonal matrices


def test_lu_of_several_blocks_puts_the_largest_row_first() -> None:
    x = np.random.default_rng(0).standard_normal((2, 150, 150))
    factors, places = flowrt.Session().run(flowrt.linalg.lu(x))
    product = (np.tril(factors, -1) + np.eye(150)) @ np.triu(factors)
    np.testing.assert_allclose(product, np.take_along_axis(x, places[..., None], 1), atol=1e-10)
    assert np.abs(np.tril(factors, -1)).max() <= 1


@pytest.mark.parametrize("name", ["lu", "sqrtm", "logm"])
def test_a_singular_matrix_has_no_lu_root_or_logarithm(name: str) -> None:
    singular = np.array([[1, 2], [2, 4]], np.complex128)
    with pytest.raises(InvalidArgumentError, match=r"expected an? (invertible )?matrix"):
        flowrt.Session().run(getattr(flowrt.linalg, name)(singular))


def test_a_negative_eigenvalue_has_no_real_root() -> None:
    with pytest.raises(InvalidArgumentError, match="without eigenvalues that are zero or negative"):
        flowrt.linalg.sqrtm([[1.0, 2.0], [2.0, 1.0]]).eval(session=flowrt.Session())


def test_roots_and_logarithms_undo_products_and_exponentials() -> None:
    """A defective matrix, a rotation, numbers far apart, and a batch of them."""
    x = np.array([[[4, 1], [0, 4]], [[0, -9], [9, 0]], [[1e-8, 3], [0, 1e8]]])
    root = flowrt.linalg.sqrtm(x)
    squared, again = flowrt.Session().run([root @ root, flowrt.linalg.expm(flowrt.linalg.logm(x + 0j))])
    np.testing.assert_allclose(squared, x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again[:2], x[:2], rtol=1e-12, atol=1e-12)


def test_elements_beside_the_diagonals_are_not_read() -> None:
    diagonals = flowrt.constant([[1, np.nan], [2, 2], [np.nan, 1]])
    solution = flowrt.linalg.tridiagonal_solve(diagonals, [3.0, 3.0])
    product = flowrt.linalg.tridiagonal_matmul(diagonals, [[1.0], [1.0]])
    found = flowrt.Session().run([solution, product, *flowrt.gradients([solution, product], diagonals)])
    np.testing.assert_allclose(found[0], [1, 1], rtol=1e-6)
    np.testing.assert_allclose(found[1], [[3], [3]])
    np.testing.assert_allclose(found[2], [[2 / 3, 0], [2 / 3, 2 / 3], [0, 2 / 3]], rtol=1e-6)


def test_right_sides_in_rows_give_solutions_in_rows() -> None:
    """As in TensorFlow 1.15; 2.21 gives columns."""
    diagonals, rows = np.eye(3)[[1, 0, 2]] + [[0], [3], [0]], np.ones((2, 3))
    columns = flowrt.linalg.tridiagonal_solve(diagonals, rows.T)
    turned = flowrt.linalg.tridiagonal_solve(diagonals, rows, transpose_rhs=True)
    found = flowrt.Session().run([columns, turned])
    np.testing.assert_array_equal(found[0].T, found[1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((np.ones((2, 3)), np.ones(3)), "expected diagonals .*3, n"),
        ((np.ones((3, 3)), np.ones((2, 3, 1))), "expected rhs of as many dimensions"),
        ((np.ones((3, 3)), np.ones(3), "band"), "expected diagonals_format compact"),
        (([np.ones(1), np.ones(3), np.ones(2)], np.ones(3), "sequence"), "expected 3 or 2 elements"),
        (([np.ones(3)], np.ones(3), "sequence"), "expected a sequence of three"),
    ],
    ids=["count", "rank", "format", "length", "sequence"],
)
def test_tridiagonal_matrices_say_what_they_expect(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        flowrt.linalg.tridiagonal_solve(*arguments)
