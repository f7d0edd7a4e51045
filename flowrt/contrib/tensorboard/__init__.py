"""``flowrt.contrib.tensorboard``: files for TensorBoard's plugins."""

from flowrt.contrib.tensorboard import plugins as plugins
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("contrib.tensorboard")
