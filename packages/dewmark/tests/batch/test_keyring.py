"""One keyring, many kinds of marks: the right kind is named, and one level holds for all of them."""

from __future__ import annotations

import functools
import random

import pytest
from scipy.stats import binom

from dewmark.batch import DetectorSpec, Document
from dewmark.batch.keyring import Kind, read_kinds
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, KeyFileError, UnknownNameError
from dewmark.registry import HOSTS
from dewmark.watermark import Watermark

pytest.importorskip("transformers")

from dewmark_lab.testing.fake_host import FakeHost

KINDS = {
    "dew": Key(bytes(range(32))),
    "vllm-gumbel": Key.of_numbers([42]),
    "vllm-dual-key-gumbel": Key.of_numbers([43]),
    "sglang-gumbel": Key.of_numbers([45]),
    "transformers-kgw": Key.of_numbers([46]),
    "transformers-synthid": Key.of_numbers(range(100, 130)),
}
TEXTS = 2


@functools.cache
def host():
    return FakeHost(context=2048)


@pytest.fixture(scope="module")
def keyring(tmp_path_factory):
    """A folder with a key of each kind, on a host by its name."""
    HOSTS.register("tiny-keyring", lambda *_, **__: host())
    folder = tmp_path_factory.mktemp("keys")
    lines = []
    for scheme, key in KINDS.items():
        key.save(folder / f"{scheme}.key")
        on = "" if scheme == "dew" else 'host = "tiny-keyring"\n'
        lines.append(f'["{scheme}"]\nscheme = "{scheme}"\n{on}')
    (folder / "keyring.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder


def written(scheme, count, *, seed):
    decoding = Decoding(max_new_tokens=200, min_new_tokens=200)
    watermark = Watermark(KINDS[scheme], host=host(), scheme=scheme)
    seeds = range(seed, seed + count)
    made = watermark.generate_batch(["the old bridge"] * count, seeds=seeds, decoding=decoding)
    return [each.text for each in made]


def scored(folder, texts, **options):
    scorer = DetectorSpec(keys=(folder,), **options).open()
    return [each.row for each in scorer([Document(text, i) for i, text in enumerate(texts)])]


@pytest.mark.parametrize("scheme", [each for each in KINDS if each != "dew"])
def test_the_right_kind_is_named(keyring, scheme):
    rows = scored(keyring, written(scheme, TEXTS, seed=1), fpr=0.001)
    assert [(row["verdict"], row["scheme"]) for row in rows] == [("marked", scheme)] * TEXTS
    assert {row["key_file"] for row in rows} == {str(keyring / f"{scheme}.key")}
    assert {row["keys"] for row in rows} == {len(KINDS)}


def test_one_level_holds_for_all_kinds_together(keyring):
    """With 80 texts and 7 keys, more alarms than the 99.99% quantile of Binomial(80, 0.1) are a fault."""
    draw, words = random.Random(0), host().info.tokenizer
    texts = words.decode([draw.choices(range(5, 500), k=120) for _ in range(80)])
    rows = scored(keyring, texts, fpr=0.1)
    alarms = sum(row["verdict"] == "marked" for row in rows)
    assert alarms <= binom.ppf(0.9999, len(rows), 0.1)
    assert {row["looks"]["keys"] for row in rows} == {len(KINDS)}


def test_what_cannot_be_tested_is_named(keyring, tmp_path):
    for name in ("vllm-gumbel", "dew"):
        KINDS[name].save(tmp_path / f"{name}.key")
    KINDS["sglang-gumbel"].save(tmp_path / "other.key")
    (tmp_path / "keyring.toml").write_text(
        f'["vllm-gumbel"]\nscheme = "vllm-gumbel"\nhost = "tiny-keyring"\n'
        f'[other]\nscheme = "sglang-gumbel"\nhost = "{tmp_path}/no-such-model"\n',
        encoding="utf-8",
    )
    (row,) = scored(tmp_path, written("vllm-gumbel", 1, seed=5), fpr=0.001)
    assert (row["verdict"], row["scheme"], row["keys"]) == ("marked", "vllm-gumbel", 2)
    missing = {each["key_file"]: each["reason"] for each in row["not_tested"]}
    assert missing[str(tmp_path / "other.key")].startswith("no tokenizer: ")
    (row,) = scored(tmp_path, ["the old"])
    assert {each["reason"] for each in row["not_tested"]} >= {"too_short"}


def test_a_folder_without_a_key_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("the key is elsewhere", encoding="utf-8")
    with pytest.raises(KeyFileError, match=r"has no key: expected files named \*.key"):
        DetectorSpec(keys=(tmp_path,)).open()


def test_mistakes_in_a_keyring_are_one_line(tmp_path):
    assert read_kinds(tmp_path) == {}
    file = tmp_path / "keyring.toml"
    for text, error, message in (
        ("[", ConfigError, "is not TOML"),
        ('[a]\nscheme = "vllm-gumble"', UnknownNameError, "did you mean 'vllm-gumbel'"),
        ("[a]\nkey = 3", ConfigError, "a takes scheme, host and settings"),
        ('[a]\nscheme = "dew"', ConfigError, "no key file"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(error, match=message):
            read_kinds(tmp_path)
    KINDS["dew"].save(tmp_path / "a.key")
    file.write_text("[a]\nsettings = { k = 4 }", encoding="utf-8")
    assert read_kinds(tmp_path) == {tmp_path / "a.key": Kind(settings={"k": 4})}
