"""``flowrt.contrib.tensorboard.plugins``: `projector`, embeddings for TensorBoard."""

from flowrt.contrib.tensorboard.plugins import projector as projector
