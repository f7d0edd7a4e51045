"""Queues (queues), staging areas (staging), conditional accumulators (accumulators), and readers of files
(readers).
"""
