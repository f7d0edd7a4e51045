"""Models: graphs of layers, what they learn, and the loops that train them.

nodes            calls of layers as data
layer            `Layer`
input_layer      `Input`, `InputLayer`
network          layers connected to a graph
objective        losses and metrics of a model's outputs
batches          arrays, generators and datasets as batches
training_loop    epochs of steps
summary_table    the table of a model's layers
model            `Model`
sequential       `Sequential`
"""
