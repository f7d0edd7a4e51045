"""``flowrt.contrib.tensorboard``: files for TensorBoard's plugins."""

from flowrt.base.missing_names import missing_from
from flowrt.contrib.tensorboard import plugins as plugins

__getattr__ = missing_from("contrib.tensorboard")
