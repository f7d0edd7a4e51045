"""Neural networks.

activations, softmax, losses       elementwise; along an axis; cross-entropies
sharded_softmax                    softmax and cross-entropies with classes that are cut
bias, norms                        bias, dropout; norms and clipping by them
moments, batch_norm, normalization mean and variance; batch, layer and local response normalization
windows                            sliding windows, im2col
conv, depthwise_conv               convolution ops with their gradients
conv_functions                     TensorFlow's convolution functions over these
pooling, pooling_places            max and average pooling; the places of maxima
fake_quant                         numbers as a quantized tensor has them
boxes, combined_boxes              non-maximum suppression
colors                             hue, saturation and value of images
picture_boxes                      boxes drawn on images
resize, crops                      images, and parts of images, of another size
ctc, ctc_beam                      sequences of labels without their times; the search for the best
space_batch                        blocks of space as a batch
"""
