"""Incomplete gamma and beta functions and zeta, at edges too, with gradients; distributions made of them."""

import numpy as np


def results(tf):
    rng = np.random.default_rng(1)
    a = np.concatenate([10 ** rng.uniform(-2, 2, 60), [0, 1.5, 1.5, 1.5, -1, np.inf, 1, np.nan, 2, 2, 40]])
    x = np.concatenate([a[:60] * rng.uniform(0.3, 2, 60), [1, 0, np.inf, -1, 1, 1, np.nan, 1, 3, 0, 0]])
    first, second, share = rng.uniform(0.2, 30, (3, 60))
    share = np.concatenate([share / 31, [0, 1, 0.5, 0.5, -0.1, 1.1, 0, 1]])
    first, second = (np.concatenate([v, [1, 1, 0, -1, 1, 1, 2, 0.5]]) for v in (first, second))
    poles = [(1, 2), (1, -1), (2, 0), (3, 0), (2.5, 0), (4, -2), (2, -2)]
    others = [(0.5, 2), (2.5, -0.5), (2, -0.5), (3, -0.5), (np.nan, 1), (np.inf, 2), (2, np.inf)]
    s = np.concatenate([rng.uniform(1.01, 20, 60), [order for order, _ in poles + others]])
    q = np.concatenate([10 ** rng.uniform(-1, 2, 60), [start for _, start in poles + others]])
    found = {}
    with tf.Session() as session:
        for dtype in (np.float64, np.float32):
            fed = {
                name: tf.constant(v, dtype)
                for name, v in {"a": a, "x": x, "b": first, "c": second, "y": share, "s": s, "q": q}.items()
            }
            calls = {
                "igamma": (tf.igamma, "ax", "ax"), "igammac": (tf.igammac, "ax", "ax"),
                "betainc": (tf.betainc, "bcy", "y"), "zeta": (tf.zeta, "sq", "q"),
            }  # fmt: skip
            for name, (function, arguments, by) in calls.items():
                value = function(*(fed[argument] for argument in arguments))
                found[f"{name}_{dtype.__name__}"] = session.run(value)
                slopes = tf.gradients(value, [fed[argument] for argument in by])
                for argument, slope in zip(by, session.run(slopes), strict=True):
                    found[f"{name}_{dtype.__name__}_by_{argument}"] = slope
        b, c, y = (
            tf.constant(v[:60]) for v in (first, second, share)
        )  # TensorFlow's betainc has no broadcast
        found["beta"] = session.run(tf.distributions.Beta(b, c).cdf(y))
        student = tf.distributions.StudentT(b, tf.zeros_like(b), c)
        found["student"] = session.run(student.cdf(40 * y - 20))
    return found
