"""The tutorials of TensorFlow 1.

mnist    handwritten digits
"""

from flowrt.examples.tutorials import mnist

__all__ = ["mnist"]
