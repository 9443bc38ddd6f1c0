"""The facade, on the tiny model in memory and in a folder."""

from __future__ import annotations

import functools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.fakes import COMPOSED

import dewmark
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, ModelError, UnknownNameError, VocabularyError
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Needs, Scheme, State
from dewmark_lab.testing.fake_host import tiny_model

PROMPT = " the old bridge over the river"
SECRET = bytes(range(7, 39))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny_model(400)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def watermark(folder: Path, bag_encoder) -> dewmark.Watermark:
    settings = {**COMPOSED, "lambda": 3.0}
    return dewmark.Watermark(dewmark.Key(SECRET), host=str(folder), scheme="dew-paper", settings=settings)


def long_text(watermark: dewmark.Watermark) -> str:
    return watermark.generate(PROMPT, max_new_tokens=100, min_new_tokens=100, seed=1).text


def test_generate_and_detect(watermark) -> None:
    text = long_text(watermark)
    assert watermark.detect(text).is_marked
    wrong = dewmark.Watermark(dewmark.Key(bytes(32)), host=watermark.host)
    assert not wrong.detect(text).is_marked


def test_detection_does_not_load_the_host(folder, bag_encoder, monkeypatch) -> None:
    key = dewmark.Key(SECRET)
    dewmark.Watermark(key, host=str(folder))  # builds the token table
    monkeypatch.setattr(
        "dewmark.hosts.transformers.model.load_host", lambda *a, **k: pytest.fail("the host was loaded")
    )
    assert dewmark.Watermark(key, host=str(folder)).detect(PROMPT * 9).tokens_scored > 0


def test_the_texts_of_a_batch_are_those_of_single_calls(watermark) -> None:
    batch = watermark.generate_batch([PROMPT, " the"], seeds=[1, 2], max_new_tokens=20)
    assert batch[0].text == watermark.generate(PROMPT, seed=1, max_new_tokens=20).text
    assert batch[1].text == watermark.generate(" the", seed=2, max_new_tokens=20).text
    assert batch[0].config_hash == batch[1].config_hash


def test_marking_in_transformers_generate(bag_encoder, monkeypatch) -> None:
    """The processor in transformers' own generate, with padding, and through watermarking_config."""
    monkeypatch.setattr("dewmark.sampling.secrets.randbits", random.Random(0).getrandbits)
    model, tokenizer = tiny_model(400)
    scheme = dewmark.load_scheme(
        dewmark.Key(SECRET), host=model, tokenizer=tokenizer, settings={"strength": 4.0}
    )
    tokenizer.padding_side = "left"
    inputs = tokenizer([PROMPT, " the"], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    settings = {
        "do_sample": True,
        "max_new_tokens": 80,
        "min_new_tokens": 80,
        "pad_token_id": tokenizer.pad_token_id,
        "top_k": 0,
    }
    ways = (
        {"logits_processor": [scheme.processor(inputs.input_ids)]},
        {"watermarking_config": WatermarkingConfig(scheme)},
    )
    for way in ways:
        torch.manual_seed(0)
        out = model.generate(**inputs, **settings, **way)
        texts = tokenizer.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        found = score_texts(scheme, texts)
        # chance: of 23,040 such texts none had a p-value above 3e-5
        assert all(detection.is_marked for detection in found), (list(way), found, texts, out.tolist())


def test_the_config_hash_names_key_host_and_parameters(watermark, folder, bag_encoder) -> None:
    load = functools.partial(dewmark.load_scheme, host=str(folder), scheme="dew-paper")
    other_key = load(dewmark.Key(bytes(32)), settings={**COMPOSED, "lambda_": 3.0})
    other_k = load(dewmark.Key(SECRET), settings={**COMPOSED, "lambda_": 3.0, "k": 4})
    same = load(dewmark.Key(SECRET), settings={**COMPOSED, "lambda_": 3})
    hashes = {s.config_hash for s in (watermark.scheme, other_key, other_k)}
    assert len(hashes) == 3
    assert same.config_hash == watermark.scheme.config_hash


def test_bad_calls(folder) -> None:
    key = dewmark.Key(SECRET)
    with pytest.raises(UnknownNameError, match="did you mean 'dew'"):
        dewmark.load_scheme(key, host=str(folder), scheme="deww")
    with pytest.raises(ConfigError, match="needs its tokenizer"):
        dewmark.load_scheme(key, host=tiny_model(300)[0])
    with pytest.raises(ModelError, match="nothing-here"):
        dewmark.load_scheme(key, host=str(folder / "nothing-here"))


@dataclass(frozen=True)
class Asking(Scheme):
    """A scheme that keeps the workspace it was bound with."""

    name: ClassVar[str] = "asking"
    summary: ClassVar[str] = "asks for a host"
    needs: ClassVar[Needs] = Needs(host_at_detection=True)

    def validate(self):
        return None

    def bind(self, key, host, workspace):
        return BoundAsking(self, host, "0123456789ab", workspace)

    def restore(self, state, host, fingerprint, workspace):
        return BoundAsking(self, host, fingerprint, workspace)


class BoundAsking(BoundScheme):
    def __init__(self, scheme, host, fingerprint, workspace):
        super().__init__(scheme, host, fingerprint)
        self.open_host = workspace.open_host

    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        raise NotImplementedError

    def state(self):
        return State(meta={}, arrays={"nothing": np.zeros(1)})


@pytest.fixture
def asking(monkeypatch):
    monkeypatch.setitem(SCHEMES.registered, "asking", Asking)


def test_a_named_host_is_loaded_once_and_on_demand(asking, folder, tmp_path, monkeypatch):
    other, tokenizer = tiny_model(400, seed=5)
    other.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    calls = []
    load = dewmark.load_host
    monkeypatch.setattr(
        "dewmark.watermark.load_host", lambda name, **kwargs: calls.append(name) or load(name, **kwargs)
    )
    watermark = dewmark.Watermark(dewmark.Key(bytes(32)), host=str(folder), scheme="asking")
    assert calls == []
    own = watermark.scheme.open_host(None)
    assert own is watermark.scheme.open_host(None) is watermark.host
    assert calls == [str(folder)]
    (logits,) = own.next_logits(["the"], [[5, 6]])
    (others,) = watermark.scheme.open_host(str(tmp_path)).next_logits(["the"], [[5, 6]])
    assert logits.shape == (2, 400)
    assert not torch.equal(logits, others)


def test_a_saved_detector_loads_its_host(asking, folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "model")
    scheme = dewmark.load_scheme(dewmark.Key(bytes(32)), host=str(folder), scheme="asking")
    dewmark.Detector(scheme).save(tmp_path / "detector")
    detector = dewmark.Detector.load(tmp_path / "detector").scheme
    (ours,) = detector.open_host(None).next_logits(["the"], [[5, 6]])
    (theirs,) = scheme.open_host(None).next_logits(["the"], [[5, 6]])
    assert torch.equal(ours, theirs)
    model, tokenizer = tiny_model(144)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(VocabularyError, match="another tokenizer"):
        dewmark.Detector.load(tmp_path / "detector").scheme.open_host(None)


def test_keyword_options_override_the_decoding_object(watermark) -> None:
    decoding = dewmark.Decoding(max_new_tokens=9, top_k=5)
    given = watermark.generate(PROMPT, seed=1, decoding=decoding)
    assert watermark.generate(PROMPT, seed=1, max_new_tokens=9, top_k=5, no_repeat_ngram=0) == given
    assert watermark.generate(PROMPT, seed=1, decoding=decoding, max_new_tokens=4).tokens == 4


def test_messages_use_the_template_and_the_host_s_own_decoding(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(400)
    tokenizer.chat_template = "{% for m in messages %} {{ m['content'] }}{% endfor %} the"
    model.generation_config.update(do_sample=True, temperature=0.6, top_k=20)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": "old bridge"}]
    own = dewmark.Decoding(max_new_tokens=12, temperature=0.6, top_k=20)
    for host, memory in ((str(tmp_path), None), (model, tokenizer)):
        wm = dewmark.Watermark(dewmark.Key(SECRET), host=host, tokenizer=memory, scheme="kgw")
        expected = wm.generate(" old bridge the", seed=4, decoding=own)
        assert wm.generate(messages=messages, seed=4, max_new_tokens=12) == expected
        assert "".join(wm.stream(messages=messages, seed=4, max_new_tokens=12)) == expected.text
        (one, two) = wm.generate_batch(messages=[messages, messages], seeds=[4, 5], max_new_tokens=12)
        assert one == expected != two
        hotter = wm.generate(messages=messages, seed=4, max_new_tokens=12, temperature=2.0)
        assert hotter.config_hash != expected.config_hash
        for wrong in ({}, {"prompt": "the", "messages": messages}):
            with pytest.raises(ConfigError, match="either a prompt to continue or messages"):
                wm.generate(**wrong)
    assert (
        dewmark.Watermark(dewmark.Key(SECRET), host=str(tmp_path), scheme="kgw").chat_format.decoding.top_k
        == 20
    )
