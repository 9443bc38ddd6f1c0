"""Signed detection reports: what was found in a text, by which technique, at which level; and tables of them.

`report_claims` says it in JSON values, which `dewmark_desk.signing` signs; `render_report` shows the same on
a page to print, with the signed document at its end. A report has the text's SHA-256 and never the text.
`table_csv` puts many reports into a CSV file; the signed claims beside it name the file's SHA-256, so that
anyone can tell that the desk wrote the table and nobody changed it.

Boundary: results in, claims and pages out; nothing here detects or signs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dewmark.reports.detection_display import CAVEATS, one_in, p_value, share_in_words
from dewmark.reports.html_page import escape, html_page
from dewmark.scheme import BoundScheme
from dewmark.types import Looks, Verdict, length_in_words
from dewmark.version import __version__
from dewmark_desk.signing import Signed

REPORT, TABLE = "detection-report", "verdict-table"
TABLE_FILE = "verdicts.csv"
_FORMAT = 1
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so

_STYLE = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
header { display: flex; justify-content: space-between; align-items: baseline; flex-wrap: wrap; gap: 0 1rem; }
.verdict { font-size: 1.6rem; line-height: 1.25; font-weight: 700; margin: .25rem 0 0; text-wrap: balance; }
.sure { margin: .4rem 0 1.2rem; } ul { margin: 0; padding-left: 1.2rem; }
.jws { font: .62rem/1.35 ui-monospace, monospace; overflow-wrap: anywhere; color: var(--soft); }
@media print { :root { color-scheme: light; --soft: #444; --card: #fff; --line: #999; }
  body { background: #fff; color: #000; font-size: 10pt; } main { padding: 0; }
  article { break-inside: avoid; border-color: #999; } }
"""


def text_digest(text: str) -> str:
    """Hex SHA-256 of the text as UTF-8: that of its file, if the file is UTF-8 without a byte-order mark."""
    return hashlib.sha256(text.encode()).hexdigest()


def timestamp(seconds: float | None = None) -> str:
    """A time in UTC, by default now."""
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")


def report_claims(
    text: str,
    found: Mapping[str, Any],
    bound: BoundScheme,
    *,
    said: str,
    owner: str | None = None,
    epoch: str | None = None,
    issuer: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """The claims of a report on one text.

    ``found`` is the result under the ``bound`` key as JSON values (`Detection.to_dict`), ``said`` the same
    in one sentence. ``owner`` (a tenant, or a key file's name) and ``epoch`` belong to the
    best key, and are claimed only if the text is marked or no other key was tried.
    """
    keys, scheme = found["looks"]["keys"], bound.scheme
    known = names_the_key(Verdict(found["verdict"]), keys)
    return {
        **_heading(REPORT, issuer),
        "text": {"sha256": text_digest(text), "characters": len(text), "name": name},
        "verdict": found["verdict"],
        "p_value": found["p_value"],
        "level": found["fpr"],
        "sentence": said,
        "attribution": {
            "owner": owner,
            "key_fingerprint": found["key_fingerprint"],
            "epoch": found.get("epoch") if epoch is None else epoch,
        }
        if known
        else None,
        "origin": _origin(found),
        "coverage": _places(found.get("coverage")),
        "looks": {**found["looks"], "p_value_of_best_key": found.get("p_value_of_key", found["p_value"])},
        "technique": {
            "scheme": scheme.name,
            "summary": scheme.summary,
            "settings": {name: value for name, value in scheme.to_dict().items() if value is not None},
            "config_hash": bound.config_hash if known else None,
            "test": found["test"],
        },
        "evidence": {name: found[name] for name in ("z", "effective_length", "tokens_scored")},
        "caveats": list(CAVEATS),
    }


def names_the_key(verdict: Verdict, keys: int) -> bool:
    """Whether a result may name the key that came closest, of so many."""
    return verdict is Verdict.MARKED or keys == 1


def _origin(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a marked text says of its origin besides the key; None if it is not marked.

    ``attributable`` is whether the key's holder marked it, as far as that can be tested.
    """
    if found["verdict"] != Verdict.MARKED.value:
        return None
    test = found.get("forgery")
    return {
        **{name: found.get(name) for name in ("member", "payload", "payload_confidence")},
        "attributable": None if test is None else test["attributable"],
        "p_value_of_form": None if test is None else test["p_form"],
    }


def _places(coverage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the mark is, in characters; the passages' words stay out of the report."""
    if coverage is None:
        return None
    kept = ("start", "end", "p_value")
    passages = [{name: each[name] for name in kept} for each in coverage["passages"]]
    return {"extent": coverage["extent"], "share": coverage["share"], "passages": passages}


def render_report(signed: Signed, document: str) -> str:
    """A page to print: the claims of a verified report in words, and the signed ``document`` itself."""
    claims = signed.payload
    text, looks, technique, found = (claims[name] for name in ("text", "looks", "technique", "evidence"))
    verdict = Verdict(claims["verdict"])
    p = claims["p_value"]
    rows = {
        "Text": f"{text['name'] or 'unnamed'}, {text['characters']:,} characters",
        "SHA-256": text["sha256"],
        "Verdict": f"{verdict.words}, at a false-positive rate of {claims['level']:g}",
        "p-value": "none"
        if p is None or not verdict.conclusive
        else f"{p_value(p)}: {share_in_words(p, test=technique['test'])}",
        "Corrected for": str(Looks(looks["keys"], looks["attempts"], looks["passages"])) or "one look",
        "Where": _where(claims["coverage"]) if verdict is Verdict.MARKED else None,
        "Key": _key(claims["attribution"]),
        "Marked by": _marked_by(claims.get("origin")),
        "Technique": f"{technique['scheme']}: {technique['summary']}; {technique['test']} test",
        "Evidence": f"z = {_number(found['z'], 2)}, "
        f"{length_in_words(found['effective_length'], found['tokens_scored'])}",
        "Software": claims["software"],
        "Report": claims["id"],
        "Signer": f"{signed.signer} (Ed25519)",
    }
    told = {term: _shown(str(value)) for term, value in rows.items() if value}
    body = "".join(f"<dt>{escape(term)}</dt><dd>{value}</dd>" for term, value in told.items())
    caveats = "".join(f"<li>{escape(each)}</li>" for each in claims["caveats"])
    when = f"{claims['issued'][:10]} {claims['issued'][11:16]} UTC"
    issued = f"{claims['issuer'] or 'Issuer not named'}, {when}"
    return html_page(
        f"Detection report {claims['id']}",
        f"<header><h1>Detection report</h1><p class='soft'>{_shown(issued)}</p></header>\n"
        f"<article>\n<p class='verdict'>{_shown(_headline(claims))}</p>\n"
        f"<p class='sure'>{escape(_certainty(claims))}</p>\n<dl>{body}</dl>\n</article>\n"
        f"<article>\n<h2>What a verdict means, and what it does not</h2>\n<ul>{caveats}</ul>\n</article>\n"
        "<article>\n<h2>Check this report</h2>\n<p>Anyone can make a page that looks like this one; only the "
        "signature counts. Get the signer’s public key from the signer, not from this page, and run "
        "<code>dewmark report verify THIS_PAGE.html --signer signer.jwk --text TEXTFILE</code>. Any JOSE "
        "library that knows EdDSA can verify the lines below.</p>\n"
        f"<p class='jws'>{escape(document)}</p>\n</article>\n",
        style=_STYLE,
    )


def _shown(text: str) -> str:
    """Text for the page without control characters: some turn the direction of what follows."""
    return escape("".join(each for each in text if unicodedata.category(each) not in ("Cc", "Cf")))


_HOLDERS = {
    True: "the key’s holder",
    False: "the key’s holder or somebody who learned the mark",
    None: "anyone who knows the mark: this detector cannot tell its holder’s texts from forgeries",
}


def _marked_by(origin: Mapping[str, Any] | None) -> str:
    """Whether the text is attributable, its member and its payload; nothing if it is not marked."""
    if origin is None:
        return ""
    parts = [f"{name} {origin[name]}" for name in ("member", "payload") if origin[name] is not None]
    return ", ".join((_HOLDERS[origin["attributable"]], *parts))


def signed_document(page: str) -> str | None:
    """The signed document that a page of `render_report` carries; None if there is not exactly one."""
    found = re.findall(r"<p class='jws'>([A-Za-z0-9_.-]+)</p>", page)
    return found[0] if len(found) == 1 else None


def _headline(claims: Mapping[str, Any]) -> str:
    verdict, owner = Verdict(claims["verdict"]), claims["attribution"]
    whose = f"the mark of {owner['owner']}" if owner and owner["owner"] else "the mark of this key"
    level = f"at a false-positive rate of {claims['level']:g}"
    if verdict is Verdict.MARKED:
        coverage = claims["coverage"] or {"extent": None}
        if coverage["extent"] == "part":
            return f"About {100 * coverage['share']:.0f}% of this text carries {whose}, {level}."
        throughout = " throughout" if coverage["extent"] == "whole" else ""
        return f"This text carries {whose}{throughout}, {level}."
    if verdict is Verdict.NOT_MARKED:
        none = f"No mark of {owner['owner']}" if owner and owner["owner"] else "No mark"
        return f"{none} was found in this text, {level}."
    return f"This text allows no verdict: {verdict.words}."


def _certainty(claims: Mapping[str, Any]) -> str:
    """The second sentence of the page."""
    verdict, p = Verdict(claims["verdict"]), claims["p_value"]
    if not verdict.conclusive or p is None:
        return "Nothing follows from this, in either direction."
    if claims["technique"]["test"] == "empirical":
        return f"Of unmarked texts, {one_in(p)} score this high."
    if verdict is Verdict.MARKED:
        return f"If it carried no mark, {one_in(p)} keys would still find this much in it by chance."
    return f"Chance explains what was found: {one_in(p)} keys would find as much or more."


def _key(owner: Mapping[str, Any] | None) -> str:
    if owner is None:
        return "none of the keys tried"
    epoch = f", epoch {owner['epoch']}" if owner["epoch"] is not None else ""
    return f"{owner['owner'] or 'key'} ({owner['key_fingerprint']}){epoch}"


def _where(coverage: Mapping[str, Any] | None) -> str:
    if coverage is None:
        return "in the text as a whole"
    places = ", ".join(f"{each['start']} to {each['end']}" for each in coverage["passages"])
    extent = {"whole": "throughout the text", "part": "in part of the text"}.get(coverage["extent"])
    return f"{extent or 'the text does not tell how much of it'}; clearest in characters {places}"


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _heading(document: str, issuer: str | None) -> dict[str, Any]:
    return {
        "document": document,
        "format": _FORMAT,
        "id": secrets.token_hex(8),
        "issued": timestamp(),
        "issuer": issuer,
        "software": f"dewmark {__version__}",
    }


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
        **_heading(TABLE, issuer),
        "rows": rows,
        "files": {TABLE_FILE: hashlib.sha256(table.encode()).hexdigest()},
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
