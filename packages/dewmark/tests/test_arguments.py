"""Wrong arguments of the public functions are one line with a remedy, and never show a key."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dewmark import (
    Decoding,
    Detector,
    Key,
    Keys,
    Watermark,
    detect_texts,
    load_encoder,
    load_host,
    load_scheme,
)
from dewmark.arguments import checked
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, InputError, KeyFileError

KEY = Key(bytes(32))

CALLS = [
    (lambda: Watermark("00" * 32), "key must be a Key (load a file with Key.load(path)), got str"),
    (lambda: load_scheme("my.key"), "key must be a Key (load a file with Key.load(path)), got str"),
    (lambda: Detector.from_key("my.key"), "key must be a Key"),
    (lambda: Keys("my.key"), "keys must be a list of keys, each a Key"),
    (lambda: detect_texts(["a"], load_scheme(KEY), fpr="0.01"), "fpr must be a number, got str '0.01'"),
    (
        lambda: detect_texts(["a"], load_scheme(KEY), prompt="b"),
        "detect_texts has no parameter 'prompt'; did you mean prompts?",
    ),
    (lambda: Watermark(KEY, strenght=2), "no parameter 'strenght'; did you mean settings={'strength': …}?"),
    (lambda: Watermark(KEY, shceme="dew"), "no parameter 'shceme'; did you mean scheme?"),
    (lambda: Detector.from_key(KEY, strenght=2), "did you mean settings={'strength': …}?"),
    (lambda: load_scheme(KEY, scheme=5), "scheme must be text, got int 5"),
    (lambda: load_scheme(KEY, settings="strength=2"), "settings must be a dict, got str 'strength=2'"),
    (load_scheme, "load_scheme: missing a required argument: 'key'; its parameters: key, host"),
    (lambda: load_scheme(KEY, "tiny"), "load_scheme: too many positional arguments"),
    (lambda: load_host("tiny", devise="cpu"), "load_host has no parameter 'devise'; did you mean device?"),
    (lambda: load_encoder(5), "name must be text, got int 5"),
    (lambda: Decoding(max_tokens=5), "Decoding has no parameter 'max_tokens'; did you mean max_new_tokens?"),
    (lambda: Key.ring("three"), "members must be a whole number, got str 'three'"),
    (
        lambda: Keys([KEY], strenght=2),
        "Keys has no parameter 'strenght'; did you mean settings={'s",
    ),
    (
        lambda: Detector.from_key(KEY, strenght=2),
        "Detector.from_key has no parameter 'strenght'; did you mean",
    ),
    (lambda: Keys(iter([KEY])), "keys must be a list of keys, each a Key"),
    (lambda: Keys([]), "no key to compare with: give at least one"),
    (lambda: detect_texts(["x"], KEY), "give a scheme with its key, or several (load_scheme(key)), got Key"),
    (
        lambda: detect_texts(["x"], [KEY]),
        "give a scheme with its key, or several (load_scheme(key)), got Key",
    ),
    (
        lambda: detect_texts(["x"], "my.key"),
        "give a scheme with its key, or several (load_scheme(key)), got str",
    ),
    (lambda: detect_texts(["x"], []), "no key to look for: give at least one"),
    (Key.load, "Key.load: missing a required argument: 'path'; its parameters: path"),
    (
        lambda: Detector(None).detect_batch(["x"], prompt="y"),
        "Detector.detect_batch has no parameter 'prompt'; did you mean prompts?",
    ),
    (lambda: Key(bytes(32), payload_bit=3), "Key has no parameter 'payload_bit'; did you mean payload_bits?"),
]


@pytest.mark.parametrize(("call", "said"), CALLS)
def test_a_wrong_argument_is_one_line(call, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert "00" * 32 not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("numbers", ["ab", "12", 5, [1.5], [-1], []])
def test_the_numbers_of_a_key_are_whole_and_are_never_shown(numbers):
    with pytest.raises(KeyFileError, match="^an engine's key is one or more whole numbers, none negative$"):
        Key.of_numbers(numbers)


def test_keys_may_be_the_values_of_a_dict_and_one_text_is_no_list(bag_encoder):
    keys = {"a": KEY, "b": Key(bytes([1]) * 32)}
    (found,) = detect_texts(["the old bridge"], Keys(keys.values()))
    assert len(found.detections) == 2
    for call in (
        lambda: detect_texts("hello", Keys([KEY])),
        lambda: Detector.from_key(KEY).detect_batch("hello"),
        lambda: score_texts(load_scheme(KEY), "hello"),
        lambda: score_texts(load_scheme(KEY), ["hello"], prompts="x"),
    ):
        with pytest.raises(InputError, match="must be a list of texts, got one text: put it into a list"):
            call()


@checked
class Mark:
    """What a facade has."""

    def __init__(self, fpr: float = 0.01) -> None:
        self.fpr = fpr

    def detect(self, text: str, *, seed: int | None = None, **more: Any) -> tuple[str, int | None, Any]:
        """Give everything back."""
        return text, seed, more


def test_right_arguments_pass_whatever_library_they_come_from():
    for fpr in (1, 0.5, np.float32(0.5), np.float64(0.5)):
        assert Mark(fpr).fpr == fpr
    assert Mark().detect("a", seed=np.int64(3), other=[]) == ("a", 3, {"other": []})
    assert Mark().detect("a", seed=None)[1] is None
    assert Mark.detect.__doc__ == "Give everything back."


@pytest.mark.parametrize("seed", [1.5, "1", True])
def test_a_method_is_checked_like_a_function(seed):
    with pytest.raises(ConfigError, match="seed must be a whole number, got"):
        Mark().detect("a", seed=seed)
