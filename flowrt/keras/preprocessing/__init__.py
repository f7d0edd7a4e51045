"""``flowrt.keras.preprocessing``: data as arrays.

sequence       sequences of one length
text           words as integers
image          images changed at random
image_files    images in files and folders
image_batches  their batches
image_frames   images listed in a table
affine         images turned, shifted, sheared and zoomed
"""

from flowrt.keras.preprocessing import image as image
from flowrt.keras.preprocessing import sequence as sequence
from flowrt.keras.preprocessing import text as text
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("keras.preprocessing")
