"""stub"""


def raise_control_flow(nodes):
    return nodes
