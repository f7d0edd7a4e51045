"""stub"""


def arrays_to_lists(nodes):
    return nodes
