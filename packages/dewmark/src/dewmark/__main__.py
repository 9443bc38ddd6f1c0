"""``python -m dewmark`` is the command ``dewmark``."""

import sys

from dewmark.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
