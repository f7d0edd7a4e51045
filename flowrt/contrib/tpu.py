"""``flowrt.contrib.tpu``: infeed and outfeed, on any device."""

from flowrt.graph.ops.state.infeed import (
    infeed_dequeue,
    infeed_dequeue_tuple,
    infeed_enqueue,
    infeed_enqueue_tuple,
    outfeed_dequeue,
    outfeed_dequeue_tuple,
    outfeed_enqueue,
    outfeed_enqueue_tuple,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "infeed_dequeue", "infeed_dequeue_tuple", "infeed_enqueue", "infeed_enqueue_tuple", "outfeed_dequeue",
    "outfeed_dequeue_tuple", "outfeed_enqueue", "outfeed_enqueue_tuple",
]  # fmt: skip

__getattr__ = missing_from("contrib.tpu")
