"""stub"""
from typing import Any
def convert(f: Any) -> Any:
    return f
