import pytest

for name in ("check_device_memory", "check_stream_executor", "stream_executor_case"):
    pytest.register_assert_rewrite(f"tests.contracts.{name}")
