"""llama-cpp-python itself on the packaged SmolLM2, with the same scores as in transformers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes import COMPOSED

import dewmark
from dewmark.detect import score_texts
from dewmark.errors import NumericalError
from dewmark.hosts import host_info
from dewmark.hosts.engines.llamacpp import LlamaCppProcessor, llamacpp_info
from dewmark.models.packaged import PACKAGED, fetch

pytestmark = [pytest.mark.llamacpp, pytest.mark.models]

HOST = "smollm2-135m"
KEY, WRONG = dewmark.Key(bytes(range(32))), dewmark.Key(bytes(32))
PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
]
TEXTS = [
    "Die alte Brücke über den Fluß wurde 1923 gebaut – “really”, she said, 3.14 km away…",
    "  two spaces,\ttabs\n\nand lines; naïve café 日本語のテキスト 🙂 end",
    "<|im_start|>user\nWhat is this?<|im_end|>",
]
CONFIGURATIONS = {"words": ("dew", {}), "bias": ("dew-paper", {"lambda": 3.0, **COMPOSED})}


@pytest.fixture(scope="module")
def llm():
    llama_cpp = pytest.importorskip("llama_cpp", reason="not installed here: make test-llamacpp")
    path = fetch(HOST) / PACKAGED[HOST].entry
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, seed=1, verbose=False)


@pytest.fixture(scope="module")
def infos(llm):
    """The host as llama.cpp and as transformers describe it."""
    return {"llama.cpp": llamacpp_info(llm), "transformers": host_info(HOST)}


def write(llm, mark: LlamaCppProcessor | None, prompt: str, **settings: object) -> str:
    from llama_cpp import LogitsProcessorList, StoppingCriteriaList

    more = {}
    if mark is not None:
        more = {
            "logits_processor": LogitsProcessorList([mark]),
            "stopping_criteria": StoppingCriteriaList([mark.check]),
        }
    llm.reset()  # a prompt that is in the cache already is not read again, and rounds otherwise
    answer = llm(
        prompt, max_tokens=120, top_k=0, top_p=1.0, min_p=0.0, **{"temperature": 1.0, **settings}, **more
    )
    return answer["choices"][0]["text"]


@pytest.mark.parametrize(("scheme", "settings"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_marks_are_found_and_scored_alike_in_both_engines(llm, infos, scheme, settings) -> None:
    words = not settings
    options = {"scheme": scheme, "settings": settings}
    bound = dewmark.load_scheme(KEY, host=infos["llama.cpp" if words else "transformers"], **options)
    mark = LlamaCppProcessor(bound, llm, seed=7)
    marked = [write(llm, mark, prompt) for prompt in PROMPTS]
    plain = [write(llm, None, prompt) for prompt in PROMPTS]
    found = score_texts(bound, marked + plain)
    if words:
        theirs = score_texts(dewmark.load_scheme(KEY, host=infos["transformers"], **options), marked + plain)
        assert [d.p_value for d in found] == pytest.approx([d.p_value for d in theirs], rel=1e-4)
    # at 120 tokens z is about 4 with the bias and above 6 with Gumbel, give or take 1
    assert np.mean([d.z for d in found[:2]]) > 2.5
    assert all(d.p_value < 0.05 for d in found[:2])
    assert all(d.p_value > 1e-3 for d in found[2:])
    wrong = dewmark.load_scheme(WRONG, host=infos["transformers"], **options)
    assert all(d.p_value > 1e-3 for d in score_texts(wrong, marked))


def test_empty_text_has_no_tokens(infos) -> None:
    assert infos["llama.cpp"].tokenizer.encode([""])[0].ids == ()


def test_both_tokenizers_agree_on_ids_and_offsets(infos) -> None:
    ours, theirs = (infos[name].tokenizer for name in ("llama.cpp", "transformers"))
    for text, a, b in zip(TEXTS, ours.encode(TEXTS), theirs.encode(TEXTS), strict=True):
        assert a.ids == b.ids, text
        assert a.offsets == b.offsets, text
        assert ours.decode([a.ids]) == theirs.decode([b.ids]) == [text]
    assert ours.special_ids == theirs.special_ids
    assert ours.size == theirs.size


def test_sampler_settings_of_llama_cpp_cannot_change_a_chosen_token(llm, infos) -> None:
    scheme = dewmark.load_scheme(KEY, host=infos["llama.cpp"])
    texts = {
        write(llm, LlamaCppProcessor(scheme, llm, seed=5), PROMPTS[0], **settings)
        for settings in ({}, {"temperature": 0.2}, {"temperature": 0.0}, {"repeat_penalty": 1.3})
    }
    assert len(texts) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what C swallows
def test_an_error_in_a_step_ends_the_call(llm, infos) -> None:
    scheme = dewmark.load_scheme(KEY, host=infos["llama.cpp"])
    mark = LlamaCppProcessor(scheme, llm)
    whole = mark._start

    def start(prompt):
        raise NumericalError("broken on purpose")

    mark._start = start
    with pytest.raises(NumericalError, match="on purpose"):
        write(llm, mark, PROMPTS[0])
    mark._start = whole
    assert write(llm, mark, PROMPTS[0])


def test_a_logit_bias_drops_the_mark_as_the_docs_warn(llm, infos) -> None:
    """If this fails, llama-cpp-python was fixed: remove the warning from docs/llamacpp.md."""
    calls = []
    scheme = dewmark.load_scheme(KEY, host=infos["llama.cpp"])
    mark = LlamaCppProcessor(scheme, llm)
    original = mark._start
    mark._start = lambda prompt: calls.append(1) or original(prompt)
    write(llm, mark, PROMPTS[0], logit_bias={"5": 0.0})
    assert not calls
