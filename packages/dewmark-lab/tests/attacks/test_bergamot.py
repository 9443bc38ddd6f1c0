"""Bergamot's translator: the model file, the network against plain equations, batches, and texts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.tiny_bergamot import LETTERS, VOCABULARY, tiny_bergamot, translated

from dewmark.errors import ModelError
from dewmark_lab.attacks.translation.bergamot import END, BergamotTranslator, MarianNetwork, read_marian

CPU = torch.device("cpu")


def silent(done: int, total: int) -> None:
    """Ignore progress."""


def sources(number: int, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [*(rng.randrange(2, len(VOCABULARY)) for _ in range(rng.randrange(1, 16))), END]
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bergamot")
    tiny_bergamot(folder)
    return folder


@pytest.fixture(scope="module")
def translator(folder: Path) -> BergamotTranslator:
    return BergamotTranslator(folder, device=CPU)


class TestFile:
    def test_arrays_are_read_with_their_shapes(self, tmp_path: Path):
        true = tiny_bergamot(tmp_path, seed=3)
        read = read_marian(tmp_path / "model.tiny.bin")
        assert read.arrays.keys() == true.keys()
        for name, array in true.items():
            np.testing.assert_array_equal(read.arrays[name], array)
        assert read.settings["dec-cell"] == "ssru"

    @pytest.mark.parametrize("kept", [0, 10, 100, 2000, -300])
    def test_truncated_files_are_rejected(self, folder: Path, tmp_path: Path, kept: int):
        part = tmp_path / "part.bin"
        part.write_bytes((folder / "model.tiny.bin").read_bytes()[:kept])
        with pytest.raises(ModelError, match=r"part\.bin is not a Marian model of version 1") as told:
            read_marian(part)
        assert "\n" not in str(told.value)

    def test_missing_and_unsupported_models_are_rejected(self, folder: Path, tmp_path: Path):
        with pytest.raises(ModelError, match="cannot read"):
            read_marian(tmp_path / "none.bin")
        (tmp_path / "other.bin").write_bytes(b"\2" + bytes(100))
        with pytest.raises(ModelError, match="version 2"):
            read_marian(tmp_path / "other.bin")
        tiny_bergamot(tmp_path / "gru", **{"dec-cell": "gru"})
        with pytest.raises(ModelError, match="has dec-cell: 'gru', dewmark supports only 'ssru'"):
            BergamotTranslator(tmp_path / "gru", device=CPU)
        with pytest.raises(ModelError, match="has 0 models"):
            BergamotTranslator(tmp_path / "none", device=CPU)


class TestNetwork:
    def test_network_follows_the_equations(self, tmp_path: Path):
        ended = 0
        for seed in range(3):
            weights = tiny_bergamot(tmp_path / str(seed), seed=seed)
            file = read_marian(tmp_path / str(seed) / "model.tiny.bin")
            given = sources(12, seed)
            made = MarianNetwork(file, device=CPU).translate(given)
            expected = [translated(weights, source) for source in given]
            assert made == expected
            ended += sum(
                len(ids) < 2.5 * len(source) - 1 for ids, source in zip(expected, given, strict=True)
            )
        assert 0 < ended < 36  # some sentences end, some reach the limit


class TestTexts:
    def test_lines_and_spaces_are_kept(self, translator: BergamotTranslator, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(translator, "translate_sentences", lambda given, _: [f"<{s}>" for s in given])
        text = "  One. Two!  Dr. A three\n\n\t12 34 ...\r\n* * *\n1. Four "
        made = "  <One.> <Two!>  <Dr. A three>\n\n\t12 34 ...\r\n* * *\n<1. Four> "
        assert translator.translate([text, "5 + 5"], on_progress=silent) == [made, "5 + 5"]

    def test_long_sentences_are_split(self, translator: BergamotTranslator, monkeypatch: pytest.MonkeyPatch):
        seen: list[str] = []
        monkeypatch.setattr(translator, "translate_sentences", lambda given, _: seen.extend(given) or given)
        text = "".join(f"a {i} efg, " for i in range(60)) + ("x" + LETTERS[:40]) * 9
        assert translator.translate([text], on_progress=silent) == [text]
        assert "".join(seen).replace(" ", "") == text.replace(" ", "")
        assert max(len(translator.pieces(part)) for part in seen) <= translator.longest
        assert all(part.endswith(",") for part in seen if " " in part)
        assert len(seen) < 20  # split near the middle, not piece by piece

    def test_unreadable_texts_are_survived(self, translator: BergamotTranslator):
        for text in ("\ud800 the old house", "古い家", "\0", "e\u0301\u2028x"):
            assert translator.translate([text], on_progress=silent)[0].encode() is not None
        assert translator.translate([], on_progress=silent) == []

    def test_empty_translation_keeps_the_sentence(self, translator: BergamotTranslator, monkeypatch):
        monkeypatch.setattr(translator, "_network", _Empty())
        assert translator.translate(["the house. the city."], on_progress=silent) == ["the house. the city."]


class _Empty:
    def translate(self, given: list[list[int]]) -> list[list[int]]:
        return [[] for _ in given]
