"""All that a distribution of `contrib` computes, and that samples have its moments."""

import numpy as np

STATISTICS = ("entropy", "mean", "mode", "variance", "stddev", "covariance")
FUNCTIONS = ("log_prob", "prob", "cdf", "log_cdf", "survival_function", "log_survival_function", "quantile")

LACKS = {
    "Bernoulli": "covariance cdf log_cdf survival_function log_survival_function quantile",
    "Beta": "covariance quantile",
    "BetaWithSoftplusConcentration": "covariance quantile",
    "Categorical": "mean variance stddev covariance quantile",
    "Cauchy": "covariance",
    "Deterministic": "covariance quantile",
    "Dirichlet": "mode cdf quantile",  # the mode of a batch is an error of shapes
    "DirichletMultinomial": "entropy mode cdf quantile",
    "Exponential": "covariance quantile",
    "ExponentialWithSoftplusRate": "covariance quantile",
    "Gamma": "covariance quantile",
    "GammaWithSoftplusConcentrationRate": "covariance quantile",
    "Geometric": "covariance quantile",
    "Laplace": "covariance quantile",
    "LaplaceWithSoftplusScale": "covariance quantile",
    "Logistic": "covariance quantile",
    "Multinomial": "entropy mode cdf quantile",
    "MultivariateNormalDiag": "cdf quantile",
    "MultivariateNormalDiagWithSoftplusScale": "cdf quantile",
    "MultivariateNormalFullCovariance": "cdf quantile",
    "MultivariateNormalTriL": "cdf quantile",
    "Normal": "covariance",
    "NormalWithSoftplusScale": "covariance",
    "OneHotCategorical": "mean cdf quantile",
    "Poisson": "entropy covariance quantile",
    "RelaxedOneHotCategorical": "entropy mean mode variance stddev covariance cdf quantile",
    "StudentT": "covariance quantile variance stddev cdf",
    "Uniform": "mode covariance quantile",
    "Independent": "covariance cdf quantile",
    "Mixture": "entropy mode covariance quantile",
    "MixtureSameFamily": "entropy mode covariance quantile",
}
"""What TensorFlow 1.15 has not; without a cdf there is none of the functions made of it."""
UNSAMPLED = ("Cauchy", "DirichletMultinomial", "Multinomial")
"""Distributions without moments, and those that TensorFlow 1.15 cannot sample in float64."""


def calls(tf):
    rng = np.random.default_rng(15)
    d = tf.contrib.distributions
    m, a = rng.normal(size=(2, 3)), rng.uniform(0.3, 3, (2, 3))
    b = rng.uniform(0.3, 3, 3)
    x = 2 * rng.normal(size=(4, 2, 3))
    positive, share = np.abs(x) + 0.1, rng.uniform(0.05, 0.95, (4, 2, 3))
    whole = rng.integers(0, 5, (4, 2, 3)).astype(float)
    simplex = share / share.sum(-1, keepdims=True)
    hot = np.eye(3)[rng.integers(0, 3, (4, 2))]
    lower = rng.normal(size=(2, 3, 3)) + 2 * np.eye(3)  # above the diagonal nothing is read
    definite = lower @ np.swapaxes(lower, 1, 2)
    kinds = {
        "Bernoulli": (d.Bernoulli, (m,), (x > 0) * 1.0),
        "Beta": (d.Beta, (share + 1, positive), share),
        "BetaWithSoftplusConcentration": (d.BetaWithSoftplusConcentration, (x, x / 2), share),
        "Categorical": (d.Categorical, (m,), rng.integers(0, 3, (4, 2))),
        "Cauchy": (d.Cauchy, (m, a), x),
        "Deterministic": (d.Deterministic, (m,), np.where(x > 0, m, x)),
        "Dirichlet": (d.Dirichlet, (a + 1,), simplex),
        "DirichletMultinomial": (
            d.DirichletMultinomial,
            (np.float64(6.0), a),
            np.stack([[[1.0, 2, 3], [6, 0, 0]]] * 4),
        ),
        "Exponential": (d.Exponential, (a,), positive),
        "ExponentialWithSoftplusRate": (d.ExponentialWithSoftplusRate, (m,), positive),
        "Gamma": (d.Gamma, (a, b), positive),
        "GammaWithSoftplusConcentrationRate": (d.GammaWithSoftplusConcentrationRate, (m, b), positive),
        "Geometric": (d.Geometric, (m,), whole),
        "Laplace": (d.Laplace, (m, a), x),
        "LaplaceWithSoftplusScale": (d.LaplaceWithSoftplusScale, (m, m), x),
        "Logistic": (d.Logistic, (m, a), x),
        "Multinomial": (d.Multinomial, (np.full(2, 6.0), m), np.stack([[[1.0, 2, 3], [6, 0, 0]]] * 4)),
        "MultivariateNormalDiag": (d.MultivariateNormalDiag, (m, a), x),
        "MultivariateNormalDiagWithSoftplusScale": (d.MultivariateNormalDiagWithSoftplusScale, (m, m), x),
        "MultivariateNormalFullCovariance": (d.MultivariateNormalFullCovariance, (m, definite), x),
        "MultivariateNormalTriL": (d.MultivariateNormalTriL, (m, lower), x),
        "Normal": (d.Normal, (m, a), x),
        "NormalWithSoftplusScale": (d.NormalWithSoftplusScale, (m, m), x),
        "OneHotCategorical": (lambda z: d.OneHotCategorical(z, dtype=tf.float64), (m,), hot),
        "Poisson": (d.Poisson, (a,), whole),
        "RelaxedOneHotCategorical": (lambda z: d.RelaxedOneHotCategorical(0.7, z), (m,), simplex),
        "StudentT": (d.StudentT, (2 * a + 2, m, b), x),
        "Uniform": (d.Uniform, (m - a, m + b), x),
        "Independent": (lambda p, q: d.Independent(d.Normal(p, q), 1), (m, a), x),
        "Mixture": (
            lambda p, q: d.Mixture(d.Categorical(p[:, :2]), [d.Normal(p[:, i], q[:, i]) for i in range(2)]),
            (m, a),
            x[..., 0],
        ),
        "MixtureSameFamily": (
            lambda p, q: d.MixtureSameFamily(d.Categorical(p), d.Normal(p, q)),
            (m, a),
            x[..., 0],
        ),
    }
    found = {}
    for name, (kind, given, values) in kinds.items():
        for statistic in STATISTICS:
            if statistic not in LACKS[name].split():
                found[f"{name}_{statistic}"] = (
                    lambda *args, k=kind, s=statistic: getattr(k(*args), s)(),
                    *given,
                )
        for function in FUNCTIONS:
            made_of = "cdf" if "cdf" in function or "survival" in function else function
            if made_of not in LACKS[name].split():
                at = share if function == "quantile" else values
                found[f"{name}_{function}"] = (
                    lambda v, *args, k=kind, f=function: getattr(k(*args), f)(v),
                    at,
                    *given,
                )
        found[f"{name}_is_differentiable_value"] = (
            lambda *args, k=kind: tf.constant(k(*args).reparameterization_type is d.FULLY_REPARAMETERIZED),
            *given,
        )
        if not {"mean", "stddev"} & set(LACKS[name].split()) and name not in UNSAMPLED:
            found[f"{name}_sampled"] = (lambda *args, k=kind: are_near(tf, k(*args)), *given)
    found["softplus_inverse"] = (d.softplus_inverse, positive)
    found["softplus_inverse_wide"] = (d.softplus_inverse, np.array([1e-9, 1e-3, 1.0, 40.0, 1e3]))
    for name in (
        "Bernoulli",
        "Beta",
        "Categorical",
        "Dirichlet",
        "Exponential",
        "Gamma",
        "Normal",
        "OneHotCategorical",
        "MultivariateNormalDiag",
        "MultivariateNormalTriL",
    ):
        kind, given, _ = kinds[name]
        if name == "MultivariateNormalTriL":
            other = (m[::-1].copy(), lower[::-1].copy())
        else:
            other = tuple(rng.uniform(0.3, 3, v.shape) for v in given)
        found[f"{name}_kl"] = (
            lambda *args, k=kind: d.kl_divergence(k(*args[: len(args) // 2]), k(*args[len(args) // 2 :])),
            *given,
            *other,
        )
    return found


def are_near(tf, distribution):
    """Whether the mean and the deviation of 20,000 samples are the distribution's, within 6 of their own
    deviations; heavy tails have a wider one.
    """
    samples = tf.cast(distribution.sample(20000, seed=3), tf.float64)
    mean, variance = tf.nn.moments(samples, [0])
    expected, deviation = (tf.cast(v, tf.float64) for v in (distribution.mean(), distribution.stddev()))
    is_near = tf.abs(mean - expected) <= 6 / np.sqrt(20000) * deviation
    return is_near, tf.abs(tf.sqrt(variance) - deviation) <= 0.1 * deviation
