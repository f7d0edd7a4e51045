"""``flowrt.nn.rnn_cell``: cells, which are one step of a recurrent network, under TensorFlow 1's names.

base      `RNNCell`, which users' own cells extend; states of zeros
basic     BasicRNNCell, GRUCell
lstm      BasicLSTMCell, LSTMCell, and their state, `LSTMStateTuple`
stacked   MultiRNNCell
wrappers  dropout, residual connections and devices around a cell

Equations, gate order and variable names are TensorFlow's, so that its weights fit as they are.
"""

from typing import Any

from flowrt.nn.rnn_cell.base import RNNCell
from flowrt.nn.rnn_cell.basic import BasicRNNCell, GRUCell
from flowrt.nn.rnn_cell.lstm import BasicLSTMCell, LSTMCell, LSTMStateTuple
from flowrt.nn.rnn_cell.stacked import MultiRNNCell
from flowrt.nn.rnn_cell.wrappers import DeviceWrapper, DropoutWrapper, ResidualWrapper
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("nn.rnn_cell")
