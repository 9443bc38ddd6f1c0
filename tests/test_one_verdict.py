"""One text, one key, one verdict: every door gives the same answer to the same question.

The texts are sentences of the packaged unmarked texts, chosen so that their p-values lie near the level,
where two ways to decide would differ. No model runs.
"""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import dewmark
from dewmark.batch import DetectorSpec, detect_file
from dewmark.batch.inputs import Document
from dewmark.cli.app import main
from dewmark.detect import Examined, detect_texts, score_text, score_texts
from dewmark.types import Looks
from dewmark.verdict import corrected
from dewmark_audit.negatives import Negatives, audit_texts
from dewmark_desk.app import create_app
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings
from dewmark_desk.signing import SigningKey
from dewmark_desk.tenants import Tenant

FPR = 0.01
KEY = dewmark.Key(bytes(range(32)))
RING = dewmark.Key(bytes(range(32, 64)), members=4)
SHORT = "The old bridge over the river was built by hand."
WELSH = (
    "Mae'r hen bont dros yr afon wedi cael ei hadeiladu gan bobl y pentref amser maith yn ôl, ac mae hi'n "
    "dal i sefyll yno heddiw er gwaethaf y stormydd a'r llifogydd sydd wedi dod bob gaeaf ers hynny."
)
Answer = tuple[str, float]


def sentences() -> list[str]:
    """Sentences of the packaged English texts that nobody marked."""
    folder = resources.files("dewmark") / "data" / "negatives"
    rows = [
        json.loads(line)
        for file in sorted(folder.iterdir(), key=lambda each: each.name)
        if file.name.endswith(".jsonl") and file.name != "code.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    found = [
        sentence.strip(" .") + "."
        for row in rows
        if row["language"] == "en"
        for sentence in " ".join(row["text"].split()).split(". ")
    ]
    return sorted({each for each in found if 40 < len(each) < 160 and each.isascii()})


def texts_near(
    key: dewmark.Key, count: int, *, z: tuple[float, float], tilt: float, length: int = 3
) -> list[str]:
    """Texts whose z under a key lies in an interval, of sentences drawn with a preference for a large z."""
    bound = dewmark.load_scheme(key)
    pool = sentences()
    own = np.array([each.z for each in score_texts(bound, pool)])
    weights = np.exp(tilt * own).tolist()
    draw, made = random.Random(1), []
    while len(made) < count:
        some = [" ".join(draw.choices(pool, weights, k=length)) for _ in range(count)]
        found = score_texts(bound, some)
        made += [text for text, each in zip(some, found, strict=True) if z[0] < each.z < z[1]]
    return made[:count]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [*texts_near(KEY, 200, z=(1.9, 2.75), tilt=1.4), SHORT, WELSH]


@pytest.fixture(scope="module")
def expected(texts) -> list[Answer]:
    """The verdicts of the library, and their p-values."""
    return [answer(found) for found in map(dewmark.Detector.from_key(KEY).detect, texts)]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    KEY.save(tmp_path / "the.key")
    return tmp_path / "the.key"


def answer(found: dewmark.Detection | Examined) -> Answer:
    return found.verdict.value, found.p_value


def examined(found: list[Examined]) -> list[dewmark.Detection]:
    """The results as a detector gives them; the examinations themselves say the same."""
    for each in found:
        assert answer(each) == answer(each.judged)
    return [each.judged for each in found]


def rows_of(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json", "-q"]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def agree(expected: list[Answer], found: list, *, p: float = 1e-6) -> None:
    """Verdicts are equal, and p-values within ``p``; rows and detections both do."""
    pairs = [(each["verdict"], each["p_value"]) if isinstance(each, dict) else answer(each) for each in found]
    assert [verdict for verdict, _ in pairs] == [verdict for verdict, _ in expected]
    assert [value for _, value in pairs] == pytest.approx([value for _, value in expected], abs=p)


def signer_in(folder: Path) -> Path:
    if not (folder / "sign.pem").exists():
        SigningKey.generate().save(folder / "sign.pem")
    return folder / "sign.pem"


def open_client(folder: Path, tenants: dict[str, dewmark.BoundScheme]) -> TestClient:
    settings = Settings(
        store=f"sqlite:///{folder / 'service.db'}",
        detectors=tuple((name, "in memory") for name in tenants),
        signers=(str(signer_in(folder)),),
        request_seconds=60.0,
    )
    service = Service(settings, {name: Tenant(name, bound) for name, bound in tenants.items()})
    return TestClient(create_app(service), base_url="http://127.0.0.1:8080")


def detect_over_http(client: TestClient, texts: list[str], **options: object) -> list[dict]:
    found = []
    for i in range(0, len(texts), 64):
        answered = client.post("/v1/detect", json={"texts": texts[i : i + 64], **options})
        assert answered.status_code == 200, answered.text
        found += answered.json()["results"]
    return found


def wait_for(client: TestClient, job: str) -> dict:
    while (found := client.get(f"/v1/jobs/{job}").json())["state"] in ("queued", "running"):
        pass
    assert isinstance(found, dict)
    return found


def results_of_a_job(client: TestClient, texts: list[str]) -> list[dict]:
    job = client.post("/v1/batches", json={"texts": [{"text": text} for text in texts]}).json()["job"]["id"]
    wait_for(client, job)
    found = client.get(f"/v1/jobs/{job}/results", params={"limit": 500}).json()["results"]
    assert isinstance(found, list)
    return found


def test_the_texts_lie_on_both_sides_of_the_level(expected):
    verdicts = [verdict for verdict, _ in expected]
    assert min(verdicts.count("marked"), verdicts.count("not_marked")) > 40
    assert verdicts[-2] == "too_short"
    assert verdicts[-1] in ("unsupported_language", "not_marked", "too_short")


def test_the_library(texts, expected, tmp_path):
    detector = dewmark.Detector.from_key(KEY)
    agree(expected, detector.detect_batch(texts))
    agree(expected, score_texts(detector.scheme, texts))
    agree(expected, examined(detector.examine(texts)))
    agree(expected, examined(detect_texts(texts, detector.scheme)))
    agree(expected, examined(detect_texts(texts, detector.scheme, explain=False)))
    agree(expected, examined(detect_texts(texts, dewmark.Keys([KEY]))))
    detector.save(tmp_path / "detector")
    agree(expected, dewmark.Detector.load(tmp_path / "detector").detect_batch(texts))


def test_detect_and_detect_batch_fill_the_same_fields(texts):
    detector = dewmark.Detector.from_key(KEY)
    for one, other in zip(map(detector.detect, texts[:30]), detector.detect_batch(texts[:30]), strict=True):
        assert {**one.to_dict(), "p_value": 0, "z": 0, "score": 0}.keys() == other.to_dict().keys()
        assert (one.coverage is None) == (other.coverage is None)
        assert one.looks == other.looks == Looks()


def test_commands(texts, expected, key_file, tmp_path, capsys):
    files = [tmp_path / f"{i:03}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    agree(expected, rows_of("detect", "--key", key_file, *files, capsys=capsys))
    agree(expected, rows_of("detect", "--key", key_file, "--jsonl", rows, capsys=capsys))
    rows_of("detect", "--key", key_file, "--jsonl", rows, "--out", tmp_path / "out.jsonl", capsys=capsys)
    agree(expected, [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])
    rows_of("detector", "export", "--key", key_file, "--out", tmp_path / "detector", capsys=capsys)
    agree(expected, rows_of("detect", "--detector", tmp_path / "detector", "--jsonl", rows, capsys=capsys))


def test_several_processes(texts, expected, key_file, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[-20:]), encoding="utf-8")
    spec = DetectorSpec(keys=(key_file,))
    detect_file(rows, tmp_path / "out.jsonl", spec, workers=2, block_size=5)
    agree(expected[-20:], [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])


def test_the_service_its_jobs_and_its_reports(texts, expected, key_file, tmp_path, capsys):
    with open_client(tmp_path, {"acme": dewmark.load_scheme(KEY)}) as client:
        agree(expected, detect_over_http(client, texts))
        agree(expected, results_of_a_job(client, texts))
        for i in (*range(0, 200, 40), -2, -1):
            claims = client.post("/v1/reports", json={"text": texts[i]}).json()["claims"]
            agree([expected[i]], [claims])
    text = tmp_path / "one.txt"
    text.write_text(texts[0], encoding="utf-8")
    signed = ("--signer", tmp_path / "sign.pem", "--out", tmp_path / "one.jws")
    (made,) = rows_of("report", "sign", text, "--key", key_file, *signed, capsys=capsys)
    agree(expected[:1], [made["report"]])


def test_a_nul_character_separates_words_like_a_blank(texts, expected, key_file, tmp_path, capsys):
    """Models write one now and then; one such text must not stop a batch, in any door."""
    some = [texts[0], *(text.replace(" ", "\0", 3) for text in texts[1:4])]
    agree(expected[:4], score_texts(dewmark.load_scheme(KEY), some))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in some), encoding="utf-8")
    agree(expected[:4], rows_of("detect", "--key", key_file, "--jsonl", rows, capsys=capsys))
    with open_client(tmp_path, {"acme": dewmark.load_scheme(KEY)}) as client:
        agree(expected[:4], detect_over_http(client, some))
        agree(expected[:4], results_of_a_job(client, some))


def marked_sentences(sentences: list[str], bound: dewmark.BoundScheme, draw: random.Random) -> list[str]:
    """Each sentence's words in the order that scores highest under a key, after those before it.

    So no model is needed: of 24 orders the best has the mark that a sampler's choice would leave.
    """
    found: list[str] = []
    for sentence in sentences:
        words = sentence.split()
        orders = [" ".join(draw.sample(words, len(words))) for _ in range(24)]
        scored = score_texts(bound, [" ".join([*found[-5:], order]) for order in orders])
        found.append(max(zip([each.z for each in scored], orders, strict=True))[1])
    return found


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Documents of 60 sentences: 10, 33 and 60% of them, in the middle, are marked; two have no mark."""
    draw = random.Random(5)
    pool = draw.sample(sentences(), 276)
    marked, plain = marked_sentences(pool[:36], dewmark.load_scheme(KEY), draw), pool[36:]
    found = []
    for share in (0.1, 0.33, 0.6, 0.0, 0.0):
        some, count = draw.sample(plain, 60), round(60 * share)
        some[30 - count // 2 : 30 - count // 2 + count] = marked[:count]
        found.append(" ".join(some))
    return found


def test_a_document_that_is_marked_in_part_has_one_verdict(documents, key_file, tmp_path, capsys):
    """The same p-value and verdict at every door, whether passages were asked for or not."""
    bound = dewmark.load_scheme(KEY)
    detector = dewmark.Detector(bound)
    wanted = [answer(detector.detect(text)) for text in documents]
    whole = score_texts(bound, documents)
    assert [verdict for verdict, _ in wanted[1:]] == ["marked"] * 2 + ["not_marked"] * 2
    assert wanted[1][1] < 0.5 * whole[1].p_value  # its passage decides: the whole text alone shows less
    agree(wanted, detector.detect_batch(documents))
    agree(wanted, examined(detect_texts(documents, bound, explain=False, blank=True)))
    agree(wanted, examined(detect_texts(documents, dewmark.Keys([KEY]))))
    located = [detector.examine([text])[0] for text in documents]
    agree(wanted, examined(located))
    assert all(each.looks == Looks(passages=True) for each in located)
    assert all(bool(each.passages) == each.is_marked for each in located)
    negatives = Negatives([Document(text, i, language="en") for i, text in enumerate(documents)])
    _, audited = audit_texts(bound, negatives)
    assert [each.p_value for each in audited] == pytest.approx([p for _, p in wanted], rel=1e-6)
    files = [tmp_path / f"{i}.txt" for i in range(len(documents))]
    for file, text in zip(files, documents, strict=True):
        file.write_text(text, encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    for command in ("detect", "locate"):
        agree(wanted, rows_of(command, "--key", key_file, *files, capsys=capsys))
        agree(wanted, rows_of(command, "--key", key_file, "--jsonl", rows, capsys=capsys))
    detect_file(rows, tmp_path / "out.jsonl", DetectorSpec(keys=(key_file,)), block_size=2)
    agree(wanted, [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])
    (made,) = rows_of(
        "report", "sign", files[0], "--key", key_file, "--signer", signer_in(tmp_path),
        "--out", tmp_path / "one.jws", capsys=capsys,
    )  # fmt: skip
    agree(wanted[:1], [made["report"]])
    with open_client(tmp_path, {"acme": bound}) as client:
        agree(wanted, detect_over_http(client, documents))
        agree(wanted, results_of_a_job(client, documents))
        claims = [client.post("/v1/reports", json={"text": text}).json()["claims"] for text in documents]
        agree(wanted, claims)
        entries = [{"text": text, "language": "en"} for text in documents]
        job = client.post("/v1/audit", json={"texts": entries}).json()["job"]["id"]
        report = wait_for(client, job)["result"]
        alarms = next(each for each in report["cells"] if each["kind"] == "all" and each["level"] == FPR)
        assert alarms["alarms"] == sum(p <= FPR for _, p in wanted)


def test_the_p_value_does_not_depend_on_the_level(documents):
    detector = dewmark.Detector.from_key(KEY)
    for text in documents:
        strict, lax = (detector.detect(text, fpr=fpr) for fpr in (1e-6, 0.05))
        assert strict.p_value == pytest.approx(lax.p_value)


def test_a_document_is_searched_under_every_key(documents, tmp_path, capsys):
    """Many keys, at all doors that take them, of plain keys and of a ring."""
    keys = [dewmark.Key(bytes([i] * 32)) for i in (1, 2)] + [KEY]
    folder = tmp_path / "keys"
    folder.mkdir()
    for i, key in enumerate(keys):
        key.save(folder / f"{i}.key")
    bounds = [dewmark.load_scheme(key) for key in keys]
    found = [detect_texts([text], bounds)[0] for text in documents]
    wanted = [answer(each.judged) for each in found]
    assert wanted[1][0] == "marked"
    assert found[1].index == 2
    agree(wanted, examined(detect_texts(documents, dewmark.Keys(keys))))
    agree(wanted, examined(detect_texts(documents, [dewmark.Keys(keys[:2]), bounds[2]], explain=False)))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    for command in ("detect", "locate"):
        agree(wanted, rows_of(command, "--keys", folder, "--jsonl", rows, capsys=capsys))
    with open_client(tmp_path, {f"t{i}": bound for i, bound in enumerate(bounds)}) as client:
        agree(wanted, detect_over_http(client, documents))
    ring = dewmark.Detector.from_key(RING)
    for text in documents[:2]:
        one = ring.detect(text)
        assert answer(one) == answer(ring.examine([text])[0].judged)
        assert one.looks.passages


def test_short_texts_have_the_whole_level(texts):
    """A chat answer pays for nothing but its key."""
    bound = dewmark.load_scheme(KEY)
    for text in texts[:24]:
        (found,) = detect_texts([text], bound)
        assert found.looks == Looks()
        assert found.p_value == found.detection.p_value == score_text(bound, text).p_value


def test_several_keys_are_paid_for_alike(texts, tmp_path, capsys):
    keys = [dewmark.Key(bytes([i] * 32)) for i in (1, 2)] + [KEY]
    folder = tmp_path / "keys"
    folder.mkdir()
    for i, key in enumerate(keys):
        key.save(folder / f"{i}.key")
    some = texts[::10]
    wanted = [answer(each) for each in examined(detect_texts(some, dewmark.Keys(keys)))]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in some), encoding="utf-8")
    agree(wanted, rows_of("detect", "--keys", folder, "--jsonl", rows, capsys=capsys))
    with open_client(tmp_path, {f"t{i}": dewmark.load_scheme(key) for i, key in enumerate(keys)}) as client:
        agree(wanted, detect_over_http(client, some))


def test_attribution_has_the_level_and_the_looks_of_the_verdict(tmp_path, key_file, capsys):
    """Nothing is attributed, over HTTP or in a report, that the library does not attribute at that level."""
    fpr = 1e-3
    some = texts_near(RING.independent_member(2), 24, z=(4.5, 12.0), tilt=2.5, length=20)
    ring = dewmark.load_scheme(RING)
    detector, alone = dewmark.Detector(ring), [each.forgery for each in score_texts(ring, some, fpr=fpr)]
    assert sum(each is not None and each.attributable for each in alone) >= 3
    loose = [each.forgery for each in score_texts(ring, some, fpr=FPR)]
    assert sum(each.attributable for each in loose if each) > sum(each.attributable for each in alone if each)
    with open_client(tmp_path, {"ring": ring}) as client:
        for text, found in zip(some, detect_over_http(client, some, fpr=fpr), strict=True):
            one = detector.detect(text, fpr=fpr)
            assert (found["member"], found["payload"]) == (one.member, one.payload)
            assert found["forgery"] == (one.forgery and pytest.approx(one.forgery.to_dict(), abs=1e-4))
        for text in some[:8]:
            one = detector.detect(text, fpr=fpr)
            claims = client.post("/v1/reports", json={"text": text, "fpr": fpr}).json()["claims"]
            attributed = claims["origin"] and claims["origin"]["attributable"]
            assert attributed == (one.forgery and one.forgery.attributable)
    others = {f"t{i}": dewmark.load_scheme(dewmark.Key(bytes([i] * 32))) for i in range(1, 10)}
    (tmp_path / "many").mkdir()
    with open_client(tmp_path / "many", {"ring": ring, **others}) as client:
        for found, one in zip(detect_over_http(client, some, fpr=fpr), alone, strict=True):
            if found["forgery"] is not None:
                p_form = corrected(one.p_form, Looks(keys=10))
                assert found["forgery"]["p_form"] == pytest.approx(p_form, rel=1e-3)
                assert found["forgery"]["attributable"] == (p_form <= fpr)
            assert found["verdict"] == "marked" or (found["member"], found["forgery"]) == (None, None)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    RING.save(tmp_path / "ring.key")
    tried = rows_of(
        "detect", "--key", tmp_path / "ring.key", "--attempts", 50, "--fpr", fpr,
        "--jsonl", tmp_path / "rows.jsonl", capsys=capsys,
    )  # fmt: skip
    for found, one in zip(tried, alone, strict=True):
        if found["forgery"] is not None:
            assert found["forgery"]["attributable"] == (50 * one.p_form <= fpr)


def test_a_stream_that_ends_early_is_too_short():
    stream = dewmark.Detector.from_key(KEY).follow()
    stream.update(SHORT)
    assert stream.verdict is None
    stream.finish()
    assert stream.verdict is dewmark.Verdict.TOO_SHORT


def test_a_longer_text_than_the_limit_is_refused_by_name(tmp_path):
    with open_client(tmp_path, {"acme": dewmark.load_scheme(KEY)}) as client:
        limit = client.app.state.service.settings.text_bytes if hasattr(client.app, "state") else 512 << 10
        refused = client.post("/v1/detect", json={"text": "word " * (limit // 5 + 1)})
        assert refused.status_code == 413
        assert f"{limit:,} bytes" in refused.text
