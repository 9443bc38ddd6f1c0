"""What detection costs: milliseconds per 200-token text, as ratios within one run.

    python benchmarks/detection_speed.py --texts 100

The package's openings and ordinary sentences, end to end, are cut into texts of 200 tokens: no language model
is needed, and texts share only the windows that ordinary texts share. Rows: texts one by one, all in one
batch, and (``window``) token by token as Algorithm 2 is written, one encoder call each.
Every row starts with an empty memory of windows. Times are medians over repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib import resources

import dewmark
from dewmark.embeddings.contexts import WindowContexts, ordinary_texts, windows_of


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    key = dewmark.Key(bytes(range(32)))
    composed = dewmark.load_scheme("dew", key=key, context="composed")
    window = dewmark.load_scheme("dew", key=key, context="window")
    texts = plain_texts(composed, args.texts)
    composed.detect_batch(texts[:2])
    window.detect_batch(texts[:2])

    def timed(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(args.repeats):
            window.reader.contexts = WindowContexts(
                window.reader.contexts.encoder, window.host.tokenizer, window.reader.contexts.whitening
            )
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return 1000 * statistics.median(seconds)

    few = texts[: max(1, args.texts // 10)]
    cut = timed(lambda: [composed.host.tokenizer.encode([text]) for text in texts]) / len(texts)
    rows = {
        "tokenising alone": cut,
        "composed, one by one": timed(lambda: [composed.detect(text) for text in texts]) / len(texts),
        "composed, one batch": timed(lambda: composed.detect_batch(texts)) / len(texts),
        "window, token by token": timed(lambda: [_token_by_token(window, text) for text in few]) / len(few),
        "window, one by one": timed(lambda: [window.detect(text) for text in few]) / len(few),
        "window, one batch": timed(lambda: window.detect_batch(texts)) / len(texts),
    }
    for name, value in rows.items():
        print(f"{name:24} {value:8.2f} ms a text   {value / cut:7.1f} x tokenising")


def plain_texts(scheme: dewmark.watermark.BoundScheme, count: int) -> list[str]:
    """Texts of 200 tokens, no two from the same place."""
    lines = (resources.files("dewmark") / "data" / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    whole = "\n".join([json.loads(line)["prompt"] for line in lines] + ordinary_texts())
    ids = scheme.host.tokenizer.encode([whole])[0].ids
    if len(ids) < 200 * count:
        raise SystemExit(f"there is text for {len(ids) // 200} texts only, --texts was {count}")
    return scheme.host.tokenizer.decode([ids[200 * i : 200 * (i + 1)] for i in range(count)])


def _token_by_token(scheme: dewmark.watermark.BoundScheme, text: str) -> None:
    ids = scheme.host.tokenizer.encode([text])[0].ids
    for row in windows_of(ids, k=scheme.scheme.k, host=scheme.host)[scheme.scheme.k :]:
        scheme.reader.contexts.vectors(row[None, :])
    scheme.detect(text)


if __name__ == "__main__":
    main()
