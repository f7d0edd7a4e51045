"""File formats of graphs: one module per format, and one table of them.

    picture                                   `Picture` (title, parts, view, stages) -> encode -> bytes
    dot, mermaid, model_explorer, json        for people and for programs; dot draws SVG, too
    graph_def                                 for TensorBoard and Netron
    table                                     the table

Drawings are for people: a view with more boxes than the viewer can handle is folded first. The other formats
are for programs and contain every operation.
"""
