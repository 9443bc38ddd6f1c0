"""From a key with members, payloads and epochs to marked text and back, on a fake host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri
from tests.dew.keyed_texts import drawn_forms, matrix_of
from tests.many_keys import score_under

from dewmark.capabilities import for_member
from dewmark.core.keys import Key
from dewmark.core.projections import draw_float32_matrix
from dewmark.decoding import Decoding
from dewmark.detect import detect_texts, score_text, score_texts
from dewmark.detector import Detector
from dewmark.dew.form import FormKey
from dewmark.dew.matrix import UseKey
from dewmark.dew.origin import OriginStatistic, forgery_test, with_origin
from dewmark.dew.paper.scheme import DewPaper
from dewmark.dew.ring import CONFIDENCE, EpochMatrices, KeyMatrices, posterior, random_member
from dewmark.dew.scheme import DEW
from dewmark.errors import ConfigError, KeyFileError
from dewmark.types import Detection, Verdict
from dewmark.verdict import LEAST_P, ORIGIN_SHARE
from dewmark.workspace import Workspace, no_host
from dewmark_lab.testing.fake_host import FakeHost

SETTINGS = {"alpha": 0.7}
LONG = Decoding(max_new_tokens=150, min_new_tokens=150)
PROMPT = "the old bridge over the river"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


def bind(key: Key, host: FakeHost, tmp_path, **settings: float):
    return DEW().with_settings(SETTINGS | settings).bind(key, host.info, Workspace(cache=tmp_path))


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


def test_plain_keys_attribute_as_rings_do(host, bag_encoder, tmp_path) -> None:
    """By every way to test a text; a public detector says nothing."""
    key = Key(bytes(range(32)))
    bound = bind(key, host, tmp_path)
    texts = write(host, bound, [1, 2])
    rotated = bind(key.rotated("2027", members=4), host, tmp_path)
    keys = [key, Key(bytes(32))]
    (many, _) = score_under(bound.scheme, keys, texts, no_host(), Workspace(cache=tmp_path))
    for found in (score_text(bound, texts[0]), score_text(rotated, texts[0]), many[0]):
        assert found.is_marked
        assert found.forgery is not None
        assert found.forgery.attributable
        assert found.forgery.z_form == found.z_form > 5.0 < found.z_meaning
    assert many[1].forgery is None
    assert many[1].z_form is not None
    assert score_text(bound.public(), texts[0]).forgery is None
    assert (bound.attributes, rotated.attributes, bound.public().attributes) == (True, True, False)


def test_who_knows_all_of_W_forges_the_mark_but_not_its_form(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32))), host, tmp_path)
    found = score_texts(bound, write(host, bound.under(UseKey(bound.own.W)), [*range(8)]))
    assert all(each.is_marked and each.z_meaning > 5.0 for each in found)
    # at the level 0.01 two of 8 have the probability 0.0027; and |z_F| < 4 has 0.9999
    assert sum(each.forgery.attributable for each in found) <= 1
    assert max(abs(each.z_form) for each in found) < 4.0


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
    bound = bind(Key(bytes(range(32)), members=64), host, tmp_path, alpha=0.15, beta=0.1)
    (text,) = write(host, bound.for_member(member=40), [1])
    (found,) = detect_texts([text], bound)
    assert found.verdict is Verdict.MARKED
    assert found.detection.member == 40
    assert found.passages
    for passage in found.passages:
        assert passage.p_value >= min(2 * 64 * passage.p_alone, 1.0)  # two views under each member
        assert passage.p_alone > LEAST_P


def test_the_paper_s_scheme_takes_plain_keys_only(host, bag_encoder, tmp_path) -> None:
    ring = Key(bytes(32), members=4)
    with pytest.raises(ConfigError, match="takes a plain key"):
        DewPaper().check_key(ring)
    with pytest.raises(ConfigError, match="dew-paper"):
        for_member(
            DewPaper().bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path)), member=None, payload=1
        )


# The test for forgery


@pytest.mark.parametrize("strength", [0.0, 1.5, 20.0])
def test_the_form_pays_for_all_uses_that_the_meaning_leaves_open(strength: float) -> None:
    """However a forger who knows all W mixes them, he passes as some member with the level at most."""
    rng = np.random.default_rng(4)
    passed, texts, members, level = 0, 800, 16, 0.05
    for _ in range(texts):
        W = rng.standard_normal((members, 12, 12)).astype(np.float32)
        epoch = EpochMatrices(None, members, 0, W, drawn_forms(rng, members))
        text = matrix_of(rng.standard_normal((12, 12)) + strength * W[:3].sum(axis=0))
        (shares,) = posterior([epoch.scores(text.F)])
        tests = [
            forgery_test(float(z), level=level, share=float(share))
            for z, share in zip(epoch.form_scores(text.form).flat, shares.flat, strict=True)
        ]
        passed += any(each.attributable for each in tests)
        found = KeyMatrices([epoch]).find(text)
        assert found.share == pytest.approx(float(shares.flat[found.use.member]))
    assert 0 < passed <= stats.binom.ppf(0.9998, texts, level)


def test_shares_of_the_level_sum_to_one_and_follow_the_meaning() -> None:
    z = np.random.default_rng(5).standard_normal((2, 16, 128))
    z[1, 7, 3] = 6.0
    shares = posterior([*z])
    assert sum(float(each.sum()) for each in shares) == pytest.approx(1.0)
    assert shares[1][7, 3] > 0.99
    assert posterior([np.full((4, 1), -1.0)])[0].tolist() == [[0.25]] * 4


def test_without_a_share_of_the_level_nothing_is_attributable() -> None:
    """The share underflows to zero where the meaning fits another use beyond doubt."""
    (shares,) = posterior([np.array([[60.0, -20.0]])])
    assert shares[0, 1] == 0.0
    found = forgery_test(20.0, level=0.01, share=float(shares[0, 1]))
    assert (found.attributable, found.p_form) == (False, 1.0)


def test_form_is_an_exact_test_over_keys_that_does_not_depend_on_the_meaning() -> None:
    """A fixed text, 4,000 keys: its p-value by form is uniform, at the level too, whatever W was."""
    text, keys = matrix_of(np.random.default_rng(0).standard_normal((12, 12))), 4000
    drawn = [Key(i.to_bytes(32, "big")) for i in range(1, keys + 1)]
    z_form = np.array([text.form.z(FormKey.of(key)) for key in drawn])
    W = np.stack([draw_float32_matrix(key, d_T=12, d_C=12) for key in drawn])
    z = np.einsum("kab,ab->k", W, text.F) / np.linalg.norm(text.F)
    assert stats.kstest(z_form, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z, z_form)[0, 1]) < 3.5 / np.sqrt(keys)
    tests = [forgery_test(each, level=0.01) for each in z_form.tolist()]
    passed = sum(each.attributable for each in tests)
    assert stats.binom.ppf(2e-4, keys, 0.01) <= passed <= stats.binom.ppf(1 - 2e-4, keys, 0.01)


def test_a_public_detector_finds_the_mark_and_attributes_nothing(host, bag_encoder, tmp_path) -> None:
    bound = bind(Key(bytes(range(32)), members=4), host, tmp_path)
    texts = write(host, bound.for_member(member=1), [1, 2])
    genuine = score_texts(bound, texts)
    assert all(each.forgery is not None and each.forgery.attributable for each in genuine)
    Detector(bound.public()).save(tmp_path / "public")
    assert not list((tmp_path / "public").rglob("*form*"))
    public = Detector.load(tmp_path / "public")
    for text, each in zip(texts, genuine, strict=True):
        found = public.detect(text)
        assert found.is_marked
        assert (found.member, found.forgery, found.z_form) == (1, None, None)
        assert found.coverage is not None
        assert found.z == found.z_meaning == pytest.approx(each.z_meaning, abs=1e-6)
    stream = public.follow()
    stream.update(texts[0])
    assert stream.finish() <= 0.01


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
        uses = KeyMatrices([EpochMatrices(None, 256, 2, W.astype(np.float32), secret=rng.bytes(32))])
        found = uses.find(matrix_of(F))
        statistic = OriginStatistic(found.z, found.p_value, 100.0, found.z_meaning, found.z_form, found)
        verdict = Verdict.MARKED if found.p_value <= level else Verdict.NOT_MARKED
        made = Detection(verdict, found.p_value, found.z, 0.0, 100.0, 100, "key", level, "dew", "a1b2")
        shown = with_origin(made, statistic, uses)
        alarms += shown.is_marked
        clear += max(found.member_confidence, found.payload_confidence) >= CONFIDENCE
        named += shown.member is not None or shown.payload is not None
    assert alarms > 560
    assert clear > 0.25 * alarms
    assert named <= stats.binom.ppf(0.999, alarms, ORIGIN_SHARE)
