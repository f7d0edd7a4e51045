"""``flowrt.signal``: signals and their spectra. The last dimension is time or frequency, unless an axis is
given.

transforms   Fourier and cosine transforms; shifts of the zero frequency
windows      windows that taper the ends of a frame
frames       overlapping frames of a signal, and their sum
short_time   spectra of frames, and signals from them
sizes        sizes that are known when the graph is built, or not
mel          bands of the mel scale, cepstral coefficients
"""

from flowrt.signal.frames import *
from flowrt.signal.mel import *
from flowrt.signal.short_time import *
from flowrt.signal.transforms import *
from flowrt.signal.windows import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("signal")
