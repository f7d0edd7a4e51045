"""``flowrt.contrib.tensorboard``: what TensorBoard's plugins read."""

from flowrt.contrib.tensorboard import plugins as plugins
