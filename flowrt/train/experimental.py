"""``flowrt.train.experimental``: mixed precision, and the scales of losses that it needs."""

from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers import graph_rewrite, loss_scale, loss_scale_optimizer
from flowrt.train.optimizers.graph_rewrite import *
from flowrt.train.optimizers.loss_scale import *
from flowrt.train.optimizers.loss_scale_optimizer import *

__all__ = [*graph_rewrite.__all__, *loss_scale.__all__, *loss_scale_optimizer.__all__]

__getattr__ = missing_from("train.experimental")
