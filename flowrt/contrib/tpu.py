"""``flowrt.contrib.tpu``: infeed and outfeed, on any device."""

from typing import Any

from flowrt.graph.ops.infeed import (
    infeed_dequeue,
    infeed_dequeue_tuple,
    infeed_enqueue,
    infeed_enqueue_tuple,
    outfeed_dequeue,
    outfeed_dequeue_tuple,
    outfeed_enqueue,
    outfeed_enqueue_tuple,
)
from flowrt.missing_names import missing_name

__all__ = [
    "infeed_dequeue",
    "infeed_dequeue_tuple",
    "infeed_enqueue",
    "infeed_enqueue_tuple",
    "outfeed_dequeue",
    "outfeed_dequeue_tuple",
    "outfeed_enqueue",
    "outfeed_enqueue_tuple",
]


def __getattr__(name: str) -> Any:
    raise missing_name("contrib.tpu", name, globals())
