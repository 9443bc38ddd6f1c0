"""Unmarked documents under the keys of many tenants: how many are accused of anything, anywhere.

    python benchmarks/accusations.py --texts en.jsonl de.jsonl fr.jsonl --documents 300 --tenants 50

Starts ``dewmark serve`` with as many random keys and asks it about each document as the page does
(``/v1/detect`` with all tenants), and then for the passages of the tenant that came closest
(``/v1/locate``). A document counts as accused if anything in either answer says so: the verdict, a single
tenant's verdict, or a framed passage. If every look is paid for, the share is at most the level. A
contradiction is a document with two verdicts, or with an accusation beside the verdict "not marked". Prints
one JSON object, and every hundred documents the count so far.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from script_inputs import named_key, read_texts, script_parser
from service_load import ask, serving

from dewmark.stats.metrics import rate


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--texts", nargs="+", required=True, help="JSONL files, a document per line")
    parser.add_argument("--documents", type=int, default=300, help="documents, the same number of each file")
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=400, help="a document's length, about")
    parser.add_argument("--fpr", type=float, default=0.05)
    options = parser.parse_args()
    each = options.documents // len(options.texts)
    documents = [text for name in options.texts for text in read_texts(name, options.tokens)[:each]]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.tenants):
            named_key(f"accusations-{i}").save(Path(folder, f"tenant{i}.key"))
        with serving("--keys", folder) as (url, _):
            print(json.dumps(accused(url, documents, options.fpr), indent=1))


def accused(url: str, documents: list[str], fpr: float) -> dict[str, Any]:
    """The share of accused documents, by what accuses them."""
    counts = {"verdict": 0, "one_tenant": 0, "passage": 0, "anything": 0, "contradiction": 0}
    started = time.monotonic()
    for number, text in enumerate(documents, 1):
        (answer,) = ask(f"{url}/v1/detect", {"text": text, "fpr": fpr})["results"]  # type: ignore[misc]
        located = ask(f"{url}/v1/locate", {"text": text, "fpr": fpr, "tenant": answer["tenant"]})
        found = {
            "verdict": answer["verdict"] == "marked",
            "one_tenant": any(each["verdict"] == "marked" for each in answer["per_tenant"] or ()),
            "passage": bool((answer["coverage"] or {}).get("passages")) or bool(located["passages"]),
        }
        counts["anything"] += any(found.values())
        same = answer["verdict"] == located["detection"]["verdict"]
        counts["contradiction"] += not same or any(found.values()) != found["verdict"]
        for name, value in found.items():
            counts[name] += value
        if number % 100 == 0:
            print(json.dumps({"documents": number, **counts}), file=sys.stderr, flush=True)
    share = rate(counts["anything"], len(documents))
    seconds = round(time.monotonic() - started, 1)
    known = {"documents": len(documents), "level": fpr, **counts, "seconds": seconds}
    return {**known, "share": share.rate, "low": share.low, "high": share.high}


if __name__ == "__main__":
    main()
