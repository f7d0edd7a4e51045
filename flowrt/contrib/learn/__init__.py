"""``flowrt.contrib.learn``: the modes of a model, and documents as rows of numbers.

preprocessing    `VocabularyProcessor`
"""

from flowrt.contrib.learn import preprocessing
from flowrt.estimator import modes
from flowrt.estimator.run_config import RunConfig
from flowrt.tf1.missing_names import missing_from

__all__ = ["ModeKeys", "RunConfig", "preprocessing"]


class ModeKeys(modes.ModeKeys):
    """`estimator.ModeKeys`, with the name that prediction had before."""

    INFER = modes.ModeKeys.PREDICT


__getattr__ = missing_from("contrib.learn")
