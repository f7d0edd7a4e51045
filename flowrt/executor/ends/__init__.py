"""A session's configuration, fetches and feeds, checked and converted once.

config          `ConfigProto`, `RunOptions` and their parts
graph_elements  a name or handle -> the operation or tensor of the graph
feeds           fed values -> arrays of the right dtype and shape
fetches         nested structures of fetches -> flat tensors, and back
"""
