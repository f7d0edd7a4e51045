"""Optimizers, and the inputs of their updates.

global_step           the variable that counts steps
optimizer             `Optimizer`: gradients, slots, updates
sharded_gradients     gradients of variables that are kept in parts
slot_creator          slots: variables such as momentum, kept for each trained variable
standard_optimizers   gradient descent, momentum, Adam and others
proximal_optimizers   proximal gradient descent, AdagradDA
schedules             learning rates as functions of the step
moving_averages       `ExponentialMovingAverage`
gradient_accumulator  one update from the gradients of several steps
loss_scale            factors that keep small gradients representable
loss_scale_optimizer  an optimizer of a scaled loss, which skips steps with infinite gradients
graph_rewrite         mixed precision for a whole graph, under TensorFlow's names
experimental          ``flowrt.train.experimental``
"""
