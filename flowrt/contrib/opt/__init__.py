"""``flowrt.contrib.opt``: optimizers that TensorFlow 1 had in contrib.

weight_decay        decay of weights apart from the step: AdamW, momentum, any optimizer
adam_variants       Adam for sparse rows; Adam with Nesterov's momentum
averaging           an optimizer that averages what it trains
external            minimization of a whole loss by SciPy
"""

from flowrt.contrib.opt.adam_variants import LazyAdamOptimizer, NadamOptimizer
from flowrt.contrib.opt.averaging import MovingAverageOptimizer
from flowrt.contrib.opt.external import ExternalOptimizerInterface, ScipyOptimizerInterface
from flowrt.contrib.opt.weight_decay import (
    AdamWOptimizer,
    DecoupledWeightDecayExtension,
    MomentumWOptimizer,
    extend_with_decoupled_weight_decay,
)
from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers.standard_optimizers import LARSOptimizer

__all__ = [
    "AdamWOptimizer", "DecoupledWeightDecayExtension", "ExternalOptimizerInterface",
    "LARSOptimizer", "LazyAdamOptimizer", "MomentumWOptimizer", "MovingAverageOptimizer", "NadamOptimizer",
    "ScipyOptimizerInterface", "extend_with_decoupled_weight_decay",
]  # fmt: skip

__getattr__ = missing_from("contrib.opt")
