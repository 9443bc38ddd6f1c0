"""Hosts write drafts, end them at sentences, and continue with the first that passes."""

from __future__ import annotations

import itertools

import pytest
import torch
import transformers
from tests.hosts.test_architectures import CONFIGS

from dewmark.decoding import Decoding
from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left
from dewmark_lab.schemes.sentence.drafting import CachedRows, DraftJudge
from dewmark_lab.testing.fake_host import FakeHost

PROMPTS = [" the old bridge", " water", " people of the city were there when"]


class Even(DraftJudge):
    """Sentences end at punctuation before a word; one passes if its number of characters is even."""

    tries, at_once = 12, 4

    def __init__(self, *, passes=lambda text: len(text) % 2 == 0) -> None:
        self.passes = passes
        self.judged: list[tuple[int, str]] = []
        self.accepted: dict[int, list[str]] = {}

    def end(self, row, draft, *, last=False):
        body = draft.lstrip(" .!?")
        for i in range(len(draft) - len(body), len(draft)):
            after = draft[i + 1 : i + 2]
            if draft[i] in ".!?" and (after == " " or (last and not after)):
                return i + 1
        return None

    def judge(self, rows, drafts):
        self.judged += zip(rows, drafts, strict=True)
        return [1.0 if self.passes(draft) else -1.0 / len(draft) for draft in drafts]

    def accept(self, row, draft):
        self.accepted.setdefault(row, []).append(draft)


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400, kind="sentences")


def write(host, drafts, prompts=PROMPTS, seeds=None, **options):
    decoding = Decoding(**{"max_new_tokens": 40, "min_new_tokens": 40, **options})
    seeds = range(len(prompts)) if seeds is None else seeds
    return host.complete_drafts(prompts, drafts=drafts, seeds=list(seeds), decoding=decoding)


def test_the_text_consists_of_accepted_drafts(host) -> None:
    drafts = Even()
    for row, (ids, count) in enumerate(write(host, drafts)):
        text = host.tokenizer.decode([ids])[0]
        assert text.startswith("".join(drafts.accepted[row]))
        assert all(len(draft) % 2 == 0 for draft in drafts.accepted[row])
        assert len(ids) == 40
        assert count.sentences == len(drafts.accepted[row])
        assert count.gave_up == 0
        assert count.drafts >= count.sentences


def test_a_text_depends_only_on_its_prompt_and_seed(host) -> None:
    together = write(host, Even())
    for i, prompt in enumerate(PROMPTS):
        assert write(host, Even(), [prompt], seeds=[i])[0] == together[i]
    wide = Even()
    wide.at_once = 12
    assert [ids for ids, _ in write(host, wide)] == [ids for ids, _ in together]
    assert write(host, Even(), seeds=[5, 6, 7])[0] != together[0]


def test_tries_are_limited_and_counted(host) -> None:
    drafts = Even(passes=lambda text: False)
    for row, (_, count) in enumerate(write(host, drafts)):
        assert count.gave_up == count.sentences == len(drafts.accepted[row])
        assert count.drafts == 12 * count.sentences
        # the best of them was taken: here the longest
        first = [draft for r, draft in drafts.judged if r == row][:12]
        assert drafts.accepted[row][0] in first


def test_only_the_first_draft_ends_a_text(host) -> None:
    """Without a minimum length, the text ends where draft 0 of a sentence does, as in ordinary decoding."""
    everything = Even(passes=lambda text: True)
    for ids, count in write(host, everything, min_new_tokens=0, max_new_tokens=120):
        assert count.drafts == count.sentences
        assert 0 < len(ids) <= 120
        assert not set(ids) & host.tokenizer.special_ids


def test_ngrams_are_not_repeated(host) -> None:
    for ids, _ in write(host, Even(), no_repeat_ngram=2):
        pairs = list(itertools.pairwise(ids))
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("name", CONFIGS)
def test_cached_rows_equal_a_fresh_pass(name) -> None:
    """Rows that are copied, cut and dropped have the logits of a fresh pass over their ids."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    texts = [[5, 6, 7, 11, 12, 20, 21, 22, 23], [8], [9, 10, 13]]
    with torch.inference_mode():
        cached = CachedRows(model, texts, fill_id=0)
        for rows, lengths in (([2, 0, 0, 1], [3, 8, 4, 0]), ([1, 3, 1], [9, 1, 1]), ([1, 1], [0, 0])):
            cached.keep(rows, lengths)
            texts = [texts[row][:length] for row, length in zip(rows, lengths, strict=True)]
            for step in range(3):
                tokens = [30 + 3 * row + step for row in range(len(rows))]
                texts = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
                ids, mask = pad_left(texts, fill_id=0, device=torch.device("cpu"))
                assert torch.allclose(cached.extend(tokens), CachedForward(model, mask)(ids), atol=1e-4)


def test_no_text_waits_for_another(host) -> None:
    """A batch takes about as many steps as its slowest text, not those of each round's slowest sentence."""
    steps: list[int] = []
    hook = host.model.register_forward_pre_hook(lambda *_: steps.append(1))

    def steps_of(prompts, seeds) -> int:
        steps.clear()
        write(host, Even(), prompts, seeds=seeds)
        return len(steps)

    prompts, seeds = PROMPTS * 2, list(range(6))
    together = steps_of(prompts, seeds)
    alone = [steps_of([prompt], [seed]) for prompt, seed in zip(prompts, seeds, strict=True)]
    hook.remove()
    assert together < 1.2 * max(alone)
