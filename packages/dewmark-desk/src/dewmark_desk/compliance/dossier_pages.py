"""A dossier as a page of Markdown. Boundary: a dossier's JSON values in, the page out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

DOSSIER = "dossier"

Cells = Sequence[str]


def dossier_markdown(dossier: Mapping[str, Any]) -> str:
    """The dossier as Markdown; equal dossiers give equal bytes."""
    return "\n\n".join(_blocks(dossier)) + "\n"


def _blocks(dossier: Mapping[str, Any]) -> Iterator[str]:
    found, given = dossier["findings"], dossier["given"]
    yield from _opening(dossier)
    yield from _deployment(dossier)
    yield from _effective(found)
    yield from _reliable(found)
    yield from _robust(found)
    yield from _quality(found)
    yield from _quality_report(given["quality_report"])
    yield from _policy(given["policy_proof"])
    yield from _layers(given["layers"])
    yield from _code(dossier["code"])
    yield from _not_covered(dossier)
    yield from _access(dossier)
    yield from _method(dossier)


def _opening(dossier: Mapping[str, Any]) -> Iterator[str]:
    deployment = dossier["deployment"]
    yield "# Marking dossier"
    yield (
        f"Provider: {dossier['provider'] or 'not named'}. Contact: {dossier['contact'] or 'not named'}. "
        f"Issued {dossier['issued']} by {dossier['software']}. It accompanies Article 50(2) of Regulation "
        "(EU) 2024/1689, which asks providers to mark generated text in a machine-readable way that is "
        "effective, interoperable, robust and reliable as far as technically feasible. It reports "
        "measurements of one deployment. It is neither legal advice nor a certificate."
    )
    yield "## In short"
    yield _items(_summary(dossier["findings"], deployment["host"]))


def _summary(found: Mapping[str, Any], host: str) -> Iterator[str]:
    """The findings in a sentence each."""
    for row in found["power_by_length"]:
        if row["tokens"] is None and row["at"]:
            tokens = f"median {row['median_tokens']} tokens"
            yield f"Effective: of {host}'s {row['texts']} ({tokens}), {_found(row)}."
    unmarked = [row["at"][0] for row in found["false_positives"]["domains"] if row["at"]]
    if unmarked:
        alarms, texts = (sum(each[name] for each in unmarked) for name in ("found", "texts"))
        called = "1 is" if alarms == 1 else f"{alarms} are"
        level, said = unmarked[0]["level"], found["false_positives"]["sentence"]
        yield (
            f"Reliable: of {texts} unmarked texts of {len(unmarked)} kinds, {called} called marked at "
            f"{level:g}, where {level * texts:.1f} are expected by chance. {said}"
        )
    attacked = [row for row in found["robustness"] if row["attack"] != "none" and row["at"]]
    if attacked:
        ranked = sorted(attacked, key=lambda row: row["at"][0]["found"])
        yield (
            f"Robust: after {ranked[-1]['attack']}, {_found(ranked[-1])}; after {ranked[0]['attack']}, "
            f"{_found(ranked[0])}."
        )
    if found["quality"]:
        row = found["quality"][0]
        yield (
            f"Quality: {row['measure']} {row['marked']:.3f} against {row['unmarked']:.3f} without the mark "
            f"(difference {row['difference']:+.3f} ± {1.96 * row['standard_error']:.3f}, 95%)."
        )
    little = [row["format"] for row in found["formats"]]
    if little:
        yield f"Not covered: {', '.join(little)} and whatever else leaves the host little choice of words."


def _found(row: Mapping[str, Any]) -> str:
    """A row's shares in words."""
    shares = (f"{each['found']} of {each['texts']} are found at {each['level']:g}" for each in row["at"])
    return " and ".join(shares)


def _deployment(dossier: Mapping[str, Any]) -> Iterator[str]:
    deployment = dossier["deployment"]
    rows = [
        ("host", deployment["host"]),
        ("technique", f"{deployment['scheme']}: {deployment['summary']}"),
        ("settings", _settings(deployment["settings"])),
        ("key", f"fingerprint {deployment['key_fingerprint']}"),
        ("configuration", deployment["config_hash"]),
        ("openings", _settings(deployment["decoding"])),
        ("chat requests", _chat(deployment)),
    ]
    yield "## The deployment"
    yield _table(("what", "value"), *rows)


def _chat(deployment: Mapping[str, Any]) -> str:
    if deployment["chat_decoding"] is None:
        return "not measured: the host has no chat template"
    return f"the host's own template and settings: {_settings(deployment['chat_decoding'])}"


def _effective(found: Mapping[str, Any]) -> Iterator[str]:
    levels = _level_names(found["power_by_length"])
    yield "## Effective: how often is the mark found?"
    yield (
        "Share of marked texts that the detector calls marked, without knowing the prompt. In brackets the "
        "exact 95% interval; with few texts it is wide, and a deployment's own decision needs more."
    )
    rows = [
        (row["texts"], "whole text" if row["tokens"] is None else f"first {row['tokens']}", *_shares(row))
        for row in found["power_by_length"]
    ]
    yield _table(("texts", "tokens", *levels), *rows)
    yield "By language, whole texts; the host itself may write some of these languages badly:"
    rows = [(row["language"], *_shares(row)) for row in found["power_by_language"]]
    yield _table(("language", *levels), *rows)
    yield "By entropy, the room that the host leaves for a mark (marked openings in thirds):"
    rows = [
        (row["entropy"], f"{row['from_bits']:g} to {row['to_bits']:g}", *_shares(row))
        for row in found["power_by_entropy"]
    ]
    yield _table(("entropy", "bits per token", *levels), *rows)


def _reliable(found: Mapping[str, Any]) -> Iterator[str]:
    false = found["false_positives"]
    levels = _level_names(false["domains"])
    yield "## Reliable: false alarms under this key"
    yield f"{false['sentence']} Unmarked texts called marked, by domain:"
    rows = [
        (row["domain"], f"{row['texts']}", f"{row['without_verdict']}", *_shares(row, len(levels)))
        for row in false["domains"]
    ]
    yield _table(("domain", "texts", "without verdict", *levels), *rows)
    known = false["one_key"]
    if known:
        yield (
            "Under one key false alarms come together: r is the correlation of two texts' scores, r matched "
            "the one that describes how much keys differ. Rates at 1%, of this key as its scores predict it "
            "(and at most, with 95% confidence) and of keys between the 1st and the 99th percentile:"
        )
        rows = [
            (
                row["domain"],
                f"{row['texts']}",
                f"{row['r']:.3f}",
                f"{row['r_matched']:.3f}",
                f"{row['this_key']['rate']:.2%} (≤ {row['this_key']['high']:.2%})",
                f"{row['of_98_percent_of_keys']['low']:.2%} to {row['of_98_percent_of_keys']['high']:.2%}",
                row["verdict"],
            )
            for row in known
        ]
        names = ("domain", "texts", "r", "r matched", "this key", "98% of keys", "this key is")
        yield _table(names, *rows)


def _robust(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Robust: what survives an attack"
    yield "Share of the marked openings that is still found after each attack:"
    rows = [(row["attack"], *_shares(row)) for row in found["robustness"]]
    yield _table(("attack", *_level_names(found["robustness"])), *rows)
    missing = found["not_measured"].items()
    if missing:
        yield _items(f"Not measured: {name}. {reason[:1].upper()}{reason[1:]}." for name, reason in missing)


def _quality(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Quality: marked against unmarked text"
    yield "The same openings continued with and without the mark; the difference is paired."
    rows = [
        (
            row["measure"],
            f"{row['marked']:.3f}",
            f"{row['unmarked']:.3f}",
            f"{row['difference']:+.3f} ± {1.96 * row['standard_error']:.3f}",
            f"{row['pairs']}",
        )
        for row in found["quality"]
    ]
    yield _table(("measure", "marked", "unmarked", "difference (95%)", "pairs"), *rows)


def _quality_report(report: Mapping[str, Any] | None) -> Iterator[str]:
    if report is None:
        yield "No report of dewmark quality was given, which tests equivalence on more texts."
        return
    yield (
        f"The report of dewmark quality ({report['texts']} texts, {report['scheme']} on {report['host']}): "
        f"{report['outcome']}."
    )
    rows = []
    for name, each in report["measures"].items():
        compared = each["compared"]
        interval = compared["difference"]
        said = f"{interval['value']:+.3f} ({interval['low']:+.3f} to {interval['high']:+.3f})"
        rows.append((name, said, f"±{compared['margin']:g}", str(compared["outcome"])))
    yield _table(("measure", "difference (95%)", "margin", "outcome"), *rows)


def _policy(proof: Mapping[str, Any] | None) -> Iterator[str]:
    yield "## Policy: what is left unmarked, and the proof of it"
    if proof is None:
        yield "Not measured: give --policy-proof, the file of dewmark policy prove."
        return
    yield (
        f"Policy {proof['policy']}, {proof['requests']} requests, {proof['max_new_tokens']} tokens at most, "
        "each answered with the mark and without. JSON and tool calls follow a grammar, code is free text. "
        "Answers that parse, and the exact test of equal rates on the pairs that differ:"
    )
    rows = [
        (
            row["kind"],
            *(f"{row[name]} of {row['requests']}" for name in ("unmarked", "marked")),
            f"{row['p_value']:.2g}",
        )
        for row in proof["parsed"]
    ]
    yield _table(("answers", "unmarked", "marked", "p"), *rows)
    yield "The detector's own scores of words, by what the policy's log says of their spans (0 ± 1 each):"
    rows = [
        (row["reason"], f"{row['words']}", f"{row['mean']:+.3f} ± {row['error']:.3f}")
        for row in proof["spans"]
    ]
    yield _table(("span", "words", "mean score"), *rows)


def _layers(layers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Both layers: signed metadata and the mark"
    signer = layers["manifest_signer"] or "not stated: whether manifests are attached is not known here"
    page = layers["public_page"] or "none was named"
    rows = (
        ("the mark", "in the choice of words; survives copying and some editing, proves less"),
        ("C2PA manifests, signed by", signer),
        ("lost when", "invisible characters are dropped, such as in a PDF or in ASCII"),
        ("marks that the detector reads", layers["reads"]),
        ("public detector, on the reader's machine", page),
    )
    yield _table(("what", "how"), *rows)


def _code(code: Mapping[str, Any]) -> Iterator[str]:
    yield "## The Code's measures"
    yield code["source"]
    rows = [(row["measure"], row["answered"], row["left"]) for row in code["measures"]]
    yield _table(("measure", "answered under", "what is left"), *rows)


def _not_covered(dossier: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (row["format"], f"{row['median_tokens']}", f"{row['without_verdict']}", *_shares(row))
        for row in dossier["findings"]["formats"]
    ]
    yield "## Not covered"
    if rows:
        levels = _level_names(dossier["findings"]["formats"])
        yield "Outputs with little room for a mark, asked for as chat requests:"
        yield _table(("output", "median tokens", "without verdict", *levels), *rows)
    yield _items(dossier["not_covered"])


def _access(dossier: Mapping[str, Any]) -> Iterator[str]:
    access = dossier["access"]
    yield "## Interoperable: how to reach the detector"
    rows = [
        ("page for people", access["detector"]["page"]),
        ("interface for programs", access["detector"]["api"]),
        ("level", f"{access['detector']['level']:g}"),
        ("access", access["how_to_ask"]["access"]),
        ("verify signed reports", access["reports"]["verify"]),
        ("signpost to publish", "/.well-known/dewmark.json"),
        ("detection needs", dossier["deployment"]["detection_needs"]),
        ("per text", "C2PA manifest with a soft binding: dewmark provenance sign"),
    ]
    yield _table(("what", "where"), *rows)


def _method(dossier: Mapping[str, Any]) -> Iterator[str]:
    yield "## How this was measured"
    yield _items(dossier["method"])
    yield (
        "Check it: dewmark report verify dossier.jws --signer signer.jwk. The signed document has these "
        "figures as JSON and the SHA-256 of this file."
    )


def _level_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    levels = next((row["at"] for row in rows if row["at"]), ())
    return [f"at {each['level']:g}" for each in levels]


def _shares(row: Mapping[str, Any], columns: int = 0) -> list[str]:
    found = [f"{at['found']} of {at['texts']} ({at['low']:.2f}–{at['high']:.2f})" for at in row["at"]]
    return found + ["–"] * (columns - len(found))


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _table(head: Cells, *rows: Cells) -> str:
    return "\n".join([_row(head), "|" + " --- |" * len(head), *map(_row, rows)])


def _row(cells: Cells) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
