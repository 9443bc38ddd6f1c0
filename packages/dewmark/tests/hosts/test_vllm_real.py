"""vLLM itself on the packaged SmolLM2: requests over HTTP, mixed and preempted, and offline batches."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dewmark
from dewmark.capabilities import for_member
from dewmark.hosts.transformers.model_files import resolve
from dewmark.policy import Policy

pytestmark = [pytest.mark.vllm, pytest.mark.models]
pytest.importorskip("vllm", reason="not installed here: make test-vllm")

HOST = "smollm2-135m"
PROCESSOR = "dewmark.hosts.engines.vllm:DewLogitsProcessor"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
SETTINGS = {"alpha": 0.9}
TOKENS = 100
STARTS = 600  # seconds that a server may take to start on a slow machine
PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "There are three reasons why people move to the mountains:",
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two tenants and a ring: their keys, and a configuration that names them and a policy."""
    folder = tmp_path_factory.mktemp("keys")
    made = {"acme": dewmark.Key(bytes([7] * 32)), "globex": dewmark.Key(bytes([8] * 32))}
    made["ring"] = dewmark.Key(bytes([9] * 32), members=4, payload_bits=3)
    for name, key in made.items():
        key.save(folder / f"{name}.key")
    names = "".join(f'{name} = "{name}.key"\n' for name in made)
    text = f'host = "{HOST}"\ndefault_key = "acme"\npolicy = "default"\nsettings = {{ alpha = 0.9 }}\n'
    (folder / "dewmark.toml").write_text(f"{text}[keys]\n{names}", encoding="utf-8")
    return folder, made


@pytest.fixture(scope="module")
def server(keys, tmp_path_factory):
    """The address of a server whose memory is too small for all requests at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(HOST).location]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--num-gpu-blocks-override", "40", "--logits-processors", PROCESSOR]
    command += ["--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "16", "--block-size", "32"]
    environment = os.environ | ENVIRONMENT | {"DEWMARK_VLLM_CONFIG": str(keys[0] / "dewmark.toml")}
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + STARTS
        while not _answers(f"{address}/health"):
            assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-3000:]
            assert time.monotonic() < end
            time.sleep(1.0)
        yield address
    finally:
        process.terminate()
        process.wait(60)
    text = log.read_text(encoding="utf-8", errors="replace")
    for name in keys[1]:  # no key in the server's log
        assert (keys[0] / f"{name}.key").read_text(encoding="utf-8").split()[-1] not in text


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def ask(server: str, prompt: str, **more: object) -> tuple[int, list[str]]:
    """Status, and the texts or the error's message."""
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
    }
    request = urllib.request.Request(
        f"{server}/v1/completions",
        data=json.dumps(body | more).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, [choice["text"] for choice in json.load(answer)["choices"]]
    except urllib.error.HTTPError as error:
        return error.code, [json.load(error)["error"]["message"]]


RING = {"dewmark_key_id": "ring", "dewmark_member": 3, "dewmark_payload": 5}
CODE = {"structured_outputs": {"regex": "```\\n[a-z ]{600}"}}
KINDS = [  # the key that the texts carry, what the request says of it, and what else it asks for
    ("acme", {}, {}),
    ("acme", {}, {"n": 2}),
    ("globex", {"dewmark_key_id": "globex"}, {"n": 2}),
    ("globex", {"dewmark_key_id": "globex"}, {"repetition_penalty": 1.1}),
    ("ring", RING, {}),
    (None, {"dewmark": False}, {}),
    (None, {}, {"temperature": 0.0}),
    (None, {}, CODE),  # the policy leaves it unmarked
]


def test_concurrent_requests_are_marked_with_their_own_keys_or_not_at_all(server, keys) -> None:
    """32 requests of eight kinds at once, 40 texts, in a cache that holds half of them: some are preempted.

    100 tokens of this configuration have z of about 7 (standard deviation about 1): p < 0.001 is z > 3.1. Of
    the 92 p-values that are no mark's, 0.09 are expected below 0.001; keys and seeds are fixed. The texts of
    requests that draw from the model's own distribution are those of dewmark's own loop, except where sums
    in another order turn a close race, or where the policy lets the engine draw.
    """
    host = dewmark.load_host(HOST)
    special = sorted(host.info.tokenizer.special_ids)  # which the own loop does not write
    asked = []
    for i in range(32):
        _, said, more = KINDS[i % 8]
        free = {} if more is CODE else {"min_tokens": TOKENS, "stop_token_ids": special}
        asked.append((PROMPTS[i % 3], {"vllm_xargs": said, "seed": 100 * i, **free, **more}))
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda one: ask(server, one[0], **one[1]), asked))
    assert {status for status, _ in answers} == {200}
    made = [(i, sample, text) for i, (_, texts) in enumerate(answers) for sample, text in enumerate(texts)]
    assert len(made) == 40
    texts, prompts = [text for _, _, text in made], [asked[i][0] for i, _, _ in made]
    carried = np.array([KINDS[i % 8][0] for i, _, _ in made])
    for name, key in keys[1].items():
        bound = dewmark.load_scheme(key, host=HOST, settings=SETTINGS)
        found = bound.detect_batch(texts, prompts=prompts)
        p = np.array([one.p_value for one in found])
        assert (p[carried == name] < 0.001).all()
        assert (p[carried != name] > 0.001).all()
        if name == "ring":
            assert {one.payload for one, own in zip(found, carried, strict=True) if own == name} == {5}
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counts = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total")]
    assert sum(counts) > 0
    policy, same, total = Policy(numbers=False), 0, 0
    decoding = dewmark.Decoding(max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    for kind, (name, said, more) in enumerate(KINDS[:5]):
        if "repetition_penalty" in more:  # the own loop has none
            continue
        bound = dewmark.load_scheme(keys[1][name], host=HOST, settings=SETTINGS)
        bound = for_member(bound, member=said.get("dewmark_member"), payload=said.get("dewmark_payload"))
        mine = [one for one in made if one[0] % 8 == kind]
        mine = [one for one in mine if not any(s.reason for s in policy.spans(one[2], asked[one[0]][0]))]
        seeds = [100 * i + sample for i, sample, _ in mine]
        own = host.generate([asked[i][0] for i, _, _ in mine], scheme=bound, seeds=seeds, decoding=decoding)
        equal = [one.text == text for one, (_, _, text) in zip(own, mine, strict=True)]
        same, total = same + sum(equal), total + len(equal)
    assert same >= 0.8 * total > 0


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
    found = anywhere.detect_batch(texts, prompts=prompts)
    assert [d.p_value for d in found] == [d.p_value for d in served.detect_batch(texts, prompts=prompts)]
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
