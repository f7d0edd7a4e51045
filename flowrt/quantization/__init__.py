"""``flowrt.quantization``: numbers rounded as quantized tensors would have them."""

from flowrt.graph.ops.nn.fake_quant import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("quantization")
