"""``flowrt.contrib``: what scripts used most of TensorFlow 1's contrib, under its names.

distribute  strategies, under their older names
layers      layers with variables called weights and biases, initializers, regularizers
framework   arg_scope, the global step, nest
rnn         recurrent cells and networks
slim        the same, gathered under the name that model zoos import
training    how variables are spread over parameter servers
tpu         infeed and outfeed: queues between a host thread and running steps, on any device
"""

from typing import Any

from flowrt.contrib import distribute, framework, layers, rnn, slim, tpu, training
from flowrt.missing_names import missing_name

__all__ = ["distribute", "framework", "layers", "rnn", "slim", "tpu", "training"]


def __getattr__(name: str) -> Any:
    raise missing_name("contrib", name, globals())
