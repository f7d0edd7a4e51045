"""Log probabilities, statistics, divergences and gradients of distributions."""

import numpy as np

STATISTICS = ("entropy", "mean", "mode", "variance", "stddev")
FUNCTIONS = ("log_prob", "prob", "cdf", "log_cdf", "survival_function", "log_survival_function", "quantile")
LACKS = {
    "Uniform": "mode quantile",
    "StudentT": "variance stddev cdf log_cdf survival_function log_survival_function quantile",
    "Gamma": "quantile", "Exponential": "quantile",
    "Beta": "cdf log_cdf survival_function log_survival_function quantile", "Laplace": "quantile",
    "Dirichlet": "mode cdf log_cdf survival_function log_survival_function quantile",
    "Bernoulli": "cdf log_cdf survival_function log_survival_function quantile",
    "Categorical": "mean variance stddev log_cdf survival_function log_survival_function quantile",
    "Multinomial": "entropy mode cdf log_cdf survival_function log_survival_function quantile",
}  # fmt: skip


def results(tf):
    rng = np.random.default_rng(1)
    a, b, m = rng.uniform(0.3, 3, (2, 3)), rng.uniform(0.3, 3, 3), rng.normal(size=(2, 3))
    x, shares = rng.normal(size=(4, 2, 3)), rng.uniform(0.05, 0.95, (4, 2, 3))
    counts, bits = rng.integers(0, 4, (4, 2, 3)).astype(float), (x > 0).astype(float)
    kinds = {
        "Normal": ((m, a), (m[::-1] / 2, b), 3 * x), "Laplace": ((m, a), None, x),
        "Uniform": ((m - a, m + b), None, x), "StudentT": ((2 * a, m, b), None, x),
        "Gamma": ((a, b), (b, a), shares), "Exponential": ((a,), (b,), shares),
        "Beta": ((a, b), (b, a), shares), "Dirichlet": ((a,), (b,), shares / shares.sum(-1, keepdims=True)),
        "Bernoulli": ((m,), (b,), bits), "Categorical": ((m,), (a,), rng.integers(0, 3, (4, 2))),
        "Multinomial": ((np.full(2, 6.0), m), None, np.stack([[[1.0, 2, 3], [6, 0, 0]]] * 4)),
    }  # fmt: skip
    found = {"counts": counts}
    with tf.Session() as session:
        for name, (first, second, values) in kinds.items():
            arguments = [tf.constant(value) for value in first]
            kind = getattr(tf.distributions, name)
            lacks = LACKS.get(name, "").split()
            one, given = kind(*arguments), tf.constant(values)
            for statistic in STATISTICS:
                if statistic not in lacks:
                    found[f"{name}_{statistic}"] = session.run(getattr(one, statistic)())
            for function in FUNCTIONS:
                if function not in lacks:
                    at = tf.constant(shares) if function == "quantile" else given
                    found[f"{name}_{function}"] = session.run(getattr(one, function)(at))
            for i, slope in enumerate(session.run(tf.gradients(one.log_prob(given), arguments[-2:]))):
                found[f"{name}_slope{i}"] = slope
            if second is not None:
                other = kind(*[tf.constant(value) for value in second])
                found[f"{name}_kl"] = session.run(tf.distributions.kl_divergence(one, other))
                found[f"{name}_cross"] = session.run(one.cross_entropy(other))
            found[f"{name}_sizes"] = session.run(tf.shape(one.sample([5, 2], seed=1)))
            found[f"{name}_batch"] = session.run(one.batch_shape_tensor())
            found[f"{name}_event"] = session.run(one.event_shape_tensor())
    return found
