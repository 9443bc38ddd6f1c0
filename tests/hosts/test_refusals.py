"""Greedy decoding and beam search are refused where the mark is in the draw of each token."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.hosts.conftest import BoundForce, Force

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.scheme import Needs

IDS = torch.tensor([[4, 60], [60, 4]])
MASK = torch.ones_like(IDS)


@dataclass(frozen=True)
class Chooser(Force):
    """The forcing scheme, which says that it chooses the token."""

    needs = Needs(final=True)


@pytest.fixture
def chooser(host) -> BoundForce:
    return Chooser(token=9).bind(None, host.info, None)


def generate(host, **options):
    return host.model.generate(IDS, attention_mask=MASK, max_new_tokens=3, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"do_sample": False}, "greedy decoding always takes the likeliest token, and force"),
        ({}, "greedy decoding"),  # transformers' own default
        ({"num_beams": 3}, "num_beams=3 keeps the likeliest texts, and force"),
        ({"num_beams": 3, "do_sample": True}, "use num_beams=1 and do_sample=True"),
    ],
)
def test_transformers_generate_is_refused_before_it_starts(host, chooser, options, reason):
    with pytest.raises(ConfigError, match=reason) as error:
        generate(host, watermarking_config=WatermarkingConfig(chooser), **options)
    assert "\n" not in str(error.value)
    assert chooser.opened == []


def test_sampling_goes_on(host, chooser):
    config = WatermarkingConfig(chooser)
    written = generate(host, watermarking_config=config, do_sample=True, num_return_sequences=2)
    assert written[:, 2:].tolist() == [[9] * 3] * 4


def test_a_bias_may_be_decoded_in_any_way(host, force):
    config = WatermarkingConfig(force(host.info, 9))
    for options in ({"do_sample": False}, {"num_beams": 2}):
        assert generate(host, watermarking_config=config, **options)[:, 2:].tolist() == [[9] * 3] * 2


def test_a_choosing_processor_refuses_beams(host, chooser):
    with pytest.raises(
        ConfigError, match="made for 2 prompts but is called with 6 rows.*num_beams=1"
    ) as error:
        generate(host, logits_processor=[chooser.processor(IDS)], num_beams=3)
    assert "\n" not in str(error.value)


def test_a_choosing_processor_refuses_greedy_decoding_and_outlives_transformers_own(host, chooser):
    with pytest.raises(ConfigError, match="temperature must be positive, got 0"):
        chooser.processor(IDS, decoding=Decoding(temperature=0.0))
    # only the chosen token is finite, so that transformers' argmax takes it
    written = generate(host, logits_processor=[chooser.processor(IDS)], do_sample=False)
    assert written[:, 2:].tolist() == [[9] * 3] * 2


def test_the_host_refuses_temperature_zero(host, chooser):
    with pytest.raises(ConfigError, match="temperature 0 always takes the likeliest token, and force"):
        host.generate(["the sea"], scheme=chooser, seeds=[1], decoding=Decoding(temperature=0.0))
