"""SGLang's own server, on a CPU, and the gateway before it on the packaged SmolLM2: mixed requests."""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.hosts import served
from tests.hosts.served import CODE, HOST, PROMPTS, RING, Served, ask

import dewmark
from dewmark.hosts.transformers.model_files import resolve

pytestmark = [pytest.mark.sglang, pytest.mark.models]
pytest.importorskip("sglang", reason="not installed here: make test-sglang")

SERVER = Path(__file__).with_name("sglang_on_a_cpu.py")
PROCESSOR = json.dumps({"callable": b"cdewmark.hosts.engines.sglang\nDewLogitProcessor\n.".hex()})
GATEWAY = Path(__file__).parents[4] / "examples" / "sglang_gateway.py"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "16",
}
ARGUMENTS = "--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph"
ARGUMENTS += " --enable-custom-logit-processor --dtype float32 --context-length 256 --max-running-requests 32"
ARGUMENTS += " --sleep-on-idle --enable-metrics --disable-overlap-schedule"
# prompts come in pieces of 8 tokens; SGLang expects 16 more of each text, and has memory for half of 100
ARGUMENTS += " --chunked-prefill-size 8 --max-total-tokens 2048 --schedule-conservativeness 0.1"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return folder, served.tenants(folder)


@pytest.fixture(scope="module")
def server(keys, tmp_path_factory):
    """The addresses of a gateway and of the server behind it."""
    ports = served.free_port(), served.free_port()
    gateway, engine = (f"http://127.0.0.1:{port}" for port in ports)
    folder = tmp_path_factory.mktemp("server")
    command = [
        sys.executable,
        str(SERVER),
        "--model-path",
        resolve(HOST).location,
        *ARGUMENTS.split(),
    ]
    environment = ENVIRONMENT | {"DEWMARK_SGLANG_CONFIG": str(keys[0] / "dewmark.toml")}
    before = [sys.executable, str(GATEWAY), "--upstream", engine, "--port", str(ports[0])]
    with (
        served.running(
            [*command, "--port", str(ports[1])],
            engine,
            environment=environment,
            log=folder / "log",
            keys=keys[0],
        ),
        served.running(before, gateway, environment=environment, log=folder / "gateway", keys=keys[0]),
    ):
        yield gateway, engine


KINDS: list[served.Kind] = [
    ("acme", {}, {}),
    ("acme", {}, {"n": 2, "seed": None}),  # SGLang gives every sample the request's seed
    ("globex", {"dewmark_key_id": "globex"}, {}),
    ("globex", {"dewmark_key_id": "globex"}, {"repetition_penalty": 1.1}),
    ("ring", RING, {}),
    (None, {"dewmark": False}, {}),
    (None, {}, {"temperature": 0.0}),
    (None, {}, {"regex": CODE}),
]


def test_concurrent_requests_are_marked_with_their_own_keys_or_not_at_all(server, keys) -> None:
    """32 requests of eight kinds at once, 36 texts, in a cache for half of them: some are retracted."""
    host = dewmark.load_host(HOST)
    texts = []
    asked = served.ask_at_once(server[0], KINDS, host, field="custom_params", structured="regex")
    for seed, prompt, (key, said, more), written in asked:
        texts += [Served(text, prompt, key, said, None if more else seed) for text in written]
    assert len(texts) == len({one.text for one in texts if one.key}) + 12 == 36
    served.check_keys(texts, keys[1])
    assert served.counted(server[1], "sglang:num_retracted_requests_total") > 0
    equal = served.equal_to_the_own_loop(texts, keys[1], host)
    assert sum(equal) >= 0.8 * len(equal) > 0


def test_the_seed_repeats_a_text_whole_or_streamed(server) -> None:
    texts = [ask(server[0], PROMPTS[0], seed=seed, max_tokens=24)[1][0] for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    body = {"model": "smollm2", "prompt": PROMPTS[0], "max_tokens": 24, "ignore_eos": True, "seed": 5}
    request = urllib.request.Request(
        f"{server[0]}/v1/completions",
        data=json.dumps(body | {"stream": True, "temperature": 1.0}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        pieces = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
    assert len(pieces) > 5
    assert "".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]) == texts[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"custom_params": {"dewmark_keyid": "acme"}}, "unknown request parameter 'dewmark_keyid'"),
        ({"custom_params": {"dewmark_key_id": "initech"}}, "unknown dewmark_key_id 'initech'"),
        ({"custom_params": {"dewmark": "perhaps"}}, "dewmark must be true or false"),
        ({"n": 2, "seed": 5}, "would be one text"),
    ],
)
def test_requests_that_cannot_be_marked_get_status_400(server, more, message) -> None:
    status, texts = ask(server[0], PROMPTS[0], **more)
    assert status == 400
    assert message in texts[0]


def test_requests_past_the_gateway_are_marked_with_the_default_key_or_not_at_all(server, keys) -> None:
    """SGLang itself cannot reject them, and goes on."""
    wrong = {"custom_params": {"dewmark_keyid": "globex"}, "custom_logit_processor": PROCESSOR}
    asked = [(PROMPTS[i % 3], wrong if i % 2 else {}) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: ask(server[1], one[0], **one[1]), asked))
    texts = [
        Served(text, PROMPTS[i % 3], "acme" if i % 2 else None, {})
        for i, (_, written) in enumerate(answers)
        for text in written
    ]
    served.check_keys(texts, {name: keys[1][name] for name in ("acme", "globex")})
