"""Marking in transformers' generate, which must sample if the scheme chooses the token."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from tests.hosts.conftest import BoundForce, Force
from transformers import GenerationConfig

import dewmark
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.scheme import Needs
from dewmark_lab.testing.fake_host import FakeHost, tiny_model

IDS = torch.tensor([[4, 60], [60, 4]])
MASK = torch.ones_like(IDS)


@dataclass(frozen=True)
class Chooser(Force):
    """The forcing scheme, declared to need the final distribution."""

    needs = Needs(final_distribution=True)


@pytest.fixture
def chooser(host) -> BoundForce:
    return Chooser(token=9).bind(None, host.info, None)


def generate(host, **options):
    return host.model.generate(IDS, attention_mask=MASK, max_new_tokens=3, **options)


def test_beam_search_is_rejected_when_it_exchanges_rows(host, chooser):
    processor = WatermarkingConfig(chooser).construct_processor(host.info.vocab_size)
    scores = torch.zeros(2, host.info.vocab_size)
    processor(IDS, scores)
    processor(torch.cat([IDS, torch.tensor([[9], [9]])], dim=1), scores)
    exchanged = torch.cat([IDS.flip(0), torch.tensor([[9, 9], [9, 9]])], dim=1)
    with pytest.raises(ConfigError, match="use num_beams=1 and do_sample=True") as error:
        processor(exchanged, scores)
    assert "\n" not in str(error.value)


def test_greedy_decoding_writes_what_it_writes_without_a_mark_and_says_so(host, chooser):
    plain = generate(host, do_sample=False)
    with pytest.warns(
        UserWarning, match="this text carries no mark: do_sample=False.*use do_sample=True"
    ) as warned:
        marked = generate(host, watermarking_config=WatermarkingConfig(chooser), do_sample=False)
    assert warned[0].filename == __file__  # the caller's line
    assert torch.equal(marked, plain)
    refusing = WatermarkingConfig(chooser, greedy="refuse")
    for options, said in (
        ({"do_sample": False}, "do_sample=False"),
        ({"do_sample": True, "top_k": 1}, "top_k 1"),
    ):
        with pytest.raises(ConfigError, match=f"{said} always takes the likeliest token"):
            generate(host, watermarking_config=refusing, **options)
    with pytest.raises(ConfigError, match="'unmarked' or 'refuse', got 'no'"):
        WatermarkingConfig(chooser, greedy="no").validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 3}, "beam search does not sample.*use num_beams=1"),
        ({"num_beams": 3, "do_sample": True}, "beam sample does not sample.*use num_beams=1"),
        ({"prompt_lookup_num_tokens": 2}, "assisted generation.*leave out prompt_lookup_num_tokens"),
        ({"prompt_lookup_num_tokens": 2, "do_sample": True}, "leave out prompt_lookup_num_tokens"),
    ],
)
def test_what_does_not_sample_token_by_token_is_rejected_before_the_first_token(
    host, chooser, options, message
):
    with pytest.raises(ConfigError, match=message) as error:
        generate(host, watermarking_config=WatermarkingConfig(chooser), **options)
    assert "\n" not in str(error.value)
    assert chooser.opened == []


def test_assistant_models_are_rejected_where_they_take_tokens_back(host, chooser):
    model, _ = tiny_model(seed=1)
    with pytest.raises(ConfigError, match="leave out prompt_lookup_num_tokens and assistant models"):
        host.model.generate(
            IDS[:1],
            attention_mask=MASK[:1],
            max_new_tokens=8,
            do_sample=True,
            assistant_model=model,
            watermarking_config=WatermarkingConfig(chooser),
        )


def test_a_bias_works_with_any_decoding(host, force):
    config = WatermarkingConfig(force(host.info, 9))
    for options in ({"do_sample": False}, {"num_beams": 2}):
        assert generate(host, watermarking_config=config, **options)[:, 2:].tolist() == [[9] * 3] * 2


def test_a_choosing_processor_rejects_beam_search(host, chooser):
    with pytest.raises(
        ConfigError, match="made for 2 prompts but is called with 6 rows.*num_beams=1"
    ) as error:
        generate(host, logits_processor=[chooser.processor(IDS)], num_beams=3)
    assert "\n" not in str(error.value)


def test_a_choosing_processor_rejects_greedy_decoding(chooser):
    with pytest.raises(ConfigError, match="temperature 0 always takes the likeliest"):
        chooser.processor(IDS, decoding=Decoding(temperature=0.0))


def test_it_marks_in_transformers_generate(host, force):
    scheme = force(host.info, 9)
    config = WatermarkingConfig(scheme)
    inputs = {"input_ids": torch.tensor([[0, 4], [4, 60]]), "attention_mask": torch.tensor([[0, 1], [1, 1]])}
    options = {"do_sample": True, "top_k": 20, "max_new_tokens": 4}
    marked = host.model.generate(**inputs, **options, watermarking_config=config)
    assert marked[:, 2:].tolist() == [[9] * 4] * 2
    assert scheme.opened[0][0].tolist() == inputs["input_ids"].tolist()
    host.model.generate(**inputs, **options, watermarking_config=config)
    assert len(scheme.opened) == 2  # each call of generate opens a session of its own
    unmarked = host.model.generate(**inputs, **options)
    assert unmarked[:, 2:].tolist() != marked[:, 2:].tolist()


def test_the_seed_of_torch_repeats_a_text(host):
    """As it does in transformers without a mark; another seed writes another text, in every row."""
    scheme = dewmark.load_scheme(dewmark.Key(bytes(32)), host=host.info)
    config = WatermarkingConfig(scheme)

    def written(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        options = {"max_new_tokens": 12, "do_sample": True, "watermarking_config": config}
        made = host.model.generate(IDS.repeat(2, 1), attention_mask=MASK.repeat(2, 1), **options)
        return made[:, 2:].tolist()

    first = written(1)
    assert written(1) == first != written(2)
    assert first[0] != first[2]  # the same prompt


def test_it_is_not_copied_and_reveals_no_key(host, force):
    config = WatermarkingConfig(force(host.info, 9))
    assert copy.deepcopy(config) is config
    assert set(config.to_dict()) == {"scheme", "config_hash"}
    assert "force" in repr(config)
    assert "force" in GenerationConfig(watermarking_config=config).to_json_string()
    assert dict(config) == config.to_dict()


def test_it_rejects_another_vocabulary_and_unbound_schemes(force):
    other = force(FakeHost(64).info)
    model, _ = tiny_model(128)
    with pytest.raises(VocabularyError, match="64 ids"):
        model.generate(torch.tensor([[4]]), max_new_tokens=1, watermarking_config=WatermarkingConfig(other))
    with pytest.raises(ConfigError, match="load_scheme"):
        WatermarkingConfig("dew").validate()
