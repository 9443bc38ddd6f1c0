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
from dewmark.hosts.transformers.model_files import resolve

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
STARTS = 600  # seconds that a server may take to start on a slow machine
PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "There are three reasons why people move to the mountains:",
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two tenants: their keys, and a configuration that names both."""
    folder = tmp_path_factory.mktemp("keys")
    made = {name: dewmark.Key.generate() for name in ("acme", "globex")}
    for name, key in made.items():
        key.save(folder / f"{name}.key")
    names = "".join(f'{name} = "{name}.key"\n' for name in made)
    text = f'host = "{HOST}"\ndefault_key = "acme"\nsettings = {{ alpha = 0.9 }}\n[keys]\n{names}'
    (folder / "dewmark.toml").write_text(text, encoding="utf-8")
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
    for name in ("acme", "globex"):  # no key in the server's log
        assert (keys[0] / f"{name}.key").read_text(encoding="utf-8").split()[-1] not in text


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def ask(server: str, prompt: str, **more: object) -> tuple[int, str]:
    """Status, and the text or the error's message."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 100, "ignore_eos": True, "temperature": 1.0}
    request = urllib.request.Request(
        f"{server}/v1/completions",
        data=json.dumps(body | more).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.load(answer)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def p_values(key, texts: list[str], prompts: list[str]) -> list[float]:
    """By the ordinary detector, which knows nothing of the engine."""
    bound = dewmark.load_scheme(key, host=HOST, settings=SETTINGS)
    return [d.p_value for d in bound.detect_batch(texts, prompts=prompts)]


def test_concurrent_requests_are_marked_with_their_own_keys_or_not_at_all(server, keys) -> None:
    """32 requests at once, in a cache that holds half of them: some are preempted.

    They are marked under two keys, with and without penalties, or not at all: by request, or at temperature
    0. 100 tokens of this configuration have z of about 7 (standard deviation about 1): p < 0.001 is z > 3.1.
    Of the 48 p-values that are no mark's, 0.05 are expected below 0.001.
    """
    said = [{}, {"dewmark_key_id": "globex"}, {"dewmark": False}, {}]
    more = [{}, {"repetition_penalty": 1.1}, {}, {"temperature": 0.0}]
    kinds = np.arange(32) % 4
    asked = [
        (PROMPTS[i % 3], {"vllm_xargs": said[kind], "seed": i, **more[kind]}) for i, kind in enumerate(kinds)
    ]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda one: ask(server, one[0], **one[1]), asked))
    assert {status for status, _ in answers} == {200}
    texts, prompts = [text for _, text in answers], [prompt for prompt, _ in asked]
    acme, globex = (np.array(p_values(keys[1][name], texts, prompts)) for name in ("acme", "globex"))
    assert (acme[kinds == 0] < 0.001).all()
    assert (globex[kinds == 1] < 0.001).all()
    assert (acme[kinds != 0] > 0.001).all()
    assert (globex[kinds != 1] > 0.001).all()
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counts = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total")]
    assert sum(counts) > 0
    again = [ask(server, prompt, **given)[1] for prompt, given in asked[:8] if given["seed"] % 4 < 2]
    same = sum(text == texts[i] for text, i in zip(again, (0, 1, 4, 5), strict=True))
    assert same >= 3  # alone, and not preempted; sums in another order may turn a close race


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
    status, text = ask(server, PROMPTS[0], **more)
    assert status == 400
    assert message in text


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
