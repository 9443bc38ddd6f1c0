"""What every door promises alike, tested once over all doors of the library and the commands.

A door is a way to ask: a method, a function, a command with its options, a file of rows. P-values are
corrected for all that was looked at; a prompt stays with its text; nothing written holds a secret; and a text
is what the policy and the rotation of its key say.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.batch.many import read, write_jsonl
from tests.command_line import tiny  # noqa: F401 - fixture

import dewmark
from dewmark.batch import DetectorSpec, TextWriter, detect_file, generate_file, open_source
from dewmark.batch.detecting import ScoringWorker
from dewmark.cli.app import main
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import detect_texts, score_text, score_texts
from dewmark.detector import Detector
from dewmark.dew.form import FormKey
from dewmark.dew.ring import TURNS
from dewmark.policy import Policy
from dewmark.verdict import DEFAULT_FPR
from dewmark_audit.negatives import calibrate_file
from dewmark_lab.testing.fake_host import FakeHost

pytestmark = pytest.mark.usefixtures("tiny")

TEXTS = 3
PLAIN = Key(bytes(range(32)))
RING = Key(bytes(range(1, 33)), members=3)
PAYLOADS = Key(bytes(range(2, 34)), members=4, payload_bits=2)
ROTATED = Key(
    bytes(range(3, 35)),
    members=2,
    epoch="c",
    retired=(
        Key(bytes(range(4, 36)), members=2, epoch="first"),
        Key(bytes(range(5, 37)), payload_bits=1, epoch="b"),
    ),
)
KEYS = {"plain": PLAIN, "ring": RING, "payloads": PAYLOADS, "rotated": ROTATED}
Answer = tuple[str, float]


@pytest.fixture(autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What all tests of this file cache together, which takes seconds to make."""
    folder = tmp_path_factory.getbasetemp() / "laws"
    monkeypatch.setenv("DEWMARK_CACHE", str(folder))
    return folder


@functools.cache
def host() -> FakeHost:
    return FakeHost(400)


def random_texts(count: int, words: int, *, seed: int) -> list[str]:
    """Unmarked texts of the tiny vocabulary."""
    ids = np.random.default_rng(seed).integers(5, 390, size=(count, words)).tolist()
    return [text.strip() for text in host().tokenizer.decode(ids)]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict]]:
    """Run a command with ``--json``; the rows that it prints."""

    def run(*arguments: object) -> list[dict]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--json", "-q"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return [json.loads(line) for line in printed.out.splitlines()]

    return run


# Corrections: keys, uses, epochs, attempts


def best_alone(key: Key, text: str) -> float:
    """The p-value under a key, by hand: of each use alone, then corrected for all uses.

    Messages share a matrix, so that Bonferroni's bound holds among them; members with matrices of their own
    and epochs are independent: 1 − (1 − p)ⁿ.
    """
    bound = dewmark.load_scheme(key)
    matrices, best = 0, 1.0
    for epoch in bound.matrices.epochs:
        matrices += len(epoch.W)
        for index in range(len(epoch.W)):
            alone = [
                score_text(bound.under(bound.matrices.key(epoch.use(index, place))), text).p_value
                for place in range(epoch.messages.count)
            ]
            best = min(best, min(alone) * len(alone))
    return 1.0 - (1.0 - best) ** matrices


def judged(found: list[dewmark.Examined]) -> list[dewmark.Detection]:
    return [each.judged for each in found]


def agree(found: list, expected: list[float]) -> None:
    """p-values are those expected, and verdicts are what they say."""
    rows = [each if isinstance(each, dict) else each.to_dict() for each in found]
    assert [row["p_value"] for row in rows] == pytest.approx(expected, rel=1e-3)
    says = ["marked" if row["p_value"] <= DEFAULT_FPR else "not_marked" for row in rows]
    assert [row["verdict"] for row in rows] == says


@functools.cache
def likely_texts(name: str) -> tuple[str, ...]:
    """Of 40 unmarked texts those with the smallest p-values under a key, which corrections change most."""
    texts = random_texts(40, 80, seed=len(name))
    found = score_texts(dewmark.load_scheme(KEYS[name]), texts)
    order = np.argsort([each.p_value for each in found])[:TEXTS]
    return tuple(texts[i] for i in order)


def rows_of(texts: list[str], folder: Path) -> Path:
    return write_jsonl(folder / "rows.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])


def files_of(texts: list[str], folder: Path) -> list[Path]:
    files = [folder / f"{i}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    return files


@pytest.mark.parametrize("name", ["plain", "payloads", "rotated"])
def test_every_door_pays_for_uses_epochs_and_attempts(name, command, tmp_path) -> None:
    key, texts = KEYS[name], list(likely_texts(name))
    once = [best_alone(key, text) for text in texts]
    assert max(once) < 1 / 3  # so that three attempts are seen
    key.save(tmp_path / "the.key")
    detector, watermark = Detector.from_key(key), dewmark.Watermark(key, host=host())
    detector.save(tmp_path / "detector")
    agree([watermark.detect(text) for text in texts], once)
    agree(watermark.detect_batch(texts), once)
    agree([detector.detect(text) for text in texts], once)
    agree(Detector.load(tmp_path / "detector").detect_batch(texts), once)
    agree(judged(detect_texts(texts, detector.scheme)), once)
    agree(judged(detect_texts(texts, detector.scheme, attempts=3)), [3 * p for p in once])
    agree(judged(detect_texts(texts, dewmark.Keys([key]))), once)
    rows, files = rows_of(texts, tmp_path), files_of(texts, tmp_path)
    for i, (source, given, tried) in enumerate(
        (
            ("--key", files, 3),
            ("--key", ["--jsonl", rows], 1),
            ("--key", ["--jsonl", rows], 3),
            ("--detector", files, 1),
            ("--detector", ["--jsonl", rows], 3),
        )
    ):
        asked = source, tmp_path / {"--key": "the.key", "--detector": "detector"}[source], "--attempts", tried
        expected = [tried * p for p in once]
        agree(command("detect", *asked, *given), expected)
        if given != files:
            command("detect", *asked, *given, "--out", tmp_path / f"{i}.jsonl")
            agree(read(tmp_path / f"{i}.jsonl"), expected)
    spec = DetectorSpec(keys=(tmp_path / "the.key",), attempts=3)
    detect_file(rows, tmp_path / "out.jsonl", spec, block_size=2)
    agree(read(tmp_path / "out.jsonl"), [3 * p for p in once])


def test_every_door_pays_for_keys(command, tmp_path) -> None:
    texts = [likely_texts(name)[0] for name in KEYS]
    alone = np.array([[best_alone(key, text) for key in KEYS.values()] for text in texts])
    once = (1.0 - (1.0 - alone.min(axis=1)) ** len(KEYS)).tolist()
    assert max(once) < 1 / 2
    folder = tmp_path / "keys"
    for name, key in KEYS.items():
        key.save(folder / f"{name}.key")
    files, rows = files_of(texts, tmp_path), rows_of(texts, tmp_path)
    agree(judged(detect_texts(texts, dewmark.Keys(list(KEYS.values())))), once)
    bounds = [dewmark.load_scheme(key) for key in KEYS.values()]
    agree(judged(detect_texts(texts, bounds)), once)
    agree(judged(detect_texts(texts, bounds, attempts=2)), [2 * p for p in once])
    each_key = [part for name in KEYS for part in ("--key", folder / f"{name}.key")]
    for tried, given, asked in ((1, ["--keys", folder], files), (2, each_key, ["--jsonl", rows])):
        found = command("detect", *given, "--attempts", tried, *asked)
        agree(found, [tried * p for p in once])
        assert [row["keys"] for row in found] == [len(KEYS)] * len(texts)
        own = [row["p_value_of_key"] for row in found]
        assert own == pytest.approx(alone.min(axis=1).tolist(), rel=1e-3)
        out = tmp_path / f"{tried}.jsonl"
        detect_file(rows, out, DetectorSpec(keys=(folder,), attempts=tried), block_size=3)
        agree(read(out), [tried * p for p in once])


# Prompts stay with their texts


SCHEME = "exp"  # whose first pairs lie in the prompt


def prompted(count: int) -> tuple[list[str], list[str | None]]:
    """Texts of many lengths with prompts of their own; some are blank, and some have no prompt."""
    texts, prompts = random_texts(count, 60, seed=3), random_texts(count, 6, seed=4)
    written = [text[: 150 + 20 * i] for i, text in enumerate(texts)]
    for i in (0, 3, 4, 9):
        written[i] = " \n" if i % 2 else ""
    return written, [None if i in (2, 4) else prompt for i, prompt in enumerate(prompts)]


def test_prompts_stay_with_their_texts_in_every_door(command, tmp_path, monkeypatch) -> None:
    """Through blank texts, chunks, batches, blocks, several keys and a run that was stopped."""
    texts, prompts = prompted(12)
    keys = [PLAIN, Key(bytes(32))]
    for i, key in enumerate(keys):
        key.save(tmp_path / "keys" / f"{i}.key")
    kind = {"scheme": SCHEME, "host": "smollm2-135m"}
    one = DetectorSpec(keys=(tmp_path / "keys" / "0.key",), **kind)
    many = DetectorSpec(keys=(tmp_path / "keys",), **kind)
    bounds = [dewmark.load_scheme(key, **kind) for key in keys]
    written = [i for i, text in enumerate(texts) if text.strip()]

    def z_of(bound, before: list[str | None]) -> list[float]:
        return [score_text(bound, texts[i], prompt=before[i]).z for i in written]

    own = z_of(bounds[0], prompts)
    shifted = z_of(bounds[0], [prompts[-1], *prompts[:-1]])
    assert sum(a != b for a, b in zip(own, shifted, strict=True)) == len(written)
    best = np.max([own, z_of(bounds[1], prompts)], axis=0).tolist()

    def check(rows: list, expected: list[float] = own) -> None:
        z = [each["z"] if isinstance(each, dict) else each.z for each in rows]
        assert len(z) == len(texts)
        assert [z[i] for i in written] == pytest.approx(expected, abs=1e-9)

    rows = [{"id": i, "text": a, "prompt": b} for i, (a, b) in enumerate(zip(texts, prompts, strict=True))]
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    monkeypatch.setattr("dewmark.detect._TEXTS_AT_ONCE", 3)
    check(judged(detect_texts(texts, bounds[0], prompts=prompts, blank=True)))
    check(score_texts(bounds[0], texts, prompts=prompts, blank=True))
    kept = [texts[i] for i in written], [prompts[i] for i in written]
    assert [each.z for each in score_texts(bounds[0], kept[0], prompts=kept[1])] == pytest.approx(own)
    named = detect_texts(kept[0], dewmark.Keys(keys, **kind), prompts=kept[1])
    assert [each.judged.z for each in named] == pytest.approx(best)
    asked = ("--scheme", SCHEME, "--host", "smollm2-135m", "--jsonl", file)
    check(command("detect", "--key", tmp_path / "keys" / "0.key", *asked))
    check(command("detect", "--keys", tmp_path / "keys", *asked), best)
    command("detect", "--key", tmp_path / "keys" / "0.key", *asked, "--out", tmp_path / "cli.jsonl")
    check(read(tmp_path / "cli.jsonl"))
    for name, spec, expected in (("one", one, own), ("many", many, best)):
        out, score = tmp_path / f"{name}.jsonl", ScoringWorker.work_with

        def stops(self, scorer, score=score):
            work = score(self, scorer)
            return lambda block: work(block) if block.first < 6 else 1 / 0

        with monkeypatch.context() as patch:
            patch.setattr(ScoringWorker, "work_with", stops)
            with pytest.raises(ZeroDivisionError, match="division by zero"):
                detect_file(file, out, spec, block_size=3)
        assert detect_file(file, out, spec, block_size=3).resumed_from == 6
        check(read(out), expected)
    found = calibrate_file(file, bounds[0])
    alone = score_texts(bounds[0], texts, prompts=prompts, blank=True)
    conclusive = [each.z for each in alone if each.verdict.conclusive]
    assert found.z.tolist() == pytest.approx(sorted(conclusive))


# Nothing written holds a secret


def spellings(secret: bytes) -> Iterator[bytes]:
    """A secret as a file could hold it: raw, in hex, in base64 wherever it begins, as Python prints it."""
    yield from (secret, secret.hex().encode(), secret.hex().upper().encode())
    for before in range(3):
        whole = base64.b64encode(bytes(before) + secret)
        # the first and last characters also depend on the bytes around
        inner = whole[4 if before else 0 :].rstrip(b"=")[:-1]
        yield from (inner, inner.replace(b"+", b"-").replace(b"/", b"_"))
    yield repr(secret)[2:-1].encode()
    for separator in (", ", ","):
        yield separator.join(map(str, secret)).encode()


FORM = "words of a form"


class Secrets:
    """All secrets and forms of some keys, and every sub-key that is derived from now on, by what it is."""

    def __init__(self, keys: list[Key], monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[bytes, str] = {}
        derive = Key.subkey

        def subkey(key: Key, purpose: str) -> bytes:
            self.known[key._secret] = "secret"
            self.known[made := derive(key, purpose)] = purpose
            return made

        monkeypatch.setattr(Key, "subkey", subkey)
        for epoch in (epoch for key in keys for epoch in (*key.retired, key)):
            epoch.subkey(TURNS)
            for number in range(epoch.independent):
                for word in FormKey.of(epoch.independent_member(number)).words[:2]:
                    as_numbers = (str(word).encode(), str(word.view(np.uint64)).encode())
                    self.known |= dict.fromkeys((word.tobytes(), *as_numbers), FORM)

    def found_in(self, data: bytes) -> set[str]:
        return {
            name for secret, name in self.known.items() if any(each in data for each in spellings(secret))
        }


def test_no_file_no_output_and_no_log_holds_a_secret(tmp_path, monkeypatch, capsys, caplog) -> None:
    """All that commands write, but keys: detectors, their public halves, results, texts, reports, caches."""
    caplog.set_level(logging.DEBUG)
    secrets = Secrets([PLAIN, RING, PAYLOADS, ROTATED], monkeypatch)
    files, keys = tmp_path / "out", tmp_path / "keys"
    files.mkdir()
    texts = [likely_texts(name)[0] for name in KEYS]
    rows = write_jsonl(files / "rows.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    prompts = write_jsonl(files / "prompts.jsonl", [{"prompt": "the old bridge"}, {"prompt": "a new day"}])
    printed = ""

    def run(*arguments: object) -> None:
        nonlocal printed
        code = main([*map(str, arguments)])
        said = capsys.readouterr()
        assert code == 0, said.err
        printed += said.out + said.err

    for name, key in KEYS.items():
        key.save(keys / f"{name}.key")
        mine = ("--key", keys / f"{name}.key")
        run("key", "show", keys / f"{name}.key", "--json")
        run("detector", "export", *mine, "--out", files / f"{name} detector")
        run("detect", *mine, "--jsonl", rows, "--out", files / f"{name}.jsonl", "--tokens")
        run("detect", *mine, files_of(texts, files)[0], "--html", files / f"{name}.html")
        run("calibrate", *mine, "--negatives", rows, "--out", files / f"{name} calibration.json")
        written = ("--out", files / f"{name} texts.jsonl", "--seed", 1, "--max-new-tokens", 4, "--continue")
        if name in ("plain", "rotated"):
            run("generate", *mine, "--prompts", prompts, *written)
            run("audit", *mine, "--negatives", rows, "--out", files / f"{name} audit.json")
        worker = ScoringWorker(open_source(str(rows)), DetectorSpec(keys=(keys / f"{name}.key",)), {})
        (files / f"{name} worker").write_bytes(pickle.dumps(worker))
    for name in ("plain", "ring"):
        public = files / f"{name} public"
        run("detector", "export", "--key", keys / f"{name}.key", "--public", "--out", public)
    run("detect", "--keys", keys, "--jsonl", rows, "--out", files / "many.jsonl")
    assert len(secrets.known) > 20
    for name in KEYS:  # the search does find what is there
        assert "secret" in secrets.found_in((keys / f"{name}.key").read_bytes())
    held = {
        file.relative_to(tmp_path).as_posix(): found
        for file in tmp_path.rglob("*")
        if file.is_file() and keys not in file.parents and (found := secrets.found_in(file.read_bytes()))
    }
    # a detector of one's own is as secret as the key: it knows the forms, and turns its messages' matrices
    own = {f"out/{name} detector/state/form.npy": {FORM} for name in KEYS}
    for name in KEYS.keys() - {"plain"}:
        for i in range(len(KEYS[name].retired) + 1):
            own[f"out/{name} detector/state/ring_{i}_secret.npy"] = {TURNS}
            own[f"out/{name} detector/state/ring_{i}_form.npy"] = {FORM}
    assert held == own
    assert not secrets.found_in((printed + caplog.text).encode())


# A text is what is said of it


LENGTH = 6  # tokens of a text


def written_by_all_doors(key: Key, policy: dict | None, folder: Path, command) -> str:
    """The text that a key writes with a seed under a policy, the same in every door."""
    folder.mkdir()
    key.save(folder / "the.key")
    prompt, seed = "the old bridge", 5
    decoding = Decoding(max_new_tokens=LENGTH, min_new_tokens=LENGTH)
    settings = {"alpha": 0.7}
    (folder / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
    left_out = None if policy is None else Policy(**policy)
    watermark = dewmark.Watermark(key, host="smollm2-135m", settings=settings, policy=left_out)
    text = watermark.generate(prompt, seed=seed, decoding=decoding).text
    batch = watermark.generate_batch(["a new day", prompt], seeds=[1, seed], decoding=decoding, batch_size=2)
    assert batch[1].text == text
    assert "".join(watermark.stream(prompt, seed=seed, decoding=decoding)) == text
    asked = write_jsonl(folder / "in.jsonl", [{"prompt": "a new day"}, {"prompt": prompt}])
    for name, writer in (("wm", watermark), ("writer", TextWriter.marked(watermark))):
        generate_file(asked, folder / f"{name}.jsonl", writer, decoding=decoding, seed=seed - 1)
        assert read(folder / f"{name}.jsonl")[1]["text"] == text
    given = ["--key", folder / "the.key", "--set", "alpha=0.7", "--continue"]
    given += [] if policy is None else ["--policy", folder / "policy.json"]
    given += ["--max-new-tokens", LENGTH, "--min-new-tokens", LENGTH]
    (row,) = command("generate", *given, "--prompt", prompt, "--seed", seed)
    assert row["text"] == text
    command("generate", *given, "--prompts", asked, "--out", folder / "cli.jsonl", "--seed", seed - 1)
    assert read(folder / "cli.jsonl")[1]["text"] == text
    return text


@pytest.mark.parametrize(
    ("policy", "spared", "marked"),
    [({}, False, True), ({}, True, False), ({"least_tokens": LENGTH + 1}, False, False)],
    ids=["nothing to spare", "all spared", "short"],
)
def test_what_a_policy_leaves_out_has_nothing_of_the_key(
    policy, spared, marked, command, tmp_path, monkeypatch
) -> None:
    """Two keys write two texts with one seed, but one text where nothing may be marked."""
    if spared:
        monkeypatch.setattr("dewmark.policy._in_code", lambda text: True)
    keys = PLAIN, Key(bytes(32))
    texts = [written_by_all_doors(key, policy, tmp_path / str(i), command) for i, key in enumerate(keys)]
    assert (texts[0] != texts[1]) is marked
    spans = Policy(**policy).spans(texts[0], "the old bridge")
    assert {span.reason for span in spans} == ({"code"} if spared else {None})


def test_a_run_is_not_resumed_under_another_policy(tmp_path) -> None:
    asked = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "a new day"}, {"prompt": "the old bridge"}])
    policies = (None, Policy(), Policy(quotations=False), Policy(least_tokens=9))
    write = functools.partial(generate_file, asked, decoding=Decoding(max_new_tokens=8), seed=1)
    for i, first in enumerate(policies):
        out = tmp_path / f"{i}.jsonl"
        write(out, dewmark.Watermark(PLAIN, host=host(), policy=first))
        for other in policies:
            again = dewmark.Watermark(PLAIN, host=host(), policy=other)
            if other == first:
                assert write(out, again).resumed_from == 2
            else:
                with pytest.raises(dewmark.DewmarkError, match="config_hash is"):
                    write(out, again)


def test_a_retired_key_marks_nothing_any_more(command, tmp_path) -> None:
    """Every door writes what the current epoch's key writes alone, and the retired one does not find it."""
    rotated = Key(bytes(range(9, 41)), epoch="new", retired=(Key(PLAIN._secret, epoch="first"),))
    alone = Key(rotated._secret)
    texts = [
        written_by_all_doors(key, None, tmp_path / str(i), command) for i, key in enumerate((rotated, alone))
    ]
    assert texts[0] == texts[1]
    watermark = dewmark.Watermark(rotated, host=host(), settings={"alpha": 0.7})
    text = watermark.generate("the old bridge", seed=5, max_new_tokens=120, min_new_tokens=120).text
    found = watermark.detect(text)
    assert (found.is_marked, found.epoch) == (True, "new")
    assert not score_text(dewmark.load_scheme(PLAIN, settings={"alpha": 0.7}), text).is_marked
