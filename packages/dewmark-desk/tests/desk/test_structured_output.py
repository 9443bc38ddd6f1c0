"""Answers under a grammar: whatever a host would rather write, they are what the schema asks for."""

from __future__ import annotations

import json

import pytest
import torch
from tests.desk.live import bound

from dewmark import Key, Watermark
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.mark import Session, Writer

llguidance = pytest.importorskip("llguidance")

from dewmark_desk import json_grammar, structured_output  # noqa: E402
from dewmark_desk.json_grammar import grammar_of  # noqa: E402
from dewmark_desk.structured_output import GrammarSession, constrained  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"enum": [1, 2, 3]}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


START = torch.zeros((1, 1), dtype=torch.long)


@pytest.fixture(scope="module")
def letters():
    """A tokenizer of single bytes, and the id that ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made, made.token_to_id("<end>")


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_random_hosts_write_what_the_schema_asks_for(letters, temperature):
    tokenizer, end = letters
    rows, vocab = 16, tokenizer.get_vocab_size()
    guide = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=vocab, eos_token=end)
    ids = torch.zeros((rows, 1), dtype=torch.long)
    session = GrammarSession(grammar_of(SCHEMA), guide, None, ids, seeds=range(rows))
    generator = torch.Generator().manual_seed(7)
    for _ in range(200):
        logits = torch.randn((rows, vocab), generator=generator)
        chosen, sound = session.choose(ids, logits, Decoding(temperature=temperature))
        assert bool(sound.all())
        ids = torch.cat((ids, chosen[:, None]), dim=1)
    for row in ids[:, 1:].tolist():
        value = json.loads(tokenizer.decode(row[: row.index(end)]))
        assert value.keys() == {"name", "count"}
        assert len(value["name"]) <= 12
        assert value["count"] in (1, 2, 3)


def test_a_schema_that_makes_no_sense_is_one_line():
    for schema in ({"type": "no such type"}, {"patternProperties": 7}, {"type": "string", "pattern": "("}):
        with pytest.raises(ConfigError, match="^response_format: ") as caught:
            grammar_of(schema)
        assert "\n" not in str(caught.value)


EXPLODES = {"type": "string", "allOf": [{"pattern": f".*{each}.{{30}}"} for each in "abcdefghijklmnopqrst"]}


def test_a_schema_that_does_not_end_ends_in_its_child(monkeypatch, open_service):
    monkeypatch.setattr(json_grammar, "SECONDS", 0.7)
    with pytest.raises(ConfigError, match="response_format: the schema takes too long or too much memory"):
        grammar_of(EXPLODES)
    form = {"type": "json_schema", "json_schema": {"schema": EXPLODES}}
    asked = {"model": "tiny", "prompt": "the old bridge", "response_format": form}
    said = open_service(generates=True).post("/v1/completions", json=asked)
    assert said.status_code == 422
    assert "takes too long" in said.text


def nested(depth):
    return {"type": "array", "items": nested(depth - 1)} if depth > 1 else {"type": "array"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"description": "a" * json_grammar.MAX_BYTES}, "65,5.. bytes: give at most 65,536"),
        (nested(json_grammar.MAX_DEPTH + 1), "more than 32 deep"),
        ({"allOf": [{"pattern": "a"}] * 33}, "33 patterns: give at most 32"),
        ({"patternProperties": {str(i): {} for i in range(33)}}, "33 patterns"),
    ],
)
def test_schemas_are_bounded_before_they_are_compiled(monkeypatch, schema, said):
    monkeypatch.setattr(json_grammar, "_compiled", None)
    with pytest.raises(ConfigError, match=f"^tools: the schema .*{said}"):
        grammar_of(schema, what="tools")


def test_schemas_at_the_bounds_are_compiled():
    assert grammar_of(nested(json_grammar.MAX_DEPTH))
    assert grammar_of({"anyOf": [{"type": "string", "pattern": "^a$"}] * 32})


def test_a_matcher_that_grows_too_large_is_an_error_and_not_half_an_answer(letters, monkeypatch):
    monkeypatch.setattr(structured_output, "_MAX_STATES", 200)
    tokenizer, end = letters
    guide = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=tokenizer.get_vocab_size(), eos_token=end)
    grammar = grammar_of({"type": "string", "pattern": ".*a.{30}"})
    session = GrammarSession(grammar, guide, None, START, seeds=[1])
    ids, quote = START, tokenizer.encode('"').ids[0]
    generator = torch.Generator().manual_seed(7)
    with pytest.raises(ConfigError, match="too many states"):
        for step in range(300):
            logits = torch.full((1, tokenizer.get_vocab_size()), -30.0)
            few = [quote] if step == 0 else [tokenizer.encode(each).ids[0] for each in "abcdefgh"]
            logits[0, few] = torch.randn(len(few), generator=generator)
            ids = torch.cat((ids, session.choose(ids, logits, Decoding())[0][:, None]), dim=1)


def test_hosts_that_cannot_write_json_say_so(open_service):
    """The tests' host knows words only."""
    with pytest.raises(ConfigError, match="no tokens for such an answer"):
        constrained(bound("acme"), grammar_of(SCHEMA), marked=True)
    asked = {"model": "tiny", "prompt": "the old bridge", "response_format": {"type": "json_object"}}
    said = open_service(generates=True).post("/v1/completions", json=asked)
    assert said.status_code == 422
    assert "no tokens" in said.text


@pytest.mark.parametrize("temperature", [0.5, 1.3])
def test_a_grammar_that_allows_everything_changes_nothing(letters, temperature):
    """A mark that sees the final distribution sees it under a grammar, too."""
    tokenizer, end = letters
    vocab = tokenizer.get_vocab_size()
    guide = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=vocab, eos_token=end)
    anything = llguidance.LLMatcher.grammar_from_lark("start: /(.|\\n)*/")
    decoding = Decoding(temperature=temperature)
    seeds = [1, 2]

    class Raising(Session):
        """Raises the likelier half of what it sees, which is another half before temperature and filters."""

        def __call__(self, _, scores):
            return scores + (scores > scores.logsumexp(1, keepdim=True) - 5.0) * 3.0

    class Final:
        def writer(self, prompt_ids, *_, seeds):
            return Writer(Raising(), prompt_ids, seeds=seeds, final=True)

    ids = plain = torch.full((2, 1), tokenizer.encode("a").ids[0])
    session = GrammarSession(anything, guide, Final(), ids, seeds=seeds)
    free = Final().writer(ids, seeds=seeds)
    generator = torch.Generator().manual_seed(7)
    printable = tokenizer.encode("abcdefghijklmnopqrstuvwxyz").ids
    for _ in range(40):
        logits = torch.full((2, vocab), -float("inf"))
        logits[:, printable] = 2.0 * torch.randn((2, len(printable)), generator=generator)
        chosen, _ = session.choose(ids, logits, decoding)
        unbound, _ = free.draw(plain, logits, decoding)
        ids = torch.cat((ids, chosen[:, None]), dim=1)
        plain = torch.cat((plain, unbound[:, None]), dim=1)
    assert ids.tolist() == plain.tolist()


@pytest.mark.models
def test_a_real_host_answers_marked_and_in_json():
    wm = Watermark(Key(bytes(range(32))))
    ask = "Describe a train ticket as JSON with a name and a count."
    bound = constrained(wm.scheme, grammar_of(SCHEMA), marked=True)
    (made,) = wm.host.generate(
        [wm.chat_format.render([{"role": "user", "content": ask}])],
        scheme=bound,
        seeds=[3],
        decoding=Decoding(temperature=0.7, max_new_tokens=40),
    )
    assert json.loads(made.text).keys() == {"name", "count"}
