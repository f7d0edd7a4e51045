"""``flowrt.contrib.learn``: the modes of a model, as `flowrt.estimator` has them."""

from flowrt.estimator.modes import ModeKeys
from flowrt.estimator.run_config import RunConfig
from flowrt.tf1.missing_names import missing_from

__all__ = ["ModeKeys", "RunConfig"]

__getattr__ = missing_from("contrib.learn")
