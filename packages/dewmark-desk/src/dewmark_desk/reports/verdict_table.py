"""A table of many signed reports for spreadsheets, and the claims of its own signature.

The table is a CSV file; the signed document beside it names the file and its SHA-256, so that anyone can tell
that the desk wrote the table and nobody changed it. Boundary: claims in, table and claims out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from dewmark.reports.detection_display import CAVEATS
from dewmark.version import __version__
from dewmark_desk.reports.detection_report import timestamp

TABLE = "verdict-table"
FILE = "verdicts.csv"
_FORMAT = 1
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so


def table_csv(reports: Sequence[Mapping[str, Any]]) -> str:
    """The claims of detection reports, a row for each; a name that looks like a formula is quoted."""
    stream = io.StringIO()
    rows = [_row(claims) for claims in reports]
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def table_claims(table: str, *, rows: int, issuer: str | None) -> dict[str, Any]:
    """What is signed about a table."""
    return {
        "document": TABLE,
        "format": _FORMAT,
        "id": secrets.token_hex(8),
        "issued": timestamp(),
        "issuer": issuer,
        "software": f"dewmark {__version__}",
        "rows": rows,
        "files": {FILE: hashlib.sha256(table.encode()).hexdigest()},
        "caveats": list(CAVEATS),
    }


def _row(claims: Mapping[str, Any]) -> dict[str, Any]:
    text, found = claims["text"], claims["attribution"] or {}
    row = {
        "text": text["name"],
        "verdict": claims["verdict"],
        "p_value": claims["p_value"],
        "z": claims["evidence"]["z"],
        "effective_length": claims["evidence"]["effective_length"],
        "fpr": claims["level"],
        "tenant": found.get("owner"),
        "key_fingerprint": found.get("key_fingerprint"),
        "time": claims["issued"],
        "sha256": text["sha256"],
        "report": claims["id"],
    }
    return {
        name: f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
        for name, value in row.items()
    }
