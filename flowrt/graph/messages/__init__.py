"""Nodes, attributes and tensors as protobuf messages.

tensor_proto  arrays <-> TensorProto
attr_values   attributes <-> AttrValue
graph_def     nodes -> GraphDef
"""
