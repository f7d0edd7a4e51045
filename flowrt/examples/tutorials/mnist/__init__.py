"""Handwritten digits, as TensorFlow 1's tutorials read and classify them.

input_data    `read_data_sets`: the files, and batches of them
idx_files     the format of the files
stand_in      scikit-learn's digits in their place
mnist         a network of two hidden layers
"""

from flowrt.examples.tutorials.mnist import input_data, mnist

__all__ = ["input_data", "mnist"]
