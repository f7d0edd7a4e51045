"""Messages between tasks, and the connections that carry them.

messages          message <-> frame
clock             clock offset of another task, by ping-pong
response_cache    at-most-once: a repeated request gets its first response
failure_detector  tasks that disappeared without ending well
coalescing        small tensors sent together
peer              requests and responses over one connection
wait_log          reports of long waits
"""
