"""The text form of a graph.

text_literals  attribute values
graph_text     `print_subgraph`, `parse_subgraph`
"""
