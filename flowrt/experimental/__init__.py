"""``flowrt.experimental``: interfaces under TensorFlow's experimental names.

dtensor   layouts of tensors over a mesh of devices
"""

from flowrt.experimental import dtensor as dtensor
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("experimental")
