"""The mutation run on a tiny package, and the changes that it makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import run
from tests.mutants.edits import mutants

MODULE = """
def noticed(n):
    return n < 3

def noticed_elsewhere(n):
    return n + 4

def reached(n):
    return n * 5

def unreached(n):
    return n - 6
"""
FILES = {
    "packages/dewmark/src/dewmark/__init__.py": "",
    "packages/dewmark/src/dewmark/policy.py": MODULE,
    "packages/dewmark/tests/test_policy.py": """
from dewmark import policy
def test_noticed():
    assert policy.noticed(2) and not policy.noticed(3)
""",
    "tests/test_others.py": """
import pytest
from dewmark import policy
@pytest.fixture
def four():
    return policy.noticed_elsewhere(0)
def test_noticed_elsewhere():
    assert policy.noticed_elsewhere(1) == 5
def test_reached():
    policy.reached(1)
def test_that_fails_without_a_fault(four):
    assert policy.reached(1) == 7
""",
    ".gitignore": "build/\n__pycache__/\n",
}
AGAIN = """
import sys
from pathlib import Path
from tests.mutants import run
run.ROOT, run.HEAVY = Path(sys.argv[1]), ("hypothesis", "_hypothesis_pytestplugin", "anyio.pytest_plugin")
run.main(100, [], ["fast"], 1, "HEAD", "", sys.argv[2])
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "tiny" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tiny" / name).write_text(text, "utf-8")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "tiny"]):
        name = ["-c", "user.name=tiny", "-c", "user.email=tiny@localhost"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path / "tiny", check=True)
    return tmp_path / "tiny"


def test_each_fault_is_reported_by_the_tests_that_notice_it(tiny):
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}

    def made_again():
        command = [sys.executable, "-c", AGAIN, str(tiny), str(tiny / "report.md")]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        (results,) = tiny.glob("build/mutants/*/results.jsonl")
        return results, [json.loads(line) for line in results.read_text("utf-8").splitlines()]

    results, rows = made_again()
    lines = {
        each.name: each.line for each in mutants("packages/dewmark/src/dewmark/policy.py", MODULE.encode())
    }
    noticed = {line: {row["noticed"] for row in rows if lines[row["name"]] == line} for line in (3, 6, 9, 12)}
    assert noticed == {3: {"module"}, 6: {"fast"}, 9: {None}, 12: {None}}
    report = (tiny / "report.md").read_text("utf-8")
    assert "| policy | 8 | 2 | 2 | 4 | 50% |" in report
    assert "| dewmark/policy.py:9 | arithmetic | `` return n * 5 `` | `` return n / 5 `` | 2 |" in report
    assert (tiny / "packages/dewmark/src/dewmark/policy.py").read_text("utf-8") == MODULE

    (reached,) = tiny.glob("build/mutants/*/reached.jsonl")
    tests = {row["tests"]: row for row in map(json.loads, reached.read_text("utf-8").splitlines())}
    others, module = tests["tests/test_others.py"], "packages/dewmark/src/dewmark/policy.py"
    credited = {line: others["groups"][group] for line, group in others["lines"][module].items()}
    assert credited == {"6": None, "9": [1, 2]}  # a fixture's line is credited to every test of the file
    assert reached.read_text("utf-8").count("test_that_fails_without_a_fault") == 1

    results.write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows[:-1]), "utf-8"
    )  # stopped before the last
    *kept, last = made_again()[1]
    assert kept == rows[:-1]
    assert last["name"] == rows[-1]["name"]


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a <= b", ["a < b"]),
        ("a is not b", ["a is b"]),
        ("a and b and c", ["a or b and c", "a and b or c"]),
        ("-a * b", ["-a / b", "(a) * b"]),
        ("x[1:-1]", ["x[:-1]", "x[1:]", "x[2:-1]", "x[1:-2]"]),
        ("x = min(a, key=f)", ["x = max(a, key=f)", "x = min(a, **{})"]),
        ("x = sorted(a, b=True)", ["x = (a)", "x = sorted(a, **{})", "x = sorted(a, b=False)"]),
        ("[a for a in b if a]", ["[a for a in b if True]"]),
        ("if a: b.c = d", ["if (not (a)): b.c = d", "if True: b.c = d", "if a: pass"]),
        ("'%s' % a + 'b'", []),
        ("raise ValueError(f'{a + 1} is more than {9}')", ["pass"]),
    ],
)
def test_the_changes_of_a_line(source, changed):
    assert [each.apply(source.encode()).decode() for each in mutants("a.py", source.encode())] == changed


def test_what_no_test_should_notice_is_left_out():
    source = '''
"""A module of 1 line."""
if TYPE_CHECKING:
    N = 1
CHUNK = 1 << 20
a: Literal[1]
@cache(size=1)
def f(a: Literal[1]) -> Literal[2]:
    """Return 1."""
    log.info("%d", a + 1)
    warnings.warn("a" * 2, stacklevel=2)
    return open(a, encoding="utf-8", buffering=1)
class A:
    def __repr__(self):
        return 1 + 1
'''
    assert mutants("a.py", source.encode()) == []


def test_a_fault_keeps_its_name_under_edits_elsewhere():
    before = {each.name for each in mutants("a.py", MODULE.encode())}
    assert {each.name for each in mutants("a.py", b"import os\nA = b.c\n" + MODULE.encode())} == before


def test_a_small_sample_is_part_of_a_large_one(tiny):
    small, large = (run.sample(tiny, size)["policy"] for size in (4, 100))
    assert len(small) == 1 < len(large) == 8
    assert small == large[:1]
