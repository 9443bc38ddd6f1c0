"""The tokenizer that schemes see: offsets, identity, prompts, files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from dewmark.errors import ArtifactError, InputError, ModelError
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark_lab.testing.fake_host import tiny_tokenizer

TEXT = "the naïve old ship — 你好, 1984 <eos> and 🙂 <bos>the sea\n"


@pytest.fixture(scope="module", params=["words", "bytes"])
def tokenizer(request):
    return HFTokenizer(tiny_tokenizer(512, kind=request.param))


@pytest.fixture(scope="module")
def bytewise():
    return HFTokenizer(tiny_tokenizer(512, kind="bytes"))


def test_offsets_slice_back_to_the_text(bytewise):
    tokenized = bytewise.encode([TEXT])[0]
    assert len(tokenized.ids) == len(tokenized.offsets)
    covered = set()
    for i, (start, end) in zip(tokenized.ids, tokenized.offsets, strict=True):
        assert 0 <= start < end <= len(TEXT)
        covered.update(range(start, end))
        piece = bytewise.decode([[i]])[0]
        assert piece == TEXT[start:end] or "�" in piece  # a piece of a character shows as a replacement
    assert covered == set(range(len(TEXT)))


def test_text_round_trips_exactly(bytewise):
    texts = [TEXT, " leading and  double spaces , kept .", "\n\n", "x"]
    assert bytewise.decode([t.ids for t in bytewise.encode(texts)]) == texts


def test_decoding_any_ids_equals_the_backend(bytewise):
    random = np.random.default_rng(0)
    rows = [random.integers(0, 530, size=random.integers(0, 6)) for _ in range(300)]
    ids = [row.tolist() for row in rows] + [list(t.ids) for t in bytewise.encode([TEXT, "a你b🙂"])]
    expected = bytewise._decode(ids)
    assert any("\ufffd" in text for text in expected)
    assert any("\ufffd" not in text for text in expected)
    for _ in range(2):
        assert bytewise.decode(ids) == expected
        assert bytewise.decode(rows) == expected[:300]


def test_spelled_out_special_tokens_are_text(tokenizer):
    ids = tokenizer.encode(["the <eos> sea <pad>"])[0].ids
    assert not {0, 1, 2} & set(ids)
    assert 2 in tokenizer.encode_prompts(["the <eos> sea"])[0]  # in a prompt they are special


def test_decode_omits_special_and_unknown_ids(tokenizer):
    the = tokenizer.encode([" the"])[0].ids
    assert tokenizer.decode([[1, *the, 2, 0, 512, 9999], []]) == [" the", ""]


def test_identity_is_stable_over_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = HFTokenizer.load(tmp_path)
    assert again.identity == tokenizer.identity
    assert again.encode([TEXT]) == tokenizer.encode([TEXT])
    assert (again.size, again.special_ids, again.pad_id) == (512, tokenizer.special_ids, 0)
    again.save(tmp_path / "second")
    assert HFTokenizer.load(tmp_path / "second").identity == tokenizer.identity


def test_identity_is_stable_over_transformers_own_files(tmp_path):
    original = tiny_tokenizer(512)
    original.save_pretrained(tmp_path)
    assert HFTokenizer.load(tmp_path).identity == HFTokenizer(original).identity


def test_identity_distinguishes_tokenizers():
    identities = {HFTokenizer(tiny_tokenizer(size)).identity for size in (64, 65)}
    assert len(identities) == 2
    assert all(len(identity) == 16 for identity in identities)


def test_a_callers_truncation_and_padding_leave_no_trace():
    shared = tiny_tokenizer(512)
    before = HFTokenizer(shared)
    shared(["the old bridge over the river"], truncation=True, max_length=2, padding="max_length")
    after = HFTokenizer(shared)
    assert after.identity == before.identity
    assert len(after.encode(["the old bridge over the river"])[0].ids) == 6
    assert len(before.encode(["the old bridge over the river"])[0].ids) == 6


def test_loading_a_saved_tokenizer_needs_no_transformers(bytewise, tmp_path):
    bytewise.save(tmp_path)
    code = (
        "import sys, pathlib; from dewmark.hosts.transformers.tokenizer import HFTokenizer;"
        "HFTokenizer.load(pathlib.Path(sys.argv[1])).encode(['the sea']);"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_damaged_files_are_rejected(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    changed = json.loads((tmp_path / "tokenizer.json").read_text())
    pieces = changed["model"]["vocab"]
    one, other = list(pieces)[-2:]
    pieces[one], pieces[other] = pieces[other], pieces[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(ArtifactError, match="not the one"):
        HFTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ArtifactError, match="corrupt"):
        HFTokenizer.load(tmp_path)
    with pytest.raises(ModelError, match="cannot load a tokenizer"):
        HFTokenizer.load(tmp_path / "nothing")


def test_prompts_get_the_prefix_that_the_tokenizer_adds_and_no_suffix():
    adding = tiny_tokenizer(512)
    adding.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    tokenizer = HFTokenizer(adding)
    the = list(tokenizer.encode([" the"])[0].ids)
    assert tokenizer.encode_prompts(["the", "<bos> the", ""]) == [[1, *the], [1, *the], [1]]


def test_begin_of_text_is_added_if_the_model_needs_it(tokenizer):
    the = list(tokenizer.encode([" the"])[0].ids)
    assert tokenizer.encode_prompts([" the", ""]) == [the, [1]]
    assert tokenizer.encode_prompts([" the", "", "<bos> the"], needs_bos=True) == [[1, *the], [1], [1, *the]]


def test_a_long_text_is_not_truncated(tokenizer):
    text = (TEXT * 10_000)[: 1 << 16]
    tokenized = tokenizer.encode([text])[0]
    assert tokenized.offsets[-1][1] == len(text)
    assert len(tokenized.ids) > 6_000


def test_invalid_unicode_is_rejected(tokenizer):
    with pytest.raises(InputError, match="text 1"):
        tokenizer.encode(["the", "a\ud800b"])
    assert tokenizer.encode([]) == []


def test_a_slow_tokenizer_is_rejected():
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(ModelError, match="slow tokenizer"):
        HFTokenizer(SlowTokenizer())


def test_control_tokens_that_a_file_lists_as_text_become_special(tmp_path):
    from dewmark.hosts.transformers.model_files import flag_controls

    tokenizer = tiny_tokenizer(64)
    tokenizer.backend_tokenizer.add_tokens(["<start_of_image>", "<table>"])
    before = HFTokenizer(tokenizer)
    image, table = (tokenizer.convert_tokens_to_ids(name) for name in ("<start_of_image>", "<table>"))
    assert image not in before.special_ids
    flag_controls(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    after = HFTokenizer.load(tmp_path)
    assert after.special_ids - before.special_ids == {image}
    assert after.size == before.size
    assert after.decode([[image, table]]) == ["<table>"]
    assert image not in after.encode([" the <start_of_image>"])[0].ids


def test_names_of_padding_rows_are_not_tokens(tmp_path):
    from dewmark.hosts.transformers.model_files import drop_padding

    tokenizer = tiny_tokenizer(512, kind="bytes")
    plain = HFTokenizer(tokenizer)
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    whole["model"]["vocab"] |= {f"[PAD{plain.size + i}]": plain.size + i for i in range(3)}
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(whole))
    assert HFTokenizer(tokenizer).size == plain.size + 3
    drop_padding(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    after = HFTokenizer.load(tmp_path)
    assert (after.size, after.identity) == (plain.size, plain.identity)


def test_the_identity_depends_on_tokenization_not_on_the_file():
    fast = tiny_tokenizer(512, kind="bytes")
    written = json.loads(fast.backend_tokenizer.to_str())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in written["model"]["merges"]]

    def identity(**changes):
        model = {**written["model"], **changes.pop("model", {})}
        changed = json.dumps({**written, **changes, "model": model})
        fast_again = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(changed))
        return HFTokenizer(fast_again).identity

    assert identity() == HFTokenizer(fast).identity
    assert identity(model={"merges": merges}) == identity()  # as older files spell them
    assert identity(added_tokens=written["added_tokens"][::-1]) == identity()
    assert identity(model={"merges": [*merges[1:], merges[0]]}) != identity()
    assert identity(pre_tokenizer={"type": "Digits", "individual_digits": True}) != identity()
