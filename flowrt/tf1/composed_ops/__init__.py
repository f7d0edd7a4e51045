"""Ops of TensorFlow that graphs being imported have, and functions of flowrt say.

composition   how one is defined, and what becomes of its node
arrays        buckets, coordinates, shapes of variables
examples      encoded examples, by vectors of keys
pictures      patches, gradients of resizing, parts of JPEGs, convolutions with padding
quantized     weights stored as integers
recurrent     cells and layers in one op
sounds        spectrograms, and their cepstral coefficients
sparse        sparse tensors in three parts
"""
