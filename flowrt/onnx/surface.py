"""`tf`: the public names, as a script has them. `Any`, since many are found when they are first used."""

from typing import Any

from flowrt.compat import v1

tf: Any = v1
