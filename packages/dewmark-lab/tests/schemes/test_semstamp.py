"""SemStamp and k-SemStamp: bins, keyed partitions, drafts and verdicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import BagEncoder
from tests.tiny_artifacts import MAKERS, card_of

from dewmark.batch.generating import completion_row
from dewmark.batch.inputs import Prompt
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ArtifactError, ConfigError
from dewmark.types import Looks, Verdict
from dewmark.verdict import decide
from dewmark.workspace import Workspace
from dewmark_lab.artifacts import save_artifact
from dewmark_lab.schemes.sentence.semstamp import KSemStamp, SemStamp
from dewmark_lab.testing.trial import tiny_host

SCHEMES = [SemStamp, KSemStamp]
TEXT = (
    "The river was high. A boat came down it. Nobody saw who was in it! The old bridge held. It rained again."
)


def _shuffled(count: int, *, seed: int = 0) -> list[str]:
    """Sentences of six random words of the text."""
    rng, words = np.random.default_rng(seed), TEXT.lower().replace(".", "").replace("!", "").split()
    return [f" {' '.join(rng.permutation(words)[:6])}." for _ in range(count)]


def key(number: int) -> Key:
    return Key(bytes([number]) * 32)


@pytest.fixture
def bind(bag_encoder: BagEncoder, tmp_path: Path):
    def make(scheme, number: int = 1):
        return scheme.bind(key(number), tiny_host("sentences").info, Workspace(cache=tmp_path))

    return make


@pytest.mark.parametrize("kind", SCHEMES)
class TestBoth:
    def test_the_key_accepts_the_same_share_after_every_bin(self, kind, bind) -> None:
        bound, same, other = bind(kind()), bind(kind()), bind(kind(), 2)
        assert bound.partition.shape == (8, 8)
        assert (bound.partition.sum(axis=1) == 2).all()
        assert np.array_equal(bound.partition, same.partition)
        assert not np.array_equal(bound.partition, other.partition)

    def test_over_keys_every_bin_is_accepted_equally_often(self, kind, bind) -> None:
        """200 keys accept each of 64 transitions 50 times on average; each with standard deviation √37.5."""
        counts = sum(bind(kind(), number).partition.astype(int) for number in range(200))
        assert abs(counts - 50.0).max() < 4.5 * np.sqrt(37.5)

    def test_share_must_be_a_whole_number_of_bins(self, kind, bind) -> None:
        with pytest.raises(ConfigError, match="whole number of the 8 bins, got 0.3"):
            bind(kind(gamma=0.3))

    def test_draft_passes_in_an_accepted_bin_away_from_its_border(self, kind, bind) -> None:
        bound = bind(kind())
        drafts = bound.drafts(["The river was high."] * 40)
        texts = _shuffled(40)
        scores = drafts.judge(range(40), texts)
        vectors = bound.space.vectors(["The river was high.", *(text.strip() for text in texts)])
        bins, slack = bound.bins.assign(vectors)
        for i, score in enumerate(scores):
            accepted = bound.partition[bins[0], bins[i + 1]]
            assert (score > 0.0) == (accepted and slack[i + 1] > 0.0)
        assert 0 < sum(score > 0.0 for score in scores) < 40
        wide = bind(kind(margin=0.9)).drafts(["The river was high."])
        assert max(wide.judge([0] * 40, texts)) <= 0.0

    def test_a_draft_that_is_no_complete_sentence_does_not_pass(self, kind, bind) -> None:
        drafts = bind(kind()).drafts(["the old bridge."])
        odd = ["", " ", "...", "\ufffd", " an unfinished sentence"]
        assert max(drafts.judge([0] * len(odd), odd)) <= 0.0
        assert drafts.end(0, " the water was high. and") == len(" the water was high.")
        assert drafts.end(0, " the water") is None

    def test_a_draft_that_changes_the_sentence_before_is_unusable(self, kind, bind) -> None:
        drafts = bind(kind()).drafts([""])
        assert drafts.judge([0], [" It cost 3."]) == [1.0]  # without a sentence before it, any will do
        drafts.accept(0, " It cost 3.")
        assert drafts.end(0, "14 euros") == len("14 euros")
        assert drafts.judge([0], ["14 euros. Then"]) == [-np.inf]
        assert drafts.end(0, '"') is None  # the sentence before may still be closing
        assert drafts.end(0, " Then it rained.") is None
        assert drafts.end(0, " Then it rained. And") == len(" Then it rained.")
        assert drafts.end(0, " Then it rained.", last=True) == len(" Then it rained.")
        assert np.isfinite(drafts.judge([0], [" Then it rained."])[0])

    def test_text_is_read_again_if_no_draft_was_usable(self, kind, bind) -> None:
        """The draft taken changes the sentence before it, and the next one depends on the new sentence."""
        bound = bind(kind())
        glued, fresh = (bound.drafts(["The river was high."]) for _ in range(2))
        for drafts, parts in (
            (glued, [" It cost 3.", "14 euros", " or so."]),
            (fresh, [" It cost 3.14 euros or so."]),
        ):
            for part in parts:
                drafts.accept(0, part)
        tries = _shuffled(30)
        assert glued.judge([0] * 30, tries) == fresh.judge([0] * 30, tries)
        assert glued.end(0, " Then it rained. And") == fresh.end(0, " Then it rained. And")

    def test_marked_sentences_are_detected_and_counted(self, kind, bind) -> None:
        """A text of accepted drafts only has all transitions accepted."""
        bound = bind(kind())
        drafts = bound.drafts(["The river was high."])
        text = ""
        for number in range(12):
            tries = _shuffled(60, seed=number)
            scores = drafts.judge([0] * 60, tries)
            passed = next(draft for draft, score in zip(tries, scores, strict=True) if score > 0.0)
            drafts.accept(0, passed)
            text += passed
        found = score_text(bound, text, prompt="The river was high.")
        assert found.tokens_scored == 12
        assert all(unit.score > 0.0 for unit in found.tokens)
        assert found.is_marked
        assert score_text(bound, text).tokens_scored == 11  # without the prompt the first has no context
        assert score_text(bind(kind(), 2), text).p_value > found.p_value
        assert score_text(bound, text, test="z").p_value < found.p_value  # it takes loops as proof

    def test_text_in_which_no_key_can_be_detected_is_too_short(self, kind, bind) -> None:
        found = [
            score_text(bind(kind(), number), "It rained. It rained. It rained. It rained.")
            for number in range(20)
        ]
        assert {detection.verdict for detection in found} == {Verdict.TOO_SHORT}
        assert {round(detection.p_value, 6) for detection in found} == {0.25, 1.0}
        assert decide(found, fpr=0.01, looks=Looks(keys=len(found))).verdict is Verdict.TOO_SHORT

    def test_a_stored_detector_needs_no_artifact(self, kind, bind, tmp_path, bag_encoder) -> None:
        folder = tmp_path / "artifact"
        info = tiny_host("sentences").info
        parameters, arrays = MAKERS[kind.name](info, bag_encoder)
        save_artifact(folder, card_of(kind.name, info, bag_encoder, parameters), arrays)
        bound = bind(kind(artifact=str(folder)))
        state = bound.state()
        shutil.rmtree(folder)
        workspace = Workspace(cache=tmp_path)
        again = bound.scheme.restore(state, info, bound.fingerprint, workspace)
        assert score_text(again, TEXT) == score_text(bound, TEXT)
        assert again.config_hash == bound.config_hash

    def test_number_of_drafts_is_reported(self, kind, bind) -> None:
        made = tiny_host("sentences").generate(
            [" the old bridge"],
            scheme=bind(kind()),
            seeds=[1],
            decoding=Decoding(max_new_tokens=30, min_new_tokens=30),
        )[0]
        assert (
            json.loads(json.dumps(completion_row(Prompt(0, made.prompt), made)))["drafts"]
            == made.drafts.to_dict()
        )
        assert made.drafts.drafts >= made.drafts.sentences > 0
        assert "drafts each" in str(made.drafts + made.drafts)


def test_hyperplanes_come_from_the_key(bind) -> None:
    """Bins are signs of cosines; another key has other hyperplanes, so other bins."""
    vectors = np.random.default_rng(0).normal(size=(200, 24)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    bins, slack = bind(SemStamp()).bins.assign(vectors)
    others, _ = bind(SemStamp(), 2).bins.assign(vectors)
    assert set(bins) == set(range(8))
    assert np.mean(bins == others) < 0.4
    mirrored, _ = bind(SemStamp()).bins.assign(-vectors)
    assert (bins + mirrored == 7).all()
    assert (slack > -0.01).all()
    assert set(bind(SemStamp(dimensions=4, gamma=0.5)).bins.assign(vectors)[0]) == set(range(16))


def test_clusters_are_public_and_the_nearest_centroid_decides(bind) -> None:
    vectors = np.eye(24, dtype=np.float32)[:8]
    bins, slack = bind(KSemStamp()).bins.assign(vectors)
    assert bins.tolist() == list(range(8))
    assert slack == pytest.approx(np.full(8, 1.0 - 0.035), abs=1e-6)
    assert np.array_equal(bind(KSemStamp(), 2).bins.assign(vectors)[0], bins)


def test_an_artifact_without_centroids_is_rejected(bind, tmp_path, bag_encoder) -> None:
    info = tiny_host("sentences").info
    parameters, arrays = MAKERS["semstamp"](info, bag_encoder)
    save_artifact(tmp_path / "a", card_of("ksemstamp", info, bag_encoder, parameters), arrays)
    with pytest.raises(ArtifactError, match="no centroids"):
        bind(KSemStamp(artifact=str(tmp_path / "a")))


def test_many_keys_read_the_text_once(bag_encoder, tmp_path) -> None:
    keys = [key(number) for number in range(30)]
    host = tiny_host("sentences").info
    bounds = list(SemStamp().bind_keys(keys, host, Workspace(cache=tmp_path)))
    readings = bounds[0].read(*map(bounds[0].tokenize, ([TEXT, TEXT], ["", ""])))
    columns = [bound.whole(readings, test="exact", fpr=0.01) for bound in bounds]
    assert [len(column) for column in columns] == [2] * 30
    assert bag_encoder.calls == [5]  # five distinct sentences, encoded once
