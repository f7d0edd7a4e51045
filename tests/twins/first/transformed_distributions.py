"""Bijectors, and the distributions of `contrib` that they make, and more of one number."""

import numpy as np

FUNCTIONS = ("log_prob", "prob", "cdf", "log_cdf", "survival_function", "log_survival_function")


def calls(tf):
    rng = np.random.default_rng(27)
    d = tf.contrib.distributions
    b = d.bijectors
    m, a = rng.normal(size=(2, 3)), rng.uniform(0.3, 3, (2, 3))
    x = rng.normal(size=(4, 2, 3))
    share, positive = rng.uniform(0.05, 0.95, (4, 2, 3)), np.abs(x) + 0.1
    whole = rng.integers(0, 5, (4, 2, 3)).astype(float)
    lower = rng.normal(size=(2, 3, 3)) + 2 * np.eye(3)
    found = {}

    def bijector(name, make, given, at, ends=(0, 1, 2)):
        """All that it computes of ``at``, which is in its domain, and of what is in its range."""
        for ndims in ends:
            found[f"{name}_{ndims}"] = (
                lambda v, *args, n=ndims: [
                    make(*args).forward(v),
                    make(*args).inverse(tf.identity(make(*args).forward(v))),
                    make(*args).forward_log_det_jacobian(v, n),
                    make(*args).inverse_log_det_jacobian(make(*args).forward(v), n),
                ],
                at,
                *given,
            )

    bijector("Identity", b.Identity, (), x[0])
    bijector("Exp", b.Exp, (), x[0])
    bijector("Sigmoid", b.Sigmoid, (), x[0])
    bijector("Softplus", b.Softplus, (), x[0])
    bijector("Soft", lambda: b.Softplus(tf.constant(0.4, tf.float64)), (), x[0])
    bijector("PowerTransform", lambda: b.PowerTransform(0.3), (), share[0])
    bijector("AffineScalar", b.AffineScalar, (m, a), x[0])
    bijector("Invert", lambda: b.Invert(b.Softplus()), (), positive[0])
    bijector("Chain", lambda p, q: b.Chain([b.Exp(), b.AffineScalar(p, q), b.Sigmoid()]), (m, a), x[0])
    bijector("Permute", lambda: b.Permute([2, 0, 1]), (), x[0], ends=(1, 2))
    bijector("Affine", lambda p, q: b.Affine(p, scale_diag=q), (m, a), x[0], ends=(1,))
    bijector("Triangle", lambda p, q: b.Affine(p, None, None, q), (m, lower), x[0], ends=(1,))
    bijector(
        "Inline",
        lambda: b.Inline(
            forward_fn=tf.sinh, inverse_fn=tf.asinh, forward_min_event_ndims=0,
            forward_log_det_jacobian_fn=lambda v: tf.log(tf.cosh(v)),
        ),
        (), x[0],
    )  # fmt: skip

    def distribution(name, make, given, at, functions=FUNCTIONS, statistics=()):
        for function in functions:
            found[f"{name}_{function}"] = (
                lambda v, *args, f=function: getattr(make(*args), f)(v),
                at,
                *given,
            )
        for statistic in statistics:
            found[f"{name}_{statistic}"] = (lambda *args, s=statistic: getattr(make(*args), s)(), *given)
        found[f"{name}_shapes_value"] = (
            lambda *args: [
                tf.constant(make(*args).reparameterization_type is d.FULLY_REPARAMETERIZED),
                make(*args).batch_shape_tensor(), make(*args).event_shape_tensor(),
                tf.shape(make(*args).sample([5, 2], seed=1)) if name != "Binomial" else tf.constant(0),
            ],
            *given,
        )  # fmt: skip

    normal = d.Normal(tf.constant(0.3, tf.float64), tf.constant(1.2, tf.float64))
    both = ("entropy", "mean", "mode", "variance", "stddev")
    distribution(
        "LogNormal", lambda p, q: d.TransformedDistribution(d.Normal(p, q), b.Exp()), (m, a), positive
    )
    distribution(
        "Shifted", lambda p, q: d.TransformedDistribution(d.Logistic(p, q), b.AffineScalar(p, q)), (m, a), x,
        statistics=("entropy",),
    )  # fmt: skip
    distribution(
        "Vectors", lambda p, q: d.TransformedDistribution(normal, b.Affine(p[0], scale_diag=q[0]), None, [3]),
        (m, a), x, ("log_prob", "prob"),
    )  # fmt: skip
    distribution(
        "Simplex", lambda p: d.ExpRelaxedOneHotCategorical(tf.constant(0.7, tf.float64), p), (m,),
        np.log(share / share.sum(-1, keepdims=True)), ("log_prob", "prob"),
    )  # fmt: skip
    distribution(
        "Relaxed", lambda p: d.RelaxedOneHotCategorical(tf.constant(0.7, tf.float64), probs=p), (a,),
        share / share.sum(-1, keepdims=True), ("log_prob", "prob"),
    )  # fmt: skip
    distribution(
        "RelaxedBernoulli", lambda p: d.RelaxedBernoulli(tf.constant(0.7, tf.float64), p), (m,), share
    )
    distribution("Chi2", d.Chi2, (a,), positive, statistics=both)
    distribution("Chi2WithAbsDf", d.Chi2WithAbsDf, (a + 1,), positive, statistics=("mean", "variance"))
    distribution("InverseGamma", d.InverseGamma, (a + 0.5, a), positive, statistics=both)
    distribution(
        "InverseGammaWithSoftplusConcentrationRate", d.InverseGammaWithSoftplusConcentrationRate, (m, a),
        positive, statistics=("mode", "mean"),
    )  # fmt: skip
    distribution(
        "HalfNormal", d.HalfNormal, (a,), x, ("prob", "cdf", "survival_function"),
        ("entropy", "mean", "variance", "stddev"),
    )  # fmt: skip
    distribution("Half", d.HalfNormal, (a,), positive, ("log_prob",))  # below 0 its gradient is NaN there
    distribution(
        "StudentTWithAbsDfSoftplusScale", d.StudentTWithAbsDfSoftplusScale, (2 * a + 3, m, m), x,
        ("log_prob",), ("entropy", "mean"),
    )  # fmt: skip
    distribution(
        "Binomial", lambda p: d.Binomial(tf.constant(6.0, tf.float64), p), (m,), whole,
        statistics=("mean", "mode", "variance", "stddev"),
    )  # fmt: skip
    distribution(
        "NegativeBinomial", lambda p, q: d.NegativeBinomial(q, p), (m, a),
        whole[0],  # as TensorFlow 1.15 has it, which broadcasts nothing here
        statistics=("mean", "mode", "variance", "stddev"),
    )  # fmt: skip
    distribution(
        "Quantized", lambda p, q: d.QuantizedDistribution(
            d.Normal(p, q), tf.constant(-1.0, tf.float64), tf.constant(3.0, tf.float64)
        ), (m, a), whole,
    )  # fmt: skip
    found["saturated_value"] = (lambda: saturated(tf, d),)
    return found


def saturated(tf, d):
    """Whether samples that are 0 or 1 in float32 have finite logarithms of densities."""
    relaxed = d.RelaxedBernoulli(1e-3, tf.constant([0.3, 2.0, -1.0]))
    hot = d.RelaxedOneHotCategorical(1e-3, tf.constant([0.3, 2.0, -1.0]))
    inner = hot.distribution
    return tf.is_finite(inner.log_prob(inner.sample(9, seed=2))), tf.shape(relaxed.sample(9, seed=1))
