"""Layouts of tensors over a mesh of devices: pure data, independent of graphs.

    mesh             `Mesh`: named axes, of space or of time; its coordinates, groups and devices
    layout           `Shard`, `Replicate`, `Partial`; `Layout`: a placement for each axis of a mesh
    sharding_rule    an op's dimensions as factors: which pass through, which are contracted
    derived_rules    the rule of an operation: written in its definition, or derived from its other facts
    attributes       layouts as attributes of nodes, which travel in graphs and files
    memory_places    the places of variables that have one memory together
    redistribution   the collectives between two layouts, and their bytes

A graph is global: its shapes are those of one device. A layout says what of a tensor each coordinate of the
mesh has. The rules of the package:

1. A layout has one placement per axis, in the order of the mesh's axes. A dimension that several axes shard
   is cut by the first of them, then each part by the next: major to minor in the mesh's order, nothing else.
2. The parts of a dimension are those of ``numpy.array_split``: the first are one longer. There is no padding.
   A dimension shorter than its axis gives empty parts.
3. A `Partial` names its reduction. Scripts never write one: an operation makes one if its contracted
   dimension is cut.
4. Variables never have a time axis in their layouts.
5. Equal meshes, and equal layouts, are one object.

The terms are those of PyTorch's DTensor (mesh, shard, replicate, partial); to a script a layout has an entry
per dimension, as in TensorFlow's DTensor and GSPMD.
"""
