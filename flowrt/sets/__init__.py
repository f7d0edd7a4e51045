"""``flowrt.sets``: sets in the rows of tensors.

set_functions   differences, intersections, unions, sizes
"""

from flowrt.sets.set_functions import set_difference, set_intersection, set_size, set_union
from flowrt.sets.set_functions import set_difference as difference
from flowrt.sets.set_functions import set_intersection as intersection
from flowrt.sets.set_functions import set_size as size
from flowrt.sets.set_functions import set_union as union
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "difference", "intersection", "set_difference", "set_intersection", "set_size", "set_union", "size",
    "union",
]  # fmt: skip

__getattr__ = missing_from("sets")
