"""vLLM itself on the packaged SmolLM2: requests over HTTP, mixed and preempted, and offline batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.hosts import served
from tests.hosts.served import CODE, HOST, PROMPTS, RING, STARTS, Served, ask

import dewmark
from dewmark.detect import score_texts
from dewmark.hosts.transformers.model_files import resolve

pytestmark = [pytest.mark.vllm, pytest.mark.models]
pytest.importorskip("vllm", reason="not installed here: make test-vllm")

PROCESSOR = "dewmark.hosts.engines.vllm:DewLogitsProcessor"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return folder, served.tenants(folder)


@pytest.fixture(scope="module")
def server(keys, tmp_path_factory):
    """The address of a server whose memory is too small for all requests at once."""
    port = served.free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(HOST).location]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--num-gpu-blocks-override", "40", "--logits-processors", PROCESSOR]
    command += ["--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "16", "--block-size", "32"]
    environment = ENVIRONMENT | {"DEWMARK_VLLM_CONFIG": str(keys[0] / "dewmark.toml")}
    address, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("server") / "log"
    with served.running(command, address, environment=environment, log=log, keys=keys[0]):
        yield address


KINDS: list[served.Kind] = [
    ("acme", {}, {}),
    ("acme", {}, {"n": 2}),
    ("globex", {"dewmark_key_id": "globex"}, {"n": 2}),
    ("globex", {"dewmark_key_id": "globex"}, {"repetition_penalty": 1.1}),
    ("ring", RING, {}),
    (None, {"dewmark": False}, {}),
    (None, {}, {"temperature": 0.0}),
    (None, {}, {"structured_outputs": {"regex": CODE}}),
]


def test_concurrent_requests_are_marked_with_their_own_keys_or_not_at_all(server, keys) -> None:
    """32 requests of eight kinds at once, 40 texts, in a cache for half of them: some are preempted."""
    host = dewmark.load_host(HOST)
    texts = []
    asked = served.ask_at_once(server, KINDS, host, field="vllm_xargs", structured="structured_outputs")
    for seed, prompt, (key, said, more), written in asked:
        followed = key is not None and "repetition_penalty" not in more  # the own loop has none
        for sample, text in enumerate(written):
            texts.append(Served(text, prompt, key, said, seed + sample if followed else None))
    assert len(texts) == 40
    served.check_keys(texts, keys[1])
    assert served.counted(server, "vllm:num_preemptions_total") > 0
    equal = served.equal_to_the_own_loop(texts, keys[1], host)
    assert sum(equal) >= 0.8 * len(equal) > 0


def test_the_seed_repeats_a_text(server) -> None:
    texts = [ask(server, PROMPTS[0], seed=seed, max_tokens=24)[1] for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"vllm_xargs": {"dewmark_keyid": "acme"}}, "unknown request parameter 'dewmark_keyid'"),
        ({"vllm_xargs": {"dewmark_key_id": "initech"}}, "unknown dewmark_key_id 'initech'"),
        ({"vllm_xargs": {"dewmark": "perhaps"}}, "dewmark must be true or false"),
    ],
)
def test_requests_that_cannot_be_marked_get_status_400(server, more, message) -> None:
    status, texts = ask(server, PROMPTS[0], **more)
    assert status == 400
    assert message in texts[0]


def test_unmarked_requests_keep_all_of_vllm(server) -> None:
    off = {"vllm_xargs": {"dewmark": False}, "max_tokens": 8}
    assert ask(server, PROMPTS[0], temperature=0.0, repetition_penalty=1.3, **off)[0] == 200


OFFLINE = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    model, prompts = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=16,
              logits_processors=["dewmark.hosts.engines.vllm:DewLogitsProcessor"])
    params = [SamplingParams(max_tokens=120, ignore_eos=True, seed=i, top_p=0.98,
                             extra_args={"dewmark": i % 2 == 0}) for i in range(len(prompts))]
    texts = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
    print("TEXTS " + json.dumps(texts))
"""


def test_the_default_marks_words_offline_and_any_detector_finds_them(keys, tmp_path) -> None:
    """Eight texts of each kind, of 120 tokens: the sum of z over √8 is N(0, 1) without a mark."""
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE, encoding="utf-8")
    prompts = [PROMPTS[i % 3] for i in range(16)]
    run = subprocess.run(
        [sys.executable, str(script), resolve(HOST).location, json.dumps(prompts)],
        env=os.environ | ENVIRONMENT | {"DEWMARK_KEY_FILE": str(keys[0] / "acme.key")},
        capture_output=True,
        text=True,
        timeout=STARTS,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    texts = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("TEXTS "))[6:])
    anywhere = dewmark.load_scheme(keys[1]["acme"])  # words: bound to no host at all
    served = dewmark.load_scheme(keys[1]["acme"], host=resolve(HOST).location)
    found = score_texts(anywhere, texts, prompts=prompts)
    assert [d.p_value for d in found] == [d.p_value for d in score_texts(served, texts, prompts=prompts)]
    z = np.array([d.z for d in found])
    assert z[0::2].sum() / np.sqrt(8) > 5.0
    assert z[1::2].sum() / np.sqrt(8) < 4.0


DRAFTING = """
import json, os, sys
import numpy as np
os.environ["TRITON_INTERPRET"] = "1"
import triton.runtime.interpreter as interpreter
from triton.backends import backends
from types import SimpleNamespace

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):
    def checked(self, *given, at=at, plain=getattr(interpreter.InterpreterBuilder, name)):
        given[at].data = np.asarray(given[at].data).astype(bool)  # vLLM has masks of integers
        return plain(self, *given)
    setattr(interpreter.InterpreterBuilder, name, checked)

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    ngrams = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
    llm = LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=2,
              speculative_config=ngrams, disable_log_stats=False,
              logits_processors=["dewmark.hosts.engines.vllm:DewLogitsProcessor"])
    prompts, special = json.loads(sys.argv[2]), json.loads(sys.argv[3])
    params = [SamplingParams(max_tokens=12, min_tokens=12, stop_token_ids=special, temperature=0.7, seed=i)
              for i in range(len(prompts))]
    ids = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    counts = [metric.value for metric in llm.get_metrics() if metric.name.endswith("num_accepted_tokens")]
    print("IDS " + json.dumps([ids, counts]))
"""


def test_the_second_runner_with_drafts_writes_the_text_of_the_own_loop(keys, tmp_path) -> None:
    """On a CPU vLLM's second runner starts only if Triton's interpreter stands in for a CPU backend."""
    script = tmp_path / "drafting.py"
    script.write_text(DRAFTING, encoding="utf-8")
    prompts = [
        "The old bridge over the river is old. The old bridge over the river is long. The old bridge over",
        "Day one: we walked to the lake. Day two: we walked to the hill. Day three: we walked to the",
    ]
    host = dewmark.load_host(HOST)
    special = json.dumps(sorted(host.info.tokenizer.special_ids))
    more = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    run = subprocess.run(
        [sys.executable, str(script), resolve(HOST).location, json.dumps(prompts), special],
        env=os.environ | ENVIRONMENT | more | {"DEWMARK_KEY_FILE": str(keys[0] / "acme.key")},
        capture_output=True,
        text=True,
        timeout=3 * STARTS,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    ids, accepted = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("IDS "))[4:])
    decoding = dewmark.Decoding(max_new_tokens=12, min_new_tokens=12, temperature=0.7)
    scheme = dewmark.load_scheme(keys[1]["acme"], host=HOST)
    own = host.generate(prompts, scheme=scheme, seeds=[0, 1], decoding=decoding)
    assert [list(one.token_ids) for one in own] == ids
    assert sum(accepted) > 0
