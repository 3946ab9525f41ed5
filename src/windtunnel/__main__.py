"""``python -m windtunnel`` is the same as ``windtunnel``."""

import sys

from windtunnel.cli import main

if __name__ == "__main__":
    sys.exit(main())
