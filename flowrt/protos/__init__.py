"""Messages on disk and on the wire: our own protobuf package, byte for byte readable as TensorFlow's.

Three files: ``graph.proto`` (data types, tensors, attributes, nodes, functions, GraphDef),
``step_stats.proto`` (StepStats, CostGraphDef, RunMetadata) and ``event.proto`` (Summary, Event). Rules: a
field has the number, type and label that it has in TensorFlow; a field that flowrt does not read is left
out, its number is ``reserved``, and protobuf carries its bytes along unread. The ``_pb2`` modules are
generated and committed, by a protoc of the 26 series, so that every protobuf runtime from 5 on loads them.

Importing this package imports none of them: write ``from flowrt.protos import graph_pb2``.
"""
