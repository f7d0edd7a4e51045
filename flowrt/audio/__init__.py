"""``flowrt.audio``: sound as tensors [samples, channels], from -1 to 1."""

from flowrt.graph.ops.text.wave_files import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("audio")
