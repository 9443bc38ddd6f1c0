"""Many keys on the same texts: the same numbers as one key at a time, and each text read once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from tests.fakes import COMPOSED
from tests.many_keys import score_under

import dewmark
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import detect_texts, score_text, score_texts
from dewmark.dew.paper.scheme import DewPaper
from dewmark.dew.scheme import DEW
from dewmark.hosts.expectations import open_reader
from dewmark.opening import Keys, load_scheme
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

KEYS = [Key(bytes([i] * 32)) for i in range(6)]
TEXT = " the river and the old bridge over the water was light and the night was old and the sea was new"
LONG = " ".join(f"{a} {b}" for a in TEXT.split()[:16] for b in TEXT.split()[3:8])


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(300, padded_vocab=20)


@pytest.mark.parametrize("scheme", [DEW(), DewPaper()], ids=str)
def test_each_key_gets_what_it_gets_alone(host, bag_encoder, tmp_path, scheme) -> None:
    workspace = Workspace(cache=tmp_path)
    rows = score_under(scheme, KEYS, [TEXT, LONG], host.info, workspace, prompts=["of the", None])
    for number, key in enumerate(KEYS):
        alone = score_texts(scheme.bind(key, host.info, workspace), [TEXT, LONG], prompts=["of the", None])
        for i, expected in enumerate(alone):
            found = rows[i][number]
            assert found.z == pytest.approx(expected.z, abs=1e-4)
            assert found.p_value == pytest.approx(expected.p_value, rel=1e-3)
            assert found.effective_length == pytest.approx(expected.effective_length, rel=1e-5)
            assert found.key_fingerprint == key.fingerprint
            if found.tokens:
                for token, same in zip(found.tokens, expected.tokens, strict=True):
                    assert token._replace(score=0.0) == same._replace(score=0.0)
                    assert token.score == pytest.approx(same.score, abs=1e-4)
    for row in rows:
        assert max(row, key=lambda detection: detection.z).tokens


def test_texts_keep_their_prompts_in_every_part(host, bag_encoder, tmp_path, monkeypatch) -> None:
    """A model reads each text after its own prompt."""
    reader = open_reader(FakeHost(300, seed=5))
    texts, prompts = [TEXT, LONG, TEXT, TEXT], ["of the", "a new day", None, "by the old tree"]
    bound = DEW().bind(KEYS[0], host.info, Workspace(cache=tmp_path)).reading_with(reader)
    alone = [score_text(bound, text, prompt=prompt).z for text, prompt in zip(texts, prompts, strict=True)]
    assert len({round(z, 2) for z in alone}) == 4  # prompts matter
    workspace = Workspace(cache=tmp_path, expectations=reader)
    rows = score_under(DEW(), KEYS[:2], texts, host.info, workspace, prompts=prompts)
    assert [row[0].z for row in rows] == pytest.approx(alone, abs=1e-4)
    monkeypatch.setattr("dewmark.detect._TEXTS_AT_ONCE", 2)
    found = detect_texts(texts, Keys(KEYS[:2], host=host.info, reader=reader), prompts=prompts)
    assert [each.detections[0].z for each in found] == pytest.approx(alone, abs=1e-4)


def test_windows_are_encoded_once_for_all_keys(host, bag_encoder, tmp_path) -> None:
    scheme = DewPaper()
    bag_encoder.calls.clear()
    score_under(scheme, KEYS, [TEXT], host.info, Workspace(cache=tmp_path))
    windows = len(TEXT.split()) - 3
    assert sum(bag_encoder.calls) <= windows


def test_of_many_keys_the_one_that_marked_is_named(host, bag_encoder) -> None:
    settings = {**COMPOSED, "lambda": 4.0}
    scheme = load_scheme(KEYS[3], host=host.info, scheme="dew-paper", settings=settings)
    prompts = ["the old river", "a new day"]
    marked = host.generate(
        prompts, scheme=scheme, seeds=[1, 2], decoding=Decoding(max_new_tokens=150, no_repeat_ngram=4)
    )
    keys = Keys(KEYS, scheme="dew-paper", host=host.info, settings=settings)
    found = detect_texts([g.text for g in marked], keys, prompts=prompts, explain=False)
    for each in found:
        assert each.index == 3
        assert each.judged.key_fingerprint == KEYS[3].fingerprint
        assert each.judged.looks.keys == len(each.detections) == len(KEYS)
        p = each.detections[3].p_value
        assert each.p_value == pytest.approx(1 - (1 - p) ** 6, rel=1e-6)
        assert each.verdict is Verdict.MARKED
        assert each.judged.p_value == each.p_value == each.to_dict()["p_value"]
        assert each.detection is each.detections[3]
        assert str(each).endswith(", over 6 keys")


def test_the_correction_makes_the_smallest_p_uniform(host, bag_encoder) -> None:
    """Unmarked text and 600 sets of three fresh keys: the corrected p-values are uniform."""
    keys = [Key(bytes([i % 256, i // 256] * 16)) for i in range(1800)]
    workspace = Workspace(cache=dewmark.config.cache_dir())
    rows = score_under(DEW(flatten=1e9), keys, [LONG], host.info, workspace)
    p = np.array([detection.p_value for detection in rows[0]]).reshape(600, 3)
    corrected = 1 - (1 - p.min(axis=1)) ** 3
    assert stats.kstest(corrected, "uniform").pvalue > 1e-3


def test_no_key_is_an_error(host) -> None:
    with pytest.raises(dewmark.DewmarkError, match="no key"):
        Keys([], host=host.info)
    with pytest.raises(dewmark.DewmarkError, match="no key"):
        detect_texts([TEXT], [])


def test_a_key_is_bound_once_for_all_texts(monkeypatch) -> None:
    """Each long text is searched under every key, whose numbers take longer to draw than to look for."""
    bound, bind = [], DEW.bind
    monkeypatch.setattr(DEW, "bind", lambda self, key, *rest: bound.append(key) or bind(self, key, *rest))
    opened = Keys(KEYS)
    schemes = [[opened.bound(number) for number in range(len(KEYS))] for _ in range(3)]
    assert bound == KEYS
    assert [each.fingerprint for each in schemes[-1]] == [key.fingerprint for key in KEYS]
