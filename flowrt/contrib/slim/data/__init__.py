"""``contrib.slim``'s input: examples in files, decoded and put into queues.

tfexample_decoder        items of `Example` messages
parallel_reader          readers that fill a queue
dataset                  files, with their reader and decoder
dataset_data_provider    the next example
prefetch_queue           tensors that are computed ahead
"""
