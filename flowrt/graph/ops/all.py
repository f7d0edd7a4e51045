"""Importing this module defines every op."""

import importlib.util as _u

from flowrt.graph.ops import constant

for _n in ("shaping","arithmetic","reductions","math","slicing","arranging","gathering","linalg","random","activations","losses","conv","pooling","normalization","state","training","script","operators","transfer","comparison","division","joining","filling","identities","scans","statistics","matrix_parts","einsum","strings","padding","generating","segments","selecting","ordering","counting"):
    if _u.find_spec("flowrt.graph.ops."+_n): __import__("flowrt.graph.ops."+_n)
