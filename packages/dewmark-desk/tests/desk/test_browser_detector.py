"""The detector of the browser: its files, and that it says what Python says, in Node.

``make test-serve`` asks Chromium the same of all golden texts (`page.test_browser_page`).
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.desk.detector_vectors import FILE, vectors
from tests.desk.golden_texts import golden_texts

from dewmark import Key
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, StorageError
from dewmark.opening import load_scheme
from dewmark.text.words import words
from dewmark_desk.browser_detector import FORMAT, write_page

DOCS = Path(__file__).parents[4] / "docs"
RUNNER = """
const fs = require("fs"), vm = require("vm"), [folder, texts] = process.argv.slice(1);
const read = (file) => fs.readFileSync(file, file.endsWith("arrays.js") ? "utf16le" : "utf8");
const files = ["words.js", "detector.js", "data.js", "arrays.js"].map((name) => read(`${folder}/${name}`));
vm.runInThisContext(files.join(";\\n") + ";globalThis.opened = async () => new PublicDetector(DATA.about, " +
  "DATA.tables, await inflated(BLOB));");
opened().then((detector) => process.stdout.write(JSON.stringify(JSON.parse(read(texts)).map(
  (text) => ({ forms: detector.words.forms(text), ...detector.detect(text) })))));
"""

# Traditional characters, narrow kana, a character outside of the first plane, Thai, words that borrow a row,
# and words without one: with digits, or the beginning of a listed word. Two different ones borrow one row.
HARD = (
    "漢語與臺灣的學習者們在圖書館裡閱讀關於歷史、經濟和環境的書籍，因為他們認為這對社會發展很重要。",
    "ｶﾞｲﾄﾞﾌﾞｯｸを読んで、ﾊﾟﾝとｺｰﾋｰをﾃｰﾌﾞﾙに置いた。𠮷野家の前で友達を待っていたが、誰も来なかった。",
    "นักเรียนอ่านหนังสือในห้องสมุดและเขียนรายงานเกี่ยวกับประวัติศาสตร์ของประเทศไทย",
    "Blorfing zzyzxian quokkify wumpelig, gralvint x1y abou wen't THURSD 3.14 zworbs déjà-vuïsh sprunkled.",
    "მწერალმა დაწერა გრძელი წერილი მეგობარს და გაგზავნა შორეულ ქალაქში, სადაც ზღვა იყო.",
    "The boat passes {} and then the lighthouse; its crew greets {} and then the harbour, where {} waits.",
)


@pytest.fixture(scope="module")
def public():
    return load_scheme(Key(bytes(range(32)))).public()


@pytest.fixture(scope="module")
def folder(public, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "public"
    write_page(public, folder)
    return folder


def agrees(found, bound, texts):
    """Words and counts are the same, and z within 1e-6."""
    assert [each["forms"] for each in found] == [[word.form for word in words(text)] for text in texts]
    said = score_texts(bound, texts)
    assert [each["words_scored"] for each in found] == [each.tokens_scored for each in said]
    z, own = (np.array(values) for values in ([each.z for each in said], [each["z"] for each in found]))
    assert np.max(np.abs(own - z) / np.maximum(np.abs(z), 1.0)) < 1e-6
    for each, wanted in zip(found, said, strict=True):
        assert each["p_value"] == pytest.approx(wanted.p_value, rel=1e-4)
        assert each["effective_length"] == pytest.approx(wanted.effective_length, rel=1e-6)
        short = wanted.verdict.value in ("too_short", "unsupported_language")
        assert each["verdict"] == ("too_short" if short else wanted.verdict.value)


def in_node(folder, texts):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    given = folder.parent / "texts.json"
    given.write_text(json.dumps(texts))
    made = subprocess.run(
        [node, "-e", RUNNER, folder, given], capture_output=True, text=True, check=True, timeout=600
    )
    return json.loads(made.stdout)


def test_node_says_what_python_says(folder, public):
    texts = [text[:800] for text in golden_texts(6)]
    texts += [*HARD[:-1], HARD[-1].format(*words_that_share_a_row(public), "zzyzx")]
    agrees(in_node(folder, texts), public, texts)


def words_that_share_a_row(public):
    lexicon, seen = public.reader.lexicon, {}
    for pair in itertools.product("bdfgklmnprstvz", "aeiou", "bdfgklmnprstvz", "aeiou", "xqjw"):
        form = "qu" + "".join(pair)
        row = int(lexicon.rows([form])[0])
        if seen.setdefault(row, form) != form and row:
            return seen[row], form
    raise AssertionError("no two words share a row")


def test_a_ring_pays_for_its_members(tmp_path, monkeypatch):
    packed = zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data, _: packed(data, 1))
    bound = load_scheme(Key.ring(4)).public()
    about = write_page(bound, tmp_path / "ring")
    assert about["matrices"] == 4
    texts = [text[:800] for text in golden_texts(2)]
    agrees(in_node(tmp_path / "ring", texts), bound, texts)


def test_the_folder_is_small_and_complete(folder, public):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20_000_000
    about = json.loads((folder / "detector.json").read_text(encoding="utf-8"))
    schema = json.loads((DOCS / "public-detector.schema.json").read_text(encoding="utf-8"))
    assert about.keys() == set(schema["required"]) == schema["properties"].keys()
    for name in ("arrays", "test_vectors"):
        part = schema["properties"][name]["items"]
        assert all(each.keys() == set(part["required"]) for each in about[name])
    kinds = schema["properties"]["arrays"]["items"]["properties"]["dtype"]["enum"]
    assert {each["dtype"] for each in about["arrays"]} <= {*kinds}
    assert about["format"] == schema["properties"]["format"]["const"] == FORMAT
    assert about["key_fingerprint"] == public.fingerprint
    index = (folder / "index.html").read_text(encoding="utf-8")
    for name in re.findall(r'(?:src|href)="([^"]+)"', index):
        assert (folder / name).is_file(), name
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', index)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]


def test_the_published_vectors_hold():
    """Anyone's implementation can be held against the file; ours is, in Python."""
    published, own = json.loads(FILE.read_text(encoding="utf-8")), vectors()
    assert {name: own[name] for name in own if name != "vectors"} == {
        name: published[name] for name in published if name != "vectors"
    }
    for wanted, found in zip(published["vectors"], own["vectors"], strict=True):
        assert found["z"] == pytest.approx(wanted["z"], abs=published["tolerance"])
        assert found["p_value"] == pytest.approx(wanted["p_value"], rel=1e-3)
        assert found["effective_length"] == pytest.approx(wanted["effective_length"], rel=1e-5)
        for name in ("text", "words", "verdict", "words_scored"):
            assert found[name] == wanted[name]


def test_nothing_in_it_gives_form(public, folder):
    """The page has W whole, but not what makes h, raw or deflated."""
    words = load_scheme(Key(bytes(range(32)))).own.form.words[:2].tobytes()
    blob = unpacked(folder)
    assert public.own.form is None
    assert public.own.W.tobytes() in blob
    assert not any(part in blob for part in (words[:8], words[8:]))


def unpacked(folder):
    """The bytes of the page's arrays, unpacked as the page does."""
    text = (folder / "arrays.js").read_text(encoding="utf-16")
    size, packed = re.search(r'size: (\d+), text: "([^"]+)"', text).groups()
    values = np.frombuffer(packed.encode("utf-16-le"), dtype="<u2") - np.uint16(0x4000)
    bits = np.unpackbits(values.astype(">u2").view(np.uint8)).reshape(-1, 16)[:, 1:]
    return zlib.decompress(np.packbits(bits.ravel()).tobytes()[: int(size)])


def test_only_a_public_detector_becomes_a_page(tmp_path, folder, public):
    with pytest.raises(ConfigError, match="add --public"):
        write_page(load_scheme(Key(bytes(range(32)))), tmp_path / "secret")
    with pytest.raises(StorageError, match="not empty"):
        write_page(public, folder)


def test_every_language_has_every_string(folder):
    data = (folder / "data.js").read_text(encoding="utf-8").splitlines()[1]
    table = json.loads(data.removeprefix("const DATA = ").removesuffix(";"))["strings"]
    sources = "".join((folder / name).read_text(encoding="utf-8") for name in ("index.html", "page.js"))
    named = set(re.findall(r'data-t="([^"]+)"', sources)) | set(re.findall(r'\bt\("([^"]+)"', sources))
    assert named <= table["strings"].keys()
    for name, row in table["strings"].items():
        assert len(row) == len(table["languages"]) == 3
        assert len({frozenset(re.findall(r"\{(\w+)\}", text)) for text in row}) == 1, name
        assert name in named or name.startswith(("verdict.", "meaning.", "not.", "number."))
