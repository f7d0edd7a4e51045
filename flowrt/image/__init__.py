"""``flowrt.image``: images as tensors ``[height, width, channels]`` or ``[batch, height, width, channels]``.

Integers reach from 0 to their largest value, floats from 0 to 1.

codecs       JPEG, PNG, BMP and GIF, decoded and encoded
resizing     other sizes
framing      parts, margins, flips and turns
coloring     brightness, contrast, colours; dtypes
measures     how alike two images are; edges
detection    boxes
random_boxes random parts that show enough
"""

from flowrt.functions.arrangements import extract_image_patches
from flowrt.graph.ops.random.sampling import random_crop
from flowrt.image.codecs import *
from flowrt.image.coloring import *
from flowrt.image.detection import *
from flowrt.image.framing import *
from flowrt.image.measures import *
from flowrt.image.random_boxes import *
from flowrt.image.resizing import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("image")
