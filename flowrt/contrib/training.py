"""``flowrt.contrib.training``: how variables are spread over parameter servers."""

from typing import Any

from flowrt.missing_names import missing_name
from flowrt.train.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn

__all__ = ["GreedyLoadBalancingStrategy", "byte_size_load_fn"]


def __getattr__(name: str) -> Any:
    raise missing_name("contrib.training", name, globals())
