from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from tests.fakes import BagEncoder
from tests.tiny_artifacts import MAKERS, card_of

from dewmark.errors import ArtifactError, ConfigError
from dewmark.workspace import Workspace
from dewmark_lab.artifacts import load_artifact, save_artifact, shipped
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training import TRAINERS

ARRAYS = {"b": np.arange(6, dtype=np.float16).reshape(2, 3), "a": np.array([1, 2], dtype=np.int32)}


@pytest.fixture
def folder(tmp_path):
    card = card_of("sir", tiny_host().info, BagEncoder(), {"outputs": 3})
    save_artifact(tmp_path / "made", card, ARRAYS)
    return tmp_path / "made"


def test_round_trip(folder):
    made = load_artifact(str(folder), scheme="sir")
    assert made.card["parameters"] == {"outputs": 3}
    assert made.encoder == "bag"
    assert made.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(made.arrays[name], array)
        assert made.arrays[name].dtype == array.dtype
        assert not made.arrays[name].flags.writeable


def test_files_are_deterministic(folder, tmp_path):
    again = tmp_path / "again"
    save_artifact(again, card_of("sir", tiny_host().info, BagEncoder(), {"outputs": 3}), ARRAYS)
    for name in ("card.json", "artifact.safetensors"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_identity_follows_arrays_and_parameters(folder, tmp_path):
    card = card_of("sir", tiny_host().info, BagEncoder(), {"outputs": 3})
    save_artifact(tmp_path / "other", card, {**ARRAYS, "a": np.array([1, 3], dtype=np.int32)})
    save_artifact(tmp_path / "named", {**card, "parameters": {"outputs": 4}}, ARRAYS)
    identities = {
        load_artifact(str(each), scheme="sir").identity
        for each in (folder, tmp_path / "other", tmp_path / "named")
    }
    assert len(identities) == 3


def one_line(found: pytest.ExceptionInfo[Exception], *words: str) -> None:
    message = str(found.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_missing_artifact_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(ArtifactError, match="nowhere") as found:
        load_artifact(str(tmp_path / "nowhere"), scheme="xsir")
    one_line(found, "dewmark train xsir")


@pytest.mark.parametrize("card", ["", "{", "[]", '{"format": 1}', '{"format": 9, "scheme": "sir"}'])
def test_a_damaged_card_is_rejected(folder, card):
    (folder / "card.json").write_text(card)
    with pytest.raises(ArtifactError, match=r"card\.json") as found:
        load_artifact(str(folder), scheme="sir")
    one_line(found)


def test_one_changed_byte_is_found(folder):
    file = folder / "artifact.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="checksum") as found:
        load_artifact(str(folder), scheme="sir")
    one_line(found, "dewmark train sir")


def test_another_scheme_s_artifact_is_rejected(folder):
    with pytest.raises(ArtifactError, match="of sir, not ts") as found:
        load_artifact(str(folder), scheme="ts")
    one_line(found, "dewmark train ts")


class TestProvenance:
    def test_its_own_host_passes(self, folder):
        made, host = load_artifact(str(folder), scheme="sir"), tiny_host().info
        made.require_host(host)
        made.require_tokenizer(host)

    def test_another_host_is_rejected(self, folder):
        other = dataclasses.replace(tiny_host().info, name="other", identity="other@1")
        made = load_artifact(str(folder), scheme="sir")
        made.require_tokenizer(other)
        with pytest.raises(ConfigError, match="dewmark train sir --host other") as found:
            made.require_host(other)
        one_line(found)

    def test_another_vocabulary_is_rejected(self, folder):
        other = dataclasses.replace(tiny_host().info, name="other", vocab_size=401)
        with pytest.raises(ConfigError, match="dewmark train sir --host other") as found:
            load_artifact(str(folder), scheme="sir").require_tokenizer(other)
        one_line(found)

    def test_another_encoder_is_rejected(self, folder, monkeypatch):
        other = BagEncoder()
        made = load_artifact(str(folder), scheme="sir")
        monkeypatch.setattr("dewmark_lab.artifacts.load_encoder", lambda name, **_: other)
        assert made.open_encoder(Workspace(cache=folder)) is other
        other.identity = "bag@2"
        with pytest.raises(ConfigError, match="bag") as found:
            made.open_encoder(Workspace(cache=folder))
        one_line(found, "dewmark train sir --encoder bag")


def test_every_trainable_scheme_has_a_tiny_artifact_for_the_tests():
    assert set(TRAINERS) == set(MAKERS)


@pytest.mark.parametrize("scheme", TRAINERS)
def test_shipped_artifacts_are_intact_small_and_reproducible(scheme):
    made = load_artifact(None, scheme=scheme)
    assert made.path == shipped() / scheme
    assert sum(file.stat().st_size for file in made.path.iterdir()) < 5_000_000
    command = made.card["training"]["command"]
    assert re.match(rf"dewmark train {scheme} .*--seed \d+", command)
    assert made.card["host"]["name"] == "smollm2-135m"
    card = json.dumps(made.card)
    assert "/" not in command
    assert re.search(r"\b20\d\d-\d\d", card) is None  # no dates
    for name, array in made.arrays.items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all(), name
