"""``flowrt.contrib.tensorboard``: files for TensorBoard's plugins."""

from flowrt.contrib.tensorboard import plugins as plugins
