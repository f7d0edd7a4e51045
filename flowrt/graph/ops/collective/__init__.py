"""Collectives, and the transfers that they are lowered to.

collective_shapes, collective_gradients   shape rules; gradients
collectives                               one op for all ranks that a graph has
transfer                                  _Send and _Recv
over_axis                                 over axes of a mesh, in a function of one coordinate
together                                  several tensors in one memory
group_transfer                            one rank's part, when the others are in other graphs
"""
