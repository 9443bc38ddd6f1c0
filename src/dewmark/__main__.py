"""``python -m dewmark`` is the command ``dewmark``."""

from dewmark.cli.app import main

if __name__ == "__main__":
    main()
