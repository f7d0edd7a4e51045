"""State that models share: that of a graph, settings of the process, the session.

graph_state    layers of tensors, masks, names, variables
settings       the dtype of floats and the like
seeds          those of random operations
sessions       the session, the learning phase, values
"""
