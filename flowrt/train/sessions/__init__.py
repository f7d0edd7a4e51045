"""Sessions of training loops.

session_manager    sessions with initialized variables, and their creators for the chief and for workers
hooked_session     one session with its hooks
monitored_session  `MonitoredTrainingSession`: recovers if a task is lost
device_setter      `replica_device_setter`
"""
