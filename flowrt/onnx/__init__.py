"""ONNX models as graphs, and graphs as ONNX models: `load`, `export`, and the backend interface of ONNX's own
suite.

    >>> model = flowrt.onnx.load("detector.onnx")
    >>> boxes, scores = model.run({"image": image})

The way of a model:

    proto            the file as a ModelProto, external data inside its folder included
    model            `OnnxModel`: one graph and session for each signature of inputs
    importer         a ModelProto's graph, node by node, in order
    node             `Node`: one node while it is imported
    registry         which function imports it: `handles`
    function_bodies  what has no function: the body that its schema, or the model, gives
    values           what handlers take and return; what is known is computed at once
    ops              the handlers, by kind of operation
    training         initializers as variables
    exporter         the other way: `export`, from the operations that outputs need to a ModelProto
    external_data    weights in a file beside the model
    writer           the nodes of an ONNX graph while they are made, with dtypes
    emit             the functions that write flowrt's operations as ONNX's, by kind
    surface          flowrt's public names, as scripts have them
    backend          `prepare`, `run_model`, `run_node`

What is known while building stays a NumPy array: initializers, constants, shapes, and what follows from them.
So arithmetic on shapes is gone when the graph is built, and a handler that has to know a number (axes, pads)
asks for one. The *value* of an input that says how to build (a scale of a resize, the condition of an If
with branches of different types) is part of the signature.

Opsets 7 to the newest, of the domains ``ai.onnx`` and, in part, ``ai.onnx.ml``; older models are converted by
ONNX's own converter first. The package `onnx` is needed (the extra ``onnx``). Nothing runs by loading.
"""

from flowrt.onnx import ops as ops  # registers the handlers
from flowrt.onnx.exporter import export as export
from flowrt.onnx.importer import import_model as import_model
from flowrt.onnx.model import OnnxModel as OnnxModel
from flowrt.onnx.model import load as load
