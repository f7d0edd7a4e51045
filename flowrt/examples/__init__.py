"""TensorFlow's own examples that other programs import from.

tutorials    the MNIST tutorial
"""

from flowrt.examples import tutorials

__all__ = ["tutorials"]
