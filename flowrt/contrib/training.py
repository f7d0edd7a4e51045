"""``flowrt.contrib.training``: hyperparameters; how variables are spread over parameter servers."""

from flowrt.contrib.hparams import HParams
from flowrt.tf1.missing_names import missing_from
from flowrt.train.sessions.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn

__all__ = ["GreedyLoadBalancingStrategy", "HParams", "byte_size_load_fn"]

__getattr__ = missing_from("contrib.training")
