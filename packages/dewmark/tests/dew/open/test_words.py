"""Word units: any host marks, nothing of it is needed to detect, and both read the same words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.fakes import COMPOSED, BagEncoder, replace_encoders
from tests.text.test_cleaning import DISGUISES

import dewmark
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.open.scheme import DewOpen
from dewmark.dew.paper.scheme import DewPaper
from dewmark.errors import ConfigError, VocabularyError
from dewmark.hosts.fake import FakeHost
from dewmark.opening import load_scheme
from dewmark.workspace import Workspace, no_host

KEY = Key(bytes(range(32)))
# the fake host's few words leave nothing to test once their matrix is flattened
WORDS = {"alpha": 0.5, "flatten": None}
PROMPT = "the old bridge over the river"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


def bind(host: FakeHost, tmp_path, key: Key = KEY, **settings):
    return DewOpen().with_settings(WORDS | settings).bind(key, host.info, Workspace(cache=tmp_path))


def write(host: FakeHost, scheme, count: int = 6, tokens: int = 120) -> list[str]:
    made = host.generate(
        [PROMPT] * count,
        scheme=scheme,
        seeds=range(count),
        decoding=Decoding(max_new_tokens=tokens, min_new_tokens=tokens),
    )
    return [g.text for g in made]


def test_one_detector_without_any_host_finds_the_texts_of_two_hosts(host, bag_encoder, tmp_path) -> None:
    """The detector is bound to no host: it has seen neither tokenizer."""
    detector = DewOpen().with_settings(WORDS).bind(KEY, no_host(), Workspace(cache=tmp_path))
    other = DewOpen().with_settings(WORDS).bind(Key(bytes(32)), no_host(), Workspace(cache=tmp_path))
    for writer in (host, FakeHost(300)):
        texts = write(writer, bind(writer, tmp_path, alpha=1.0), tokens=200)
        z = [d.z for d in detector.detect_batch(texts)]
        assert np.mean(z) > 3.0  # unmarked: mean 0, deviation 1/√6
        assert abs(np.mean([d.z for d in other.detect_batch(texts)])) < 4.5 / np.sqrt(len(texts))


def test_every_form_of_a_text_keeps_its_mark(host, bag_encoder, tmp_path) -> None:
    """At least 95% of z, for words and for the host's tokens, and offsets into the text as it is given.

    The fake host's words end no line; hyphens and numbers of lines are in tests/text.
    """
    tokens = DewPaper(sampler="gumbel", alpha=0.9, **COMPOSED)
    for scheme in (bind(host, tmp_path), tokens.bind(KEY, host.info, Workspace(cache=tmp_path))):
        name_of_scheme = scheme.scheme.name
        texts = write(host, scheme, count=3, tokens=120)
        plain = np.array([d.z for d in scheme.detect_batch(texts)])
        assert plain.mean() > 3.0
        for name, disguise in DISGUISES.items():
            if name_of_scheme == "dew-paper" and ("line" in name or "Markdown" in name or name == "a page"):
                continue  # they change the white space between tokens, or add characters that stay
            given = [disguise(text) for text in texts]
            found = scheme.detect_batch(given)
            kept = sum(d.z for d in found) / plain.sum()
            assert kept >= 0.95, f"{name}: {kept:.2f} of z is left for {name_of_scheme}"
            for text, detection in zip(given, found, strict=True):
                assert all(token.text == text[token.start : token.end] for token in detection.tokens)


def test_without_a_host_marking_is_refused(bag_encoder, tmp_path) -> None:
    detector = DewOpen().with_settings(WORDS).bind(KEY, no_host(), Workspace(cache=tmp_path))
    with pytest.raises(ConfigError, match="name a host"):
        detector.session(torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_marking_and_detection_see_the_same_alignments(kind, bag_encoder, tmp_path) -> None:
    """Every token that ends a word is offered the u that detection later reads for that word."""
    writer = FakeHost(400, kind=kind)
    bound = bind(writer, tmp_path)
    text = {
        "words": " the light of the night and the sea under the old hill was the story of all the people",
        "bytes": " the lighted houses of another town, and bridges under it: old waters all the night",
    }[kind]
    prompt = writer.info.tokenizer.encode([PROMPT])[0]
    tokens = writer.info.tokenizer.encode([text])[0]
    ids = torch.tensor([prompt.ids])
    batch = bound.batch(ids, None)
    certain = torch.zeros(1, 1)
    offered = []
    for token in tokens.ids:
        u = batch.texts(ids).alignments(torch.tensor([[token]]), certain, certain)
        offered.append(float(u[0, 0]))
        ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
    (words,) = bound.tokenize([text])
    reading = bound.reader.read([words], bound.tokenize([PROMPT]))
    (pairs,) = reading.texts
    checked = 0
    for (start, stop), pair in list(zip(words.offsets, pairs.positions, strict=True))[1:]:
        # the first may join the prompt's last word
        last = [i for i, (_, end) in enumerate(tokens.offsets) if end == stop]
        if last and pair >= 0 and text[start:stop].isascii():
            unit, context = reading.token_rows[pairs.tokens[pair]], reading.context_rows[pairs.windows[pair]]
            assert unit @ bound.W @ context == pytest.approx(offered[last[-1]], abs=2e-2)  # in float16
            checked += 1
    assert checked >= 5


def test_a_context_that_recurs_gets_fresh_noise(host, bag_encoder, tmp_path) -> None:
    bound = bind(host, tmp_path)
    loop = "the old bridge of the old bridge"
    ids = torch.tensor([host.info.tokenizer.encode([loop])[0].ids])
    batch = bound.batch(ids[:, :3], None)
    for length in range(3, ids.shape[1] + 1):
        assert batch.texts(ids[:, :length]).repeated().item() == (length == ids.shape[1])


def test_an_exported_detector_holds_nothing_of_the_host(host, bag_encoder, tmp_path) -> None:
    bound = bind(host, tmp_path)
    texts = write(host, bound, count=3)
    dewmark.Detector(bound).save(tmp_path / "detector")
    assert not (tmp_path / "detector" / "tokenizer").exists()
    index = json.loads((tmp_path / "detector" / "detector.json").read_text())
    assert index["host"] is None
    size = sum(file.stat().st_size for file in (tmp_path / "detector").rglob("*") if file.is_file())
    assert size < 100_000  # three matrices of the tiny encoder
    detector = dewmark.Detector.load(tmp_path / "detector").scheme
    for mine, theirs in zip(detector.detect_batch(texts), bound.detect_batch(texts), strict=True):
        assert mine.p_value == pytest.approx(theirs.p_value, rel=1e-4)
    with pytest.raises(ConfigError, match="name a host"):
        detector.session(torch.tensor([[1, 2, 3]]))


def test_another_encoder_is_refused(host, bag_encoder, tmp_path, monkeypatch) -> None:
    dewmark.Detector(bind(host, tmp_path)).save(tmp_path / "detector")
    replace_encoders(monkeypatch, BagEncoder(25))
    with pytest.raises(VocabularyError, match="made with encoder bag:24, but here it is bag:25"):
        dewmark.Detector.load(tmp_path / "detector")


def test_library_detects_without_looking_for_a_host(bag_encoder, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a host was looked up")

    monkeypatch.setattr("dewmark.hosts.host_info", fail)
    bound = load_scheme(KEY, scheme="dew-open", settings=WORDS)
    assert bound.detect("a text of some words that nobody marked, long enough to be read").tokens_scored > 5
    (found,) = dewmark.identify(
        ["a text that nobody marked at all"], [KEY], scheme="dew-open", settings=WORDS
    )
    assert not found.best.is_marked


def test_words_have_offsets_and_punctuation_has_none(bag_encoder, tmp_path) -> None:
    detector = DewOpen().with_settings(WORDS).bind(KEY, no_host(), Workspace(cache=tmp_path))
    text = "Don't panic! L'été coûte 3.14 €, 東京は大きい。 สวัสดีครับ"
    found = detector.detect(text)
    assert [token.text for token in found.tokens][:5] == ["Don't", "panic", "L'été", "coûte", "3.14"]
    assert all(text[token.start : token.end] == token.text for token in found.tokens)
    assert len(found.tokens) >= 8
