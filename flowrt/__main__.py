"""``python -m flowrt``: the command, where it is not on the path."""

import sys

from flowrt.cli.main import main

sys.exit(main())
