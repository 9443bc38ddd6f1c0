"""A reader at detection: μ by hand, an exact law over keys, and more evidence where the model is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats
from tests.many_keys import score_under

from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_texts
from dewmark.dew import reading as words
from dewmark.dew.scheme import DEW
from dewmark.errors import ConfigError
from dewmark.hosts.expectations import open_reader
from dewmark.opening import load_scheme
from dewmark.workspace import ExpectedWords, Workspace, no_host
from dewmark_lab.testing.fake_host import FakeHost

KEY = Key(bytes(range(32)))
TEXT = " ".join(
    f"{a} {b}" for a in ("river", "night", "water", "tree") for b in ("old", "sea", "road", "hill")
)


class Oracle:
    """Expects what it is told: for each word of a text, probabilities by form."""

    name, identity = "oracle", "oracle"

    def __init__(self, told) -> None:
        self.told = told

    def read(self, texts, prompts):
        return [self._words(text) for text in texts]

    def _words(self, text: str) -> ExpectedWords:
        starts, start = [], 0
        for word in text.split():
            start = text.index(word, start)
            starts.append(start)
            start += len(word)
        told = [self.told(i, word) for i, word in enumerate(text.split())]
        forms = tuple(dict.fromkeys(form for each in told for form in each))
        return ExpectedWords(
            starts=np.array(starts),
            bounds=np.cumsum([0, *map(len, told)]),
            index=np.array([forms.index(form) for each in told for form in each], dtype=np.int64),
            probabilities=np.array([p for each in told for p in each.values()], dtype=np.float32),
            forms=forms,
        )


def bind(tmp_path, key: Key = KEY, **settings):
    return DEW().with_settings(settings).bind(key, no_host(), Workspace(cache=tmp_path))


def vectors(bound, words: list[str]) -> np.ndarray:
    """t of words, (N, d); 0 for one without a row."""
    lexicon = bound.reader.lexicon
    return lexicon.tokens(lexicon.rows(words))


def test_the_matrix_of_a_text_is_made_of_differences_from_what_was_expected(bag_encoder, tmp_path) -> None:
    """Places that a reader leaves out, and probability that it leaves to others, go to the text's mean."""
    told = [{"sea": 0.5, "road": 0.25}, {}, {"night": 1.0}]
    plain = bind(tmp_path, flatten=1e9)
    bound = plain.reading_with(Oracle(lambda i, word: told[i % 3]))
    tokens, nothing = bound.tokenize([TEXT]), bound.tokenize([""])
    (evidence,) = evidence_of(bound, tokens, nothing)
    (before,) = evidence_of(plain, tokens, nothing)
    scored = np.flatnonzero(before.positions >= 0)
    own = vectors(plain, [tokens[0].forms[i] for i in scored])
    mean = own.mean(axis=0)
    for i, row in zip(scored.tolist(), own, strict=True):
        mu = (1.0 - sum(told[i % 3].values())) * mean
        for form, p in told[i % 3].items():
            mu = mu + p * vectors(plain, [form])[0]
        assert np.allclose(evidence.T[evidence.positions[i]], row - mu, atol=1e-5)
    u = np.einsum("id,de,ie->i", evidence.T, plain.own.W, evidence.C)
    assert np.allclose(evidence.scores, u, atol=1e-3)


def test_a_reader_that_knows_nothing_changes_nothing(bag_encoder, tmp_path) -> None:
    plain = bind(tmp_path)
    (before,) = score_texts(plain, [TEXT])
    (found,) = score_texts(plain.reading_with(Oracle(lambda i, word: {})), [TEXT])
    assert found.z == pytest.approx(before.z, abs=1e-4)
    assert found.reader == "oracle"
    assert before.reader is None


def test_a_certain_reader_leaves_nothing_to_judge(bag_encoder, tmp_path) -> None:
    (found,) = score_texts(bind(tmp_path).reading_with(Oracle(lambda i, word: {word: 1.0})), [TEXT])
    assert found.verdict == "too_short"
    assert found.effective_length < 1e-3


def test_a_repeated_pair_gets_the_mean_of_its_places(bag_encoder, tmp_path, monkeypatch) -> None:
    """So M is what it is when every occurrence has its own expectation."""
    text = " ".join(["old bridge over water"] * 6)
    bound = bind(tmp_path, flatten=1e9)
    every = np.where(np.arange(len(bound.reader.lexicon.limits)) > 0, 100, 0)
    monkeypatch.setattr(bound.reader.lexicon, "limits", every)
    read = bound.reading_with(Oracle(lambda i, word: {"sea": (i % 24) / 24}))
    (evidence,) = evidence_of(read, read.tokenize([text]), read.tokenize([""]))
    assert len(evidence) < np.count_nonzero(evidence.positions >= 0)
    sea = vectors(bound, ["sea"])[0]
    own = vectors(bound, text.split())
    scored = np.flatnonzero(evidence.positions >= 0)
    mean = own[scored].mean(axis=0)
    C = evidence.C[evidence.positions[scored]]
    mu = [(i / 24) * sea + (1 - i / 24) * mean for i in scored]
    M = np.einsum("id,ie->de", own[scored] - np.array(mu), C)
    assert np.allclose(np.einsum("i,id,ie->de", evidence.weights, evidence.T, evidence.C), M, atol=1e-4)


class Totals:
    """A packaged reader whose μ of a word is the sum of the rows of all words before it."""

    name = "packaged"

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def means(self, rows: np.ndarray) -> np.ndarray:
        before = np.concatenate(([0], np.cumsum(rows)[:-1]))
        return np.repeat(before[:, None], self.dim, axis=1).astype(np.float32)


def means_of(bound, text: str, prompt: str) -> tuple[np.ndarray, np.ndarray]:
    """μ + δ (pairs, d_T) by `Totals`, and the pair of each word."""
    reader = bound.reader
    texts, prompts = reader.tokenize([text]), reader.tokenize([prompt])
    reading = reader.read(texts, prompts)
    read = words.add_means(reading, reader, Totals(reader.lexicon.dim), texts, prompts)
    return read.token_rows[read.texts[0].expected], read.texts[0].positions


def test_the_packaged_reader_reads_the_end_of_a_long_prompt(bag_encoder, tmp_path) -> None:
    bound, words = bind(tmp_path), np.random.default_rng(0).choice(TEXT.split(), size=200).tolist()
    whole, last, first = (
        means_of(bound, TEXT, " ".join(each)) for each in (words, words[-64:], words[:64] + words[-3:])
    )
    assert np.array_equal(whole[0], last[0])
    # with more words before it every word has a larger μ, and δ takes out what all have in common
    assert not np.array_equal(whole[0], first[0])


def test_the_packaged_reader_reads_the_beginning_of_a_long_text(bag_encoder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(words, "READ", 10)
    means, positions = means_of(bind(tmp_path), TEXT, "")
    read, rest = (means[[i for i in part if i >= 0]] for part in (positions[:10], positions[10:]))
    assert len(np.unique(rest, axis=0)) == 1  # no more than δ
    assert len(np.unique(np.concatenate((read, rest[:1])), axis=0)) == len(read) + 1


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


def test_p_values_are_uniform_over_keys(host, bag_encoder, tmp_path) -> None:
    """With a real model as reader, flattening and repeated words: one fixed text, many keys."""
    reader = open_reader(FakeHost(300, seed=5))
    keys = [Key(bytes([i % 256, i // 256] * 16)) for i in range(300)]
    texts = [(TEXT + " ") * 2 + "and the old bridge", " ".join(reversed(TEXT.split()))]
    workspace = Workspace(cache=tmp_path, expectations=reader)
    rows = score_under(DEW(), keys, texts, no_host(), workspace)
    for row in rows:
        p = [detection.p_value for detection in row]
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert row[0].reader == reader.name
    alone = score_texts(bind(tmp_path, keys[0]).reading_with(reader), texts)
    assert [row[0].z for row in rows] == pytest.approx([each.z for each in alone], abs=1e-4)


def test_the_host_as_reader_sees_more_of_the_mark_in_low_entropy(host, bag_encoder, tmp_path) -> None:
    """At temperature 0.5 the fake host has few candidates: z grows, and unmarked texts stay at 0."""
    scheme = DEW().with_settings({"alpha": 0.7}).bind(KEY, host.info, Workspace(cache=tmp_path))
    settings = Decoding(max_new_tokens=100, min_new_tokens=100, temperature=0.5)
    prompts = ["the old bridge over the river"] * 12
    marked, plain = (
        [
            made.text
            for made in host.generate(prompts, scheme=each, seeds=range(12), decoding=settings, batch_size=12)
        ]
        for each in (scheme, None)
    )
    read = scheme.reading_with(open_reader(host))
    z, z_read = ([d.z for d in score_texts(each, marked, prompts=prompts)] for each in (scheme, read))
    assert np.mean(np.subtract(z_read, z)) > 0.2
    assert sum(np.greater(z_read, z)) >= 10  # of 12, by chance with probability 0.02
    assert abs(np.mean([d.z for d in score_texts(read, plain, prompts=prompts)])) < 4.5 / np.sqrt(12)


def test_only_words_take_a_reader(host, bag_encoder, tmp_path) -> None:
    reader = Oracle(lambda i, word: {})
    for scheme in ("dew-paper", "kgw"):
        with pytest.raises(ConfigError, match=f"{scheme} makes no use of a reader"):
            load_scheme(KEY, host=host, scheme=scheme).reading_with(reader)


def test_a_reader_is_part_of_the_configuration(bag_encoder, tmp_path) -> None:
    plain = bind(tmp_path)
    read = plain.reading_with(Oracle(lambda i, word: {}))
    assert read.config_hash != plain.config_hash
    assert read.reading_with(None).config_hash == plain.config_hash
    assert dataclasses.asdict(read.scheme) == dataclasses.asdict(plain.scheme)


def test_the_packaged_reader_expects_the_mean_where_a_pair_is_repeated(
    bag_encoder, tmp_path, monkeypatch
) -> None:
    """As a language model does: μ of a pair is the mean over its places, to which δ is added."""
    bound, text = bind(tmp_path), " ".join(["old bridge over water"] * 3)
    monkeypatch.setattr(bound.reader.lexicon, "limits", np.full(len(bound.reader.lexicon.limits), 100))
    found, positions = means_of(bound, text, "")
    rows = bound.reader.lexicon.listed_rows(text.split())
    every = Totals(1).means(rows)[:, 0]
    mu = np.array([every[positions == pair].mean() for pair in range(len(found))])
    assert len(found) == 4 < np.count_nonzero(positions >= 0)
    # what two pairs have in common, δ, is not in their difference
    own = vectors(bound, text.split())
    first = [own[int(np.flatnonzero(positions == pair)[0])] for pair in range(4)]
    weights = np.bincount(positions[positions >= 0]) / np.count_nonzero(positions >= 0)
    delta = weights @ (np.array(first) - mu[:, None])
    np.testing.assert_allclose(found, mu[:, None] + delta, rtol=1e-5, atol=1e-2)


def test_windows_are_in_the_order_of_their_words_whatever_a_text_is_read_with(bag_encoder, tmp_path) -> None:
    """Words outside the lexicon, too: the order of a set changes from run to run."""
    reader = bind(tmp_path).reader
    unlisted = [f"{letter}{i}" for letter in "zyxw" for i in range(10, 16)]
    forms = ["", "", "", *(form for each in unlisted for form in (each, "old", "old", "bridge"))]
    rows = reader.lexicon.rows(forms)
    assert not any(rows[forms.index(form)] for form in unlisted)
    places = np.flatnonzero(np.array(forms) == "bridge")
    _, found = reader._windows(forms, rows, places)
    assert found.tolist() == np.argsort(np.argsort(unlisted)[::-1]).tolist()
