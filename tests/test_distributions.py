"""Distributions against formulas and samples; `tests/twins/distributions.py` has TensorFlow's values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import distributions as tfd
from flowrt.errors import InvalidArgumentError, UnimplementedError

rng = np.random.default_rng(0)
LOC, SCALE = rng.normal(size=(2, 3)), rng.uniform(0.5, 2, (2, 3))
PROBS = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])


def run(fetches: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetches)


def densities(value: Any) -> Any:
    return -0.5 * ((value - LOC) / SCALE) ** 2 - np.log(SCALE) - 0.5 * math.log(2 * math.pi)


SAMPLED = {
    "Normal": lambda: tfd.Normal(LOC, SCALE),
    "Laplace": lambda: tfd.Laplace(LOC, SCALE),
    "Logistic": lambda: tfd.Logistic(LOC, SCALE),
    "StudentT": lambda: tfd.StudentT(np.full((2, 3), 9.0), LOC, SCALE),
    "Uniform": lambda: tfd.Uniform(LOC, LOC + SCALE),
    "Gamma": lambda: tfd.Gamma(SCALE, 2.0),
    "Exponential": lambda: tfd.Exponential(SCALE),
    "Chi2": lambda: tfd.Chi2(SCALE),
    "InverseGamma": lambda: tfd.InverseGamma(9 + SCALE, 2.0),
    "HalfNormal": lambda: tfd.HalfNormal(SCALE),
    "NegativeBinomial": lambda: tfd.NegativeBinomial(SCALE, LOC),
    "Beta": lambda: tfd.Beta(SCALE, SCALE + 1),
    "Dirichlet": lambda: tfd.Dirichlet(SCALE),
    "Bernoulli": lambda: tfd.Bernoulli(probs=PROBS),
    "OneHotCategorical": lambda: tfd.OneHotCategorical(probs=PROBS),
    "Multinomial": lambda: tfd.Multinomial([4.0, 7.0], probs=PROBS),
    "DirichletMultinomial": lambda: tfd.DirichletMultinomial([4.0, 7.0], SCALE),
    "Poisson": lambda: tfd.Poisson(3 * SCALE),
    "Geometric": lambda: tfd.Geometric(probs=PROBS),
    "MultivariateNormalDiag": lambda: tfd.MultivariateNormalDiag(LOC, SCALE),
    "MultivariateNormalTriL": lambda: tfd.MultivariateNormalTriL(LOC, np.tril(SCALE[:, None] + np.eye(3))),
    "Mixture": lambda: tfd.Mixture(
        tfd.Categorical(probs=PROBS), [tfd.Normal(LOC[:, i], SCALE[:, i]) for i in range(3)]
    ),
    "MixtureSameFamily": lambda: tfd.MixtureSameFamily(tfd.Categorical(probs=PROBS), tfd.Normal(LOC, SCALE)),
    "Independent": lambda: tfd.Independent(tfd.Normal(LOC, SCALE), 1),
}


@pytest.mark.parametrize("kind", SAMPLED)
def test_samples_have_the_mean_the_variance_and_the_shape(kind: str) -> None:
    distribution = SAMPLED[kind]()
    drawn = distribution.sample([100, 80], seed=1)
    assert drawn.shape.as_list()[2:] == [
        *distribution.batch_shape.as_list(), *distribution.event_shape.as_list()
    ]  # fmt: skip
    values, mean, variance, again, sizes = run((
        tf.to_double(drawn), distribution.mean(), distribution.variance(), distribution.sample(seed=2),
        tf.concat([distribution.batch_shape_tensor(), distribution.event_shape_tensor()], 0),
    ))  # fmt: skip
    assert again.shape == tuple(sizes) == values.shape[2:]
    spread = np.sqrt(variance / 8000)
    assert (abs(values.mean((0, 1)) - mean) < 5 * spread + 1e-12).all()
    np.testing.assert_allclose(values.var((0, 1)), variance, rtol=0.15)
    inside = run(distribution.log_prob(tf.cast(drawn, distribution.dtype)))
    assert np.isfinite(inside).all()
    assert inside.shape == (100, 80, *distribution.batch_shape.as_list())


def test_gradients_flow_through_samples() -> None:
    loc, scale = tf.constant(LOC), tf.constant(SCALE)
    for kind in (tfd.Normal, tfd.Laplace, tfd.Logistic, tfd.Cauchy, tfd.MultivariateNormalDiag):
        drawn = kind(loc, scale).sample(seed=3)
        values, slopes = run((drawn, tf.gradients(drawn, [loc, scale])))
        np.testing.assert_allclose(slopes[0], np.ones((2, 3)))
        np.testing.assert_allclose(slopes[1], (values - LOC) / SCALE, rtol=1e-9)
    logits = tf.constant(LOC)
    relaxed = tfd.RelaxedOneHotCategorical(0.5, logits).sample(seed=1)
    values, slope = run((relaxed, tf.gradients(relaxed[..., 0], logits)[0]))
    np.testing.assert_allclose(values.sum(-1), [1, 1])
    np.testing.assert_allclose(slope[:, 1], -values[:, 0] * values[:, 1] / 0.5, rtol=1e-6)


def test_samples_of_concentrations_are_differentiable() -> None:
    """The derivative of a mean of many samples is that of the mean."""
    a, b = tf.constant(SCALE[0]), tf.constant(SCALE[1] + 1)
    for distribution in (tfd.Gamma(a, b), tfd.Beta(a, b), tfd.Dirichlet(a), tfd.Chi2(a)):
        drawn = tf.reduce_mean(distribution.sample(20000, seed=3), 0)
        found, expected = run([tf.gradients(v[0], a)[0] for v in (drawn, distribution.mean())])
        np.testing.assert_allclose(found, expected, atol=0.05, err_msg=distribution.name)


def test_relaxed_samples_that_saturate_have_finite_densities() -> None:
    logits = tf.constant([0.3, 2.0, -1.0])
    for kind in (tfd.RelaxedBernoulli, tfd.RelaxedOneHotCategorical):
        relaxed = kind(1e-3, logits)
        drawn = relaxed.sample(20, seed=2)
        values, logs, given = run([drawn, relaxed.log_prob(drawn), relaxed.log_prob(drawn + 0)])
        assert (values == 0).any()
        assert np.isfinite(logs).all()
        assert not np.isfinite(given).all()  # whose logarithms are lost


def test_a_transformed_distribution_takes_the_shapes_that_it_is_given() -> None:
    vectors = tfd.TransformedDistribution(
        tfd.Normal(0.0, 1.0), tfd.bijectors.Exp(), batch_shape=[2], event_shape=[3]
    )
    drawn = vectors.sample(5, seed=1)
    values, logs, sizes = run((drawn, vectors.log_prob(drawn), vectors.batch_shape_tensor()))
    assert values.shape == (5, 2, 3)
    assert sizes.tolist() == vectors.batch_shape.as_list() == [2]
    assert vectors.event_shape.as_list() == [3]
    z = np.log(values)
    np.testing.assert_allclose(logs, (-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - z).sum(-1), rtol=1e-4)
    with pytest.raises(UnimplementedError, match="not affine"):
        vectors.mean()


INVALID = {
    "Gamma": (lambda **o: tfd.Gamma(1.0, 1.0, **o), -1.0, "expected x > 0.0"),
    "Beta": (lambda **o: tfd.Beta(1.0, 1.0, **o), 1.5, "less than `1`"),
    "Dirichlet": (lambda **o: tfd.Dirichlet([1.0, 2.0], **o), [0.5, 0.6], "must sum to `1`"),
    "Bernoulli": (lambda **o: tfd.Bernoulli(probs=0.5, **o), 2, "expected x <= 1"),
    "OneHotCategorical": (
        lambda **o: tfd.OneHotCategorical(probs=[0.5, 0.5], **o), [1, 1], "expected x == 1",
    ),
    "Multinomial": (lambda **o: tfd.Multinomial(3.0, [0.0, 1.0], **o), [1.0, 1.0], "must sum to"),
    "Poisson": (lambda **o: tfd.Poisson(1.0, **o), 0.5, "fractional components"),
    "Geometric": (lambda **o: tfd.Geometric(probs=0.5, **o), -1.0, "must be non-negative"),
    "Binomial": (lambda **o: tfd.Binomial(3.0, probs=0.5, **o), 4.0, "less than or equal to n"),
    "NegativeBinomial": (lambda **o: tfd.NegativeBinomial(3.0, 0.5, **o), 0.5, "fractional components"),
}  # fmt: skip


@pytest.mark.parametrize("kind", INVALID)
def test_values_are_validated_where_that_is_wanted(kind: str) -> None:
    make, value, message = INVALID[kind]
    with tf.Session() as session:
        session.run(make().log_prob(value))
        with pytest.raises(InvalidArgumentError, match=message):
            session.run(make(validate_args=True).log_prob(value))


UNDEFINED = {
    "Gamma": lambda **o: tfd.Gamma([0.5, 2.0], 1.0, **o).mode(),
    "Beta": lambda **o: tfd.Beta([0.5, 2.0], 2.0, **o).mode(),
    "Dirichlet": lambda **o: tfd.Dirichlet([0.5, 2.0], **o).mode(),
    "StudentT": lambda **o: tfd.StudentT([1.0, 2.0], 0.0, 1.0, **o).mean(),
    "StudentT's variance": lambda **o: tfd.StudentT([1.0, 2.0], 0.0, 1.0, **o).stddev(),
    "InverseGamma": lambda **o: tfd.InverseGamma([1.0, 2.0], 1.0, **o).mean(),
    "Cauchy": lambda **o: tfd.Cauchy(0.0, [1.0], **o).mean(),
}


@pytest.mark.parametrize("kind", UNDEFINED)
def test_statistics_that_are_not_defined_are_nan_or_an_error(kind: str) -> None:
    assert np.isnan(run(UNDEFINED[kind]()).reshape(-1)[0])
    with pytest.raises(InvalidArgumentError, match=r"not defined|undefined|no mean"):
        run(UNDEFINED[kind](allow_nan_stats=False))


def test_parameters_are_validated() -> None:
    shares = tf.placeholder(tf.float32, [2])
    for made, wrong in (
        (tfd.Categorical(probs=shares, validate_args=True).probs, [0.5, 0.6]),
        (tfd.Bernoulli(probs=shares, validate_args=True).probs, [0.5, 1.5]),
        (tfd.Uniform(shares, 1.0, validate_args=True).mean(), [0.5, 1.5]),
    ):
        with tf.Session() as session:
            session.run(made, {shares: [0.5, 0.5]})
            with pytest.raises(InvalidArgumentError, match=r"sum to 1|greater than 1|low >= high"):
                session.run(made, {shares: wrong})


def test_vectors_and_mixtures_are_made_of_normal_numbers() -> None:
    value = rng.normal(size=(2, 3))
    each = densities(value)
    diagonal, tril = tfd.MultivariateNormalDiag(LOC, SCALE), np.tril(SCALE[:, None] + np.eye(3))
    triangle = tfd.MultivariateNormalTriL(LOC, tril)
    full = tfd.MultivariateNormalFullCovariance(LOC, tril @ tril.swapaxes(1, 2))
    same = tfd.MultivariateNormalTriL(LOC, np.stack([np.diag(row) for row in SCALE]))
    weights = np.log(PROBS)
    found = run({
        "diagonal": diagonal.log_prob(value), "same": same.log_prob(value),
        "triangle": triangle.log_prob(value), "full": full.log_prob(value),
        "kl": (
            tfd.kl_divergence(same, triangle), tfd.kl_divergence(diagonal, diagonal),
            tfd.kl_divergence(diagonal, triangle), tfd.kl_divergence(triangle, diagonal),
            tfd.kl_divergence(triangle, same),
        ),
        "entropy": (diagonal.entropy(), same.entropy(), tfd.Independent(tfd.Normal(LOC, SCALE), 1).entropy()),
        "mixture": SAMPLED["Mixture"]().log_prob(value[:, 0]),
        "family": SAMPLED["MixtureSameFamily"]().log_prob(value[:, 0]),
        "independent": SAMPLED["Independent"]().log_prob(value),
        "covariance": full.covariance(),
    })  # fmt: skip
    np.testing.assert_allclose(found["diagonal"], each.sum(-1))
    np.testing.assert_allclose(found["same"], each.sum(-1))
    np.testing.assert_allclose(found["independent"], each.sum(-1))
    np.testing.assert_allclose(found["full"], found["triangle"])
    np.testing.assert_allclose(found["covariance"], tril @ tril.swapaxes(1, 2))
    residual = np.linalg.solve(tril, (value - LOC)[..., None])[..., 0]
    expected = -0.5 * (residual**2).sum(-1) - np.log(np.linalg.det(tril)) - 1.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(found["triangle"], expected)
    ours, theirs = np.stack([np.diag(row**2) for row in SCALE]), tril @ tril.swapaxes(1, 2)
    trace = np.trace(np.linalg.solve(theirs, ours), axis1=1, axis2=2)
    ratio = np.log(np.linalg.det(theirs) / np.linalg.det(ours))
    np.testing.assert_allclose(found["kl"][0], 0.5 * (trace - 3 + ratio), rtol=1e-9)
    np.testing.assert_allclose(found["kl"][1], 0, atol=1e-12)
    np.testing.assert_allclose(found["kl"][2], found["kl"][0])
    np.testing.assert_allclose(found["kl"][3], found["kl"][4])
    for entropy in found["entropy"]:
        np.testing.assert_allclose(entropy, (0.5 + 0.5 * math.log(2 * math.pi)) * 3 + np.log(SCALE).sum(-1))
    mixed = np.log(np.exp(densities(value[:, :1]) + weights).sum(-1))
    np.testing.assert_allclose(found["mixture"], mixed)
    np.testing.assert_allclose(found["family"], mixed)


def test_counts_have_the_probabilities_of_their_formulas() -> None:
    k = np.arange(5.0)
    with tf.Session() as session:
        poisson = session.run(tfd.Poisson(2.5).prob(k.astype(np.float32)))
        np.testing.assert_allclose(
            poisson, [2.5**i * math.exp(-2.5) / math.factorial(int(i)) for i in k], rtol=1e-5
        )
        geometric = session.run(tfd.Geometric(probs=np.float64(0.3)).prob(k + 0.5))
        np.testing.assert_allclose(geometric, 0.3 * 0.7**k)
        rare = session.run(tfd.Geometric(probs=np.float32(1e-9)).log_prob(np.float32(1e9)))
        np.testing.assert_allclose(rare, np.log(1e-9) - 1, rtol=1e-6)  # 1 - 1e-9 is 1 in float32
        assert session.run(tfd.Deterministic(2.0).prob([2.0, 3.0])).tolist() == [1, 0]
        hot = tfd.OneHotCategorical(probs=PROBS, dtype=tf.float64)
        np.testing.assert_allclose(session.run(hot.prob(np.eye(3)[[2, 0]])), [0.5, 0.6])
        relaxed = tfd.RelaxedOneHotCategorical(np.float64(1.0), probs=np.array([0.4, 0.6]))
        share = np.linspace(0.001, 0.999, 999)
        density = session.run(relaxed.prob(np.stack([share, 1 - share], -1)))
        assert np.trapezoid(density, share) == pytest.approx(1, abs=0.01)


def test_far_tails_have_finite_logarithms() -> None:
    normal = tfd.Normal(np.float64(0), np.float64(1))
    found = run((normal.log_cdf(np.float64(-40)), normal.log_survival_function(np.float64(40))))
    np.testing.assert_allclose(found, [-804.608442] * 2, rtol=1e-8)


def test_mistakes_are_typed() -> None:
    with pytest.raises(InvalidArgumentError, match="expected logits or probs; got 2 of them"):
        tfd.Bernoulli(0.5, 0.5)
    with pytest.raises(UnimplementedError, match="no formula from Normal to Laplace"):
        tfd.kl_divergence(tfd.Normal(0.0, 1.0), tfd.Laplace(0.0, 1.0))
    with pytest.raises(UnimplementedError, match="entropy is not implemented"):
        tfd.Multinomial(3.0, [0.0, 1.0]).entropy()
    with pytest.raises(InvalidArgumentError):
        run(tfd.Normal(0.0, [-1.0], validate_args=True).sample())


def test_counts_of_dirichlet_shares() -> None:
    counts = tfd.DirichletMultinomial(4.0, [1.0, 2.0])
    found = run([counts.log_prob([1.0, 3.0]), counts.mean(), counts.variance(), counts.covariance()])
    assert found[0] == pytest.approx(math.log(4 / 15), abs=1e-5)
    np.testing.assert_allclose(found[1], [4 / 3, 8 / 3], rtol=1e-5)
    np.testing.assert_allclose(found[2], [14 / 9, 14 / 9], rtol=1e-5)
    np.testing.assert_allclose(found[3], 14 / 9 * np.array([[1, -1], [-1, 1]]), rtol=1e-5)


@pytest.mark.parametrize("k", [3, -1])
def test_a_class_that_there_is_not_is_an_error(k: int) -> None:
    log_prob = tfd.Categorical(probs=PROBS).log_prob([0, k])
    with pytest.raises(InvalidArgumentError, match=rf"expected an index in \[0, 3\); got {k}"):
        run(log_prob)


def test_shares_below_a_value() -> None:
    """Where there are formulas: exponential, uniform and Cauchy's distributions, sums of probabilities."""
    x, k = np.array([0.1, 0.7, 2.5]), np.arange(6.0)
    d = tf.distributions
    gamma, beta = d.Gamma(np.ones(1), 2 * np.ones(1)), d.Beta(np.ones(1), 2 * np.ones(1))
    student, poisson = d.StudentT(np.ones(1), np.zeros(1), np.ones(1)), tfd.Poisson(1.7)
    found = run(
        (
            gamma.cdf(x),
            beta.cdf(x / 3),
            student.cdf(-x),
            poisson.cdf(k.astype("f")),
            poisson.prob(k.astype("f")),
        )
    )
    np.testing.assert_allclose(found[0], 1 - np.exp(-2 * x), rtol=1e-12)
    np.testing.assert_allclose(found[1], 1 - (1 - x / 3) ** 2, rtol=1e-12)
    np.testing.assert_allclose(found[2], 0.5 - np.arctan(x) / np.pi, rtol=1e-12)
    np.testing.assert_allclose(found[3], np.cumsum(found[4]), rtol=1e-5)


def test_the_covariance_of_a_mixture_of_vectors_has_the_variances_on_its_diagonal() -> None:
    parts = tfd.MultivariateNormalDiag([[-1.0, 1.0], [1.0, -1.0]], scale_identity_multiplier=[0.3, 0.6])
    mixture = tfd.MixtureSameFamily(tfd.Categorical(probs=[0.3, 0.7]), parts)
    with tf.Session() as session:
        covariance, variance = session.run([mixture.covariance(), mixture.variance()])
    np.testing.assert_allclose(covariance, [[1.119, -0.84], [-0.84, 1.119]], rtol=1e-6)
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-6)
