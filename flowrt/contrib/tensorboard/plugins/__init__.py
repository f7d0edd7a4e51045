"""``flowrt.contrib.tensorboard.plugins``: `projector`, embeddings for TensorBoard."""

from flowrt.contrib.tensorboard.plugins import projector as projector
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("contrib.tensorboard.plugins")
