"""``flowrt.contrib``: the parts of TensorFlow 1's contrib that scripts use most.

distribute          strategies, under their older names
layers              layers with variables called weights and biases; optimize_loss
framework           arg_scope, the global step, nest
rnn, seq2seq        recurrent cells and networks; `sequence_loss`
mixed_precision     loss scales by managers
slim                layers under the name used by model zoos; model_analyzer
training            placement of variables on parameter servers; hparams: `HParams`
tensorboard         files for TensorBoard's plugins
tpu                 infeed and outfeed, on any device
"""

from typing import Any

from flowrt.contrib import (
    distribute,
    framework,
    layers,
    mixed_precision,
    rnn,
    seq2seq,
    slim,
    tensorboard,
    tpu,
    training,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "distribute", "framework", "layers", "mixed_precision", "rnn", "seq2seq", "slim", "tensorboard", "tpu",
    "training",
]  # fmt: skip

__getattr__ = missing_from("contrib")
