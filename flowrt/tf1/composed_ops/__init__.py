"""Ops of TensorFlow that graphs being imported have, and functions of flowrt say.

composition   how one is defined, and what becomes of its node
arrays        buckets, coordinates, shapes of variables
pictures      patches, gradients of resizing, parts of JPEGs, convolutions with padding
recurrent     cells and layers in one op
sounds        spectrograms, and their cepstral coefficients
sparse        sparse tensors in three parts
"""
