"""``flowrt.mixed_precision``: TensorFlow 1.15's name of the loss scales of `flowrt.train.experimental`."""

from flowrt.train import experimental

__all__ = ["experimental"]
