"""Command lines, texts and quality measures shared by the scripts of this folder."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import dewmark
from dewmark.config import parse_settings


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose --help shows the script's header as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parse_with_configs(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse, with ``--config NAME: SETTING=VALUE …`` (repeatable) as a list of (name, settings)."""
    parser.add_argument("--config", nargs="+", action="append", default=[], metavar="NAME: SETTING=VALUE")
    args = parser.parse_args()
    args.config = [
        (name.rstrip(":"), parse_settings(settings)) for name, *settings in args.config or [["dew:"]]
    ]
    return args


def named_key(name: str, *, members: int = 1) -> dewmark.Key:
    """The same key for the same name in every run; with ``members``, a ring."""
    return dewmark.Key(hashlib.sha256(name.encode()).digest(), members=members)


def read_texts(source: str, tokens: int) -> list[str]:
    """The ``text`` or ``response`` of the rows of FILE[:FIRST:LAST], truncated to about ``tokens`` tokens."""
    name, *rows = source.split(":")
    lines = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
    if rows:
        lines = lines[int(rows[0]) : int(rows[1])]
    texts = [str(line.get("text", line.get("response", "")))[: 5 * tokens] for line in lines]
    return [text for text in texts if len(text.split()) >= 30]


RINGS = (1, 16, 256, 4096, 16_384, 65_536)
LEVEL = 0.01
