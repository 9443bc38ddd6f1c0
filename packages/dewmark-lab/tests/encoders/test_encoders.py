"""Encoders, on a randomly initialised sentence-transformers model; real ones are marked ``models``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.tiny_encoder import tiny_bert

import dewmark.encoders
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import ModelError, UnknownNameError
from dewmark_lab.encoders import SentenceTransformerEncoder, folder_hash

WORDS = ["the", "old", "bridge", "over", "a", "cat", "sat", "on", "mat", "dog", "ran", "away", "query", ":"]
TEXTS = ["the old bridge", "", "a cat sat on the mat", "dog", "the dog ran away over the bridge"]


@pytest.fixture(autouse=True)
def fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dewmark.encoders, "loaded", {})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = tiny_bert(tmp_path_factory.mktemp("bert"), WORDS)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    transformer = Transformer(str(base))
    model = library.SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_shapes_and_determinism(tiny: Path) -> None:
    encoder = load_encoder(str(tiny), device="cpu")
    rows = encoder.encode(TEXTS)
    assert rows.shape == (len(TEXTS), 16)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert encoder.dim == 16
    assert encoder.encode([]).shape == (0, 16)
    np.testing.assert_array_equal(rows, encoder.encode(TEXTS))
    np.testing.assert_array_equal(rows, load_fresh(tiny).encode(TEXTS))
    assert np.linalg.norm(rows[0] - rows[2]) > 0.01  # it does look at the text


def load_fresh(folder: Path) -> Encoder:
    dewmark.encoders.loaded.clear()
    return load_encoder(str(folder), device="cpu")


def test_loading_is_lazy_and_cached(tiny: Path) -> None:
    encoder = load_encoder(str(tiny), device="cpu")
    assert isinstance(encoder, SentenceTransformerEncoder)
    assert encoder._model is None
    assert load_encoder(str(tiny), device="cpu") is encoder
    assert load_encoder(str(tiny)) is not encoder


def test_packaged_encoders_are_described_without_fetching(tmp_path, monkeypatch):
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path))
    use, minilm = load_encoder("use-m3"), load_encoder("minilm")
    assert (use.name, use.identity, use.dim) == ("use-m3", "use-m3@0.2.1:182579c19c70", 512)
    assert (minilm.name, minilm.identity, minilm.dim) == ("minilm", "minilm@0.1.0:b9a0018dff09", 384)
    assert load_encoder("use-m3") is use
    assert not list(tmp_path.iterdir())


def test_e5_models_get_their_prefix(tiny: Path, tmp_path: Path) -> None:
    e5 = tmp_path / "multilingual-e5-tiny"
    shutil.copytree(tiny, e5)
    plain, prefixed = load_encoder(str(tiny), device="cpu"), load_encoder(str(e5), device="cpu")
    expected = plain.encode([f"query: {text}" for text in TEXTS])
    np.testing.assert_allclose(prefixed.encode(TEXTS), expected, atol=1e-6)
    assert np.abs(expected - plain.encode(TEXTS)).max() > 0.01
    assert plain.identity != prefixed.identity


def test_identity_follows_content_not_location(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    identity = load_encoder(str(tiny)).identity
    assert load_encoder(str(copy)).identity == identity
    (copy / "README.md").write_text("a model card decides nothing")
    assert load_fresh(copy).identity == identity
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert load_fresh(copy).identity != identity


def test_identity_samples_large_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = np.zeros(8 << 20, dtype=np.uint8)
    weights.tofile(tmp_path / "model.safetensors")
    before = folder_hash(tmp_path)
    rng = np.random.default_rng(0)
    (weights + rng.integers(0, 2, weights.size, dtype=np.uint8)).tofile(tmp_path / "model.safetensors")
    assert folder_hash(tmp_path) != before


def test_threads_share_an_encoder(tiny: Path) -> None:
    encoder = load_encoder(str(tiny), device="cpu")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: encoder.encode(TEXTS), range(16)))
    for rows in results:
        np.testing.assert_array_equal(rows, results[0])


def test_loading_is_quiet_and_restores_the_libraries(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    load_encoder(str(tiny), device="cpu").encode(TEXTS)
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()


@pytest.fixture
def hub_cache(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub cache with a complete download of ``someone/tiny`` at one commit."""
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny, repository / "snapshots" / ("ab" * 20))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("ab" * 20)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", _no_network)
    return tmp_path


def _no_network(*args: object, **kwargs: object) -> None:
    raise ConnectionError("Name or service not known\nand more lines")


def test_cached_hub_id_needs_no_network(tiny: Path, hub_cache: Path) -> None:
    encoder = load_encoder("someone/tiny", device="cpu")
    assert encoder.identity == "someone/tiny@abababababab"
    np.testing.assert_array_equal(encoder.encode(TEXTS), load_encoder(str(tiny), device="cpu").encode(TEXTS))


def test_uncached_hub_id_is_downloaded_and_pinned(tiny, tmp_path, monkeypatch):
    library = pytest.importorskip("sentence_transformers")
    real, asked = library.SentenceTransformer, []

    def download(source: str, *, local_files_only: bool = False, **settings: object) -> object:
        if local_files_only:
            raise OSError("not on the disk")
        asked.append((source, settings["revision"]))
        return real(str(tiny), device="cpu")

    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: SimpleNamespace(sha="cd" * 20))
    monkeypatch.setattr(library, "SentenceTransformer", download)
    told: list[tuple[str, int, int]] = []
    encoder = load_encoder("someone/tiny", progress=lambda *values: told.append(values))
    assert asked == [("someone/tiny", "cd" * 20)]
    assert encoder.identity == "someone/tiny@cdcdcdcdcdcd"
    assert told == [("downloading someone/tiny", 0, 1), ("downloading someone/tiny", 1, 1)]


def test_unavailable_hub_id_is_one_line_with_remedies(hub_cache: Path) -> None:
    with pytest.raises(ModelError, match="some/else") as caught:
        load_encoder("some/else")
    message = str(caught.value)
    assert "\n" not in message
    for part in ("some/else", "Name or service not known", "dewmark models pull", "local folder", "use-m3"):
        assert part in message


def test_broken_weights_are_a_model_error(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot load the encoder .*broken") as caught:
        load_encoder(str(broken), device="cpu").encode(TEXTS)
    assert "\n" not in str(caught.value)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'minilm'"):
        load_encoder("minlm")
    with pytest.raises(UnknownNameError, match="known: all-mpnet, .*minilm, .*use-m3"):
        load_encoder("smollm2-135m")  # packaged, but a host
    with pytest.raises(ModelError, match="folder ./no/such/folder does not exist"):
        load_encoder("./no/such/folder")
    pytest.importorskip("huggingface_hub")
    with pytest.raises(ModelError, match="cannot load the encoder a/b/c"):
        load_encoder("a/b/c")
    with pytest.raises(ModelError, match="neither modules.json nor config.json"):
        load_encoder(str(tmp_path))


PAIRS = [
    ("The cat sleeps on the sofa.", "A cat is asleep on the couch.", "Die Katze schläft auf dem Sofa."),
    ("It will rain tomorrow.", "Tomorrow there will be rain.", "Demain, il va pleuvoir."),
    ("He bought a new car.", "He purchased a new automobile.", "Compró un coche nuevo."),
]


@pytest.mark.models
@pytest.mark.parametrize(("name", "column"), [("use-m3", 1), ("use-m3", 2), ("minilm", 1)])
def test_real_encoders_place_paraphrases_and_translations_close(name: str, column: int) -> None:
    encoder = load_encoder(name)
    a = encoder.encode([row[0] for row in PAIRS])
    b = encoder.encode([row[column] for row in PAIRS])
    assert a.shape == (3, encoder.dim)
    cosines = (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T
    alike, unlike = np.diag(cosines), cosines[~np.eye(3, dtype=bool)]
    assert alike.min() > 0.5
    assert alike.min() > unlike.max() + 0.2


@pytest.mark.models
@pytest.mark.parametrize("name", ["use-m3", "minilm"])
def test_real_encoders_take_any_text(name: str) -> None:
    texts = ["", " ", "\n\n", "\ufffd", "🙂", "\u200b", "naïve — 你好", "word " * 2000]
    encoder = load_encoder(name, device="cpu")
    rows = encoder.encode(texts)
    assert rows.shape == (len(texts), encoder.dim)
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows, axis=1) > 0.1).all()
    np.testing.assert_array_equal(rows, encoder.encode(texts))
    np.testing.assert_allclose(rows[6], encoder.encode(texts[6:7])[0], atol=1e-5)
