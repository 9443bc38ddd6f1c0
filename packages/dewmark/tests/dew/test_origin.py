"""From a key with members, payloads and epochs to marked text and back, on a fake host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri
from tests.many_keys import score_under

from dewmark.capabilities import for_member
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import detect_texts, score_text, score_texts
from dewmark.detector import Detector
from dewmark.dew.matrix import differences
from dewmark.dew.origin import (
    LARGE,
    OriginStatistic,
    forgery_test,
    head_of,
    level_share,
    share_among,
    split,
    with_origin,
)
from dewmark.dew.paper.scheme import DewPaper
from dewmark.dew.ring import CONFIDENCE, EpochMatrices, KeyMatrices, random_member
from dewmark.dew.scheme import DEW
from dewmark.encoders.contexts import register_texts
from dewmark.errors import ConfigError, KeyFileError
from dewmark.types import Detection, Verdict
from dewmark.verdict import ORIGIN_SHARE
from dewmark.workspace import Workspace, no_host
from dewmark_lab.testing.fake_host import FakeHost

SETTINGS = {"alpha": 1.0}
LONG = Decoding(max_new_tokens=150, min_new_tokens=150)
PROMPT = "the old bridge over the river"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


def bind(key: Key, host: FakeHost, tmp_path):
    return DEW().with_settings(SETTINGS).bind(key, host.info, Workspace(cache=tmp_path))


def write(host: FakeHost, bound, seeds: list[int]) -> list[str]:
    made = host.generate([PROMPT] * len(seeds), scheme=bound, seeds=seeds, decoding=LONG)
    return [each.text for each in made]


def test_the_member_and_the_payload_of_a_text_are_read(host, bag_encoder, tmp_path) -> None:
    key = Key(bytes(range(32)), members=64, payload_bits=4)
    bound = bind(key, host, tmp_path)
    texts = write(host, bound.for_member(member=35, payload=9), [1, 2, 3, 4])
    found = score_texts(bound, texts)
    assert all(each.n_hypotheses == 1024 for each in found)
    named = [(each.member, each.payload) for each in found if each.is_marked and each.payload is not None]
    assert len(named) >= 2
    assert set(named) == {(35, 9)}
    other = score_texts(bind(Key(bytes(32), members=64, payload_bits=4), host, tmp_path), texts)
    assert sum(each.is_marked for each in other) <= 1
    unmarked = next(each for each in other if not each.is_marked)
    assert (unmarked.member, unmarked.payload, unmarked.forgery) == (None, None, None)


def test_the_seed_chooses_the_member_and_the_batch_does_not(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32)), members=8), host, tmp_path)
    decoding = Decoding(max_new_tokens=100, min_new_tokens=100)

    def texts(seeds: list[int]) -> list[str]:
        made = host.generate([PROMPT] * len(seeds), scheme=bound, seeds=seeds, decoding=decoding)
        return [each.text for each in made]

    together = texts([5, 6, 7])
    assert together[1:2] == texts([6])
    for seed, detection in zip((5, 6, 7), score_texts(bound, together), strict=True):
        assert detection.member == random_member(seed, 8)


def test_rows_of_an_engine_have_members_and_payloads_of_their_own(host, bag_encoder, tmp_path) -> None:
    """Three requests in one batch: a payload, a member, and what the seed chooses."""
    bound = bind(Key(bytes(range(32)), members=8, payload_bits=4), host, tmp_path)
    marker = bound.rows(torch.device("cpu"))
    asked = [{"payload": 9}, {"member": 3}, {}]
    (prompt,) = host.info.tokenizer.encode([PROMPT])
    written: list[list[int]] = [[] for _ in asked]
    rows = [
        marker.open(prompt.ids, ids, seed=i, decoding=Decoding(), **each)
        for i, (ids, each) in enumerate(zip(written, asked, strict=True))
    ]
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(120, host.info.vocab_size)))
    logits[:, sorted(host.info.tokenizer.special_ids)] = -30.0
    for step in logits.float():
        marked = marker.mark(rows, step.expand(len(rows), -1).contiguous())
        for ids, token in zip(written, marked.argmax(dim=-1).tolist(), strict=True):
            ids.append(token)
    found = score_texts(bound, host.info.tokenizer.decode(written))
    expected = [(random_member(0, 8), 9), (3, 0), (random_member(2, 8), 0)]
    assert [(each.member, each.payload) for each in found] == expected


def test_the_member_that_marks_a_seed_s_text(host, bag_encoder, tmp_path) -> None:
    """The one asked for, or else the one that the seed draws; a plain key has no members to name."""
    ring = bind(Key(bytes(range(32)), members=8), host, tmp_path)
    assert [ring.member_of(seed) for seed in range(20)] == [random_member(seed, 8) for seed in range(20)]
    assert ring.for_member(member=5).member_of(3) == 5
    plain = bind(Key(bytes(32)), host, tmp_path)
    assert plain.member_of(3) is None
    assert plain.for_member(member=0).member_of(3) is None


def test_old_epochs_are_still_detected(host, bag_encoder, tmp_path) -> None:
    old = Key(bytes(range(32)))
    texts = write(host, bind(old, host, tmp_path), [1, 2, 3])
    found = score_texts(bind(old.rotated("2027"), host, tmp_path), texts)
    assert all(each.is_marked for each in found)
    assert {each.epoch for each in found} == {"first"}


def test_nothing_that_a_request_asks_for_hides_the_mark(host, bag_encoder, tmp_path) -> None:
    """A payload that the key's detector does not look for would switch the mark off."""
    key = Key(bytes(range(32)), members=8, payload_bits=2)
    bound = bind(key, host, tmp_path)
    for member, payload in ((None, 3), (7, None)):
        (text,) = write(host, bound.for_member(member=member, payload=payload), [1])
        assert score_text(bound, text).is_marked
    plain = Key(bytes(range(32)))
    for each, marking in ((plain, bind(plain, host, tmp_path)), (key, bound)):
        for asked in ({"member": each.members}, {"payload": 1 << each.payload_bits}, {"payload": 1 << 15}):
            for door in (each.check_use, marking.for_member):
                with pytest.raises(KeyFileError, match="the key (has members|carries payloads)"):
                    door(**asked)


def test_a_plain_key_attributes_nothing(host, bag_encoder, tmp_path) -> None:
    """Two of its texts suffice to forge it, so nothing is said about who marked a text."""
    key = Key(bytes(range(32)))
    bound = bind(key, host, tmp_path)
    (text,) = write(host, bound, [1])
    rotated = bind(key.rotated("2027", members=4), host, tmp_path)
    keys = [key, Key(bytes(32))]
    (many,) = score_under(bound.scheme, keys, [text], no_host(), Workspace(cache=tmp_path))
    for found in (score_text(bound, text), score_text(rotated, text), many[0]):
        assert found.is_marked
        assert found.forgery is None
        assert "attributable" not in str(found)
    assert not bound.attributes
    assert rotated.attributes


def test_a_plain_key_beside_a_ring_does_not_hide_its_members(host, bag_encoder, tmp_path) -> None:
    plain, ring = Key(bytes(32)), Key(bytes(range(32)), members=4)
    bound = bind(ring, host, tmp_path)
    texts = write(host, bound.for_member(member=3), [1, 2])
    for keys in ([plain, ring], [ring, plain]):
        rows = score_under(bound.scheme, keys, texts, no_host(), Workspace(cache=tmp_path))
        found = [row[keys.index(ring)] for row in rows]
        assert [each.member for each in found] == [3, 3]
        assert [each.p_value for each in found] == [each.p_value for each in score_texts(bound, texts)]


def test_exported_detectors_read_the_same(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32)), members=32, payload_bits=2).rotated("b"), host, tmp_path)
    texts = write(host, bound.for_member(member=20, payload=1), [1, 2])
    own = Detector(bound)
    own.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector")
    for a, b in zip(loaded.detect_batch(texts), own.detect_batch(texts), strict=True):
        assert {**a.to_dict(), "coverage": None} == {**b.to_dict(), "coverage": None}
        assert a.coverage.extent is b.coverage.extent


def test_passages_pay_for_all_members(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32)), members=64), host, tmp_path)
    (text,) = write(host, bound.for_member(member=40), [1])
    (found,) = detect_texts([text], bound)
    assert found.verdict is Verdict.MARKED
    assert found.detection.member == 40
    assert found.passages
    assert all(passage.p_value >= min(64 * passage.p_alone, 1.0) for passage in found.passages)


def test_the_paper_s_scheme_takes_plain_keys_only(host, bag_encoder, tmp_path) -> None:
    ring = Key(bytes(32), members=4)
    with pytest.raises(ConfigError, match="takes a plain key"):
        DewPaper().check_key(ring)
    with pytest.raises(ConfigError, match="dew-paper"):
        for_member(
            DewPaper().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path)), member=None, payload=1
        )


# The test for forgery


def test_head_and_tail_have_half_the_energy_and_the_head_the_larger_coordinates() -> None:
    units, contexts = np.exp(-np.arange(30) / 6), np.exp(-np.arange(40) / 9)
    head = split(units, contexts)
    energy = np.outer(units, contexts)
    assert energy[head].sum() == pytest.approx(0.5 * energy.sum(), rel=0.02)
    assert energy[head].min() >= energy[~head].max()
    deep = split(units, contexts, tail=0.4)
    assert energy[deep].sum() == pytest.approx(0.6 * energy.sum(), rel=0.02)
    assert deep[head].all()


def test_large_rings_have_a_shallower_tail(host, bag_encoder, tmp_path) -> None:
    """Of the energy in the package's own texts: half up to `LARGE` members, 0.4 in larger rings."""
    reader = bind(Key(bytes(32)), host, tmp_path).reader
    texts = reader.tokenize(register_texts())
    reading = reader.read(texts, reader.tokenize([""] * len(texts)))
    units = np.concatenate([differences(pairs, reading.token_rows) for pairs in reading.texts])
    contexts = np.concatenate([reading.context_rows[pairs.windows] for pairs in reading.texts])
    energy = np.outer(np.mean(units**2.0, axis=0), np.mean(contexts**2.0, axis=0))
    for members, tail in ((1, 0.5), (LARGE, 0.5), (LARGE + 1, 0.4)):
        left_out = energy[~head_of(reader, members=members)].sum() / energy.sum()
        # the head ends before the coordinate that would exceed its share
        assert tail <= left_out < tail + energy.max() / energy.sum()


@pytest.mark.parametrize("strength", [0.0, 1.5, 20.0])
def test_the_tail_pays_for_all_uses_that_the_head_leaves_open(strength: float) -> None:
    """However a forger who knows all heads mixes them, he passes as some member with the level at most."""
    rng = np.random.default_rng(4)
    head = split(np.ones(12), np.exp(-np.arange(12) / 3)).astype(bool)
    passed, texts, members = 0, 400, 20
    for _ in range(texts):
        W = rng.standard_normal((members, 12, 12)).astype(np.float32)
        M = (rng.standard_normal((12, 12)) + strength * W[:3].sum(axis=0) * head).astype(np.float32)
        z = np.einsum("kab,ab->k", W, M * head) / np.linalg.norm(M * head)
        shares = [share_among(each, z) for each in z]
        tests = (forgery_test(M, w, head, level=0.05, share=each) for w, each in zip(W, shares, strict=True))
        passed += any(each.attributable for each in tests)
    assert passed <= texts * 0.05 + 3.5 * np.sqrt(texts * 0.05)
    assert passed > 0


def test_shares_of_the_level_sum_to_one_and_follow_the_head() -> None:
    z = np.random.default_rng(5).standard_normal(4096)
    z[7] = 6.0
    shares = [share_among(each, z) for each in z]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[7] > 0.99
    assert share_among(-1.0, np.full(4, -1.0)) == pytest.approx(0.25)


def test_the_members_of_a_ring_share_one_level_and_a_plain_key_has_all_of_it() -> None:
    rng = np.random.default_rng(7)
    head = split(np.ones(12), np.exp(-np.arange(12) / 3)).astype(bool)
    W = rng.standard_normal((16, 12, 12)).astype(np.float32)
    M = (rng.standard_normal((12, 12)) + W[3] * head).astype(np.float32)
    ring, plain = (KeyMatrices([EpochMatrices(None, len(own), 0, own)]) for own in (W, W[:1]))
    shares = [level_share(M, each, head, ring) for each in W]
    assert sum(shares) == pytest.approx(1.0, rel=1e-4)
    assert np.argmax(shares) == 3
    assert shares[3] < 1.0
    assert level_share(M, W[0], head, plain) == 1.0


def test_without_a_share_of_the_level_nothing_is_attributable() -> None:
    """The share underflows to zero where the head fits another use beyond doubt."""
    rng = np.random.default_rng(8)
    W = rng.standard_normal((16, 16))
    head = split(np.exp(-np.arange(16) / 2), np.ones(16))
    share = share_among(-20.0, np.array([60.0, -20.0]))
    assert share == 0.0
    found = forgery_test(9.0 * W, W, head, level=0.01, share=share)
    assert (found.attributable, found.p_tail) == (False, 1.0)


def test_a_weak_text_whose_head_names_the_member_is_attributable() -> None:
    """Chat: z 6 in all. In a ring of 4,096 the tail by itself would have to reach 4.7."""
    rng = np.random.default_rng(6)
    scale = np.exp(-np.arange(24) / 8)
    amplitude = np.outer(scale, scale)
    head = split(scale**2, scale**2)
    genuine, texts, members = 0, 100, 256
    for _ in range(texts):
        W = rng.standard_normal((members, 24, 24)).astype(np.float32)
        mark = 6.5 / np.linalg.norm(amplitude) * amplitude**2 * W[3]
        M = (rng.standard_normal((24, 24)) * amplitude + mark).astype(np.float32)
        uses = KeyMatrices([EpochMatrices(None, members, 0, W)])
        share = level_share(M, W[3], head, uses)
        genuine += forgery_test(M, W[3], head, level=0.01, share=share).attributable
    assert genuine >= 0.8 * texts


def test_head_and_tail_are_independent_exact_tests_over_keys() -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((16, 16)).astype(np.float32) * np.exp(-np.arange(16) / 5)
    head = split(np.exp(-np.arange(16) / 2), np.ones(16))
    found = [forgery_test(M, W, head, level=0.01) for W in rng.standard_normal((4000, 16, 16))]
    z = np.array([(each.z_head, each.z_tail) for each in found])
    assert stats.kstest(z[:, 0], "norm").pvalue > 1e-3
    assert stats.kstest(z[:, 1], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z.T)[0, 1]) < 3.5 / np.sqrt(len(z))


def test_genuine_texts_are_attributable_and_head_only_forgeries_are_not() -> None:
    """A genuine mark adds a multiple of W ∘ energy everywhere, a forgery in the head only."""
    rng = np.random.default_rng(2)
    scale = np.exp(-np.arange(24) / 8)
    amplitude = np.outer(scale, scale)
    head = split(scale**2, scale**2)
    genuine = forged = 0
    for _ in range(400):
        W = rng.standard_normal((24, 24))
        noise = rng.standard_normal((24, 24)) * amplitude
        strength = 9.0 / np.linalg.norm(amplitude)
        mark = strength * amplitude**2 * W
        genuine += forgery_test(noise + mark, W, head, level=0.01).attributable
        forged += forgery_test(noise + 2 * mark * head, W, head, level=0.01).attributable
    assert genuine >= 0.97 * 400
    assert forged <= 0.02 * 400


def test_a_public_detector_finds_the_mark_and_attributes_nothing(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32)), members=4), host, tmp_path)
    texts = write(host, bound.for_member(member=1), [1, 2])
    genuine = score_texts(bound, texts)
    assert all(each.forgery is not None and each.forgery.z_tail > 2 for each in genuine)
    Detector(bound.public()).save(tmp_path / "public")
    stored = np.load(tmp_path / "public" / "state" / "ring_0.npy")
    head = np.load(tmp_path / "public" / "state" / "head.npy")
    assert not stored[:, ~head].any()
    assert 0 < head.sum() < head.size
    public = Detector.load(tmp_path / "public")
    for text, each in zip(texts, genuine, strict=True):
        found = public.detect(text)
        assert found.is_marked
        assert found.member == 1
        assert found.forgery is None
        assert found.coverage is None
        assert found.z == pytest.approx(each.forgery.z_head, abs=1e-3)
    with pytest.raises(ConfigError, match="half of the key"):
        public.follow()


def test_a_false_alarm_has_no_name() -> None:
    """Of the texts that are called marked by chance, at most one in a hundred says who marked it.

    Keys are drawn anew, given that one of their uses alone makes a text significant: its z is drawn from the
    tail beyond the threshold. Before, more than a quarter of these alarms had a name.
    """
    rng, level, uses_of_key = np.random.default_rng(4), 0.01, 1024
    F = rng.normal(size=(32, 32))
    unit = F / np.linalg.norm(F)
    tail = 1.0 - (1.0 - level) ** (1 / 16)  # Šidák over 16 matrices, Bonferroni over the uses of each
    alarms = clear = named = 0
    for _ in range(600):
        W = rng.normal(size=(16, 32, 32))
        lifted = -ndtri(tail / (uses_of_key / 16) * rng.uniform())
        W[0] += (lifted - np.sum(W[0] * unit)) * unit
        uses = KeyMatrices([EpochMatrices(None, 256, 2, W.astype(np.float32), rng.bytes(32))])
        found = uses.find(F)
        statistic = OriginStatistic(found.z, found.p_value, 100.0, found)
        verdict = Verdict.MARKED if found.p_value <= level else Verdict.NOT_MARKED
        made = Detection(verdict, found.p_value, found.z, 0.0, 100.0, 100, "key", level, "dew", "a1b2")
        shown = with_origin(made, statistic, uses)
        alarms += shown.is_marked
        clear += max(found.member_confidence, found.payload_confidence) >= CONFIDENCE
        named += shown.member is not None or shown.payload is not None
    assert alarms > 560
    assert clear > 0.25 * alarms
    assert named <= stats.binom.ppf(0.999, alarms, ORIGIN_SHARE)
