"""What the scripts of this folder share."""

from __future__ import annotations

import argparse


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose --help shows the script's header as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
