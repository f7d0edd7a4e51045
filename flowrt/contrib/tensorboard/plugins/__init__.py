"""``flowrt.contrib.tensorboard.plugins``: `projector`, embeddings for TensorBoard."""

from flowrt.base.missing_names import missing_from
from flowrt.contrib.tensorboard.plugins import projector as projector

__getattr__ = missing_from("contrib.tensorboard.plugins")
