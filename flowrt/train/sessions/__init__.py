"""Sessions of training loops.

session_manager    sessions whose variables have values
session_creator    for the chief and for workers
hooked_session     one session with its hooks
monitored_session  `MonitoredTrainingSession`: recovers when a task is lost
device_setter      `replica_device_setter`
"""
