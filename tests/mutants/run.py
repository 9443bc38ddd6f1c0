"""Plant a fixed sample of small faults, one at a time, and report which tests notice them.

    make mutants                              # 300 faults; stopped and started again, it goes on
    make mutants MUTANTS=30 AREA="dew core"   # two parts of a sample of 30, which is a part of the 300
    make mutants COMMIT=v0.1.0                # the sources and tests of another commit
    make mutants ALSO="contract serve"        # what the fast set leaves meets further sets

Every process works in a private clone of the commit, by default of the checkout with its changes to tracked
files. First each test file runs once with probes, which tell the tests that reach a line. Then a fault meets
the test file that mirrors its module, and after it the tests that reach its line, the fastest first and at
most `BUDGET` seconds of them. Tests run in processes that are forked from one that has imported the heavy
libraries. A test that fails without the fault, too, notices nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import pytest
from tests.mutants.edits import Mutant, mutants

ROOT = Path(__file__).parents[2]
CORE, DESK = "packages/dewmark/src/dewmark", "packages/dewmark-desk/src/dewmark_desk"
AUDIT = "packages/dewmark-audit/src/dewmark_audit"
DESK_AREAS = (
    "admission",
    "fair_pool",
    "verdicts",
    "tenants",
    "api_tokens",
    "signing",
    "documents",
    "generation",
)
AREAS = {
    **{name: f"{CORE}/{name}/**/*.py" for name in ("dew", "stats", "core", "text", "batch")},
    **{name: f"{CORE}/{name}.py" for name in ("verdict", "detect", "passages", "mark", "sampling")},
    **{name: f"{CORE}/{name}.py" for name in ("storage", "policy")},
    "audit": f"{AUDIT}/**/*.py",
    **{name: f"{DESK}/{name}.py" for name in DESK_AREAS},
}
LEFT_OUT = "/batch/ray_runner.py"  # it runs on a Ray cluster only
SETS = {"fast": (), "contract": ("-m", "contract"), "serve": ("-m", "serve")}
HEAVY = ("torch", "transformers.generation", "safetensors.torch", "scipy.stats", "scipy.optimize",
         "hypothesis", "fastapi", "starlette.testclient", "httpx", "sqlalchemy", "typer",
         "rich.console")  # fmt: skip
BUDGET = 45.0  # seconds of CPU; estimated from a part, 300 faults take 60 to 80 minutes on two idle cores
MEMORY = 8 << 30

Row = dict  # a line of a file of results
Work = Callable[[Path], Callable[..., tuple[Row, str]]]  # a tree -> a task -> its row and a message


def main(
    size: int, areas: Collection[str], sets: list[str], jobs: int, commit: str, only: str, report: str
) -> None:
    """Run what is not yet known of a sample, and write the report."""
    identity = ("-c", "user.name=mutants", "-c", "user.email=mutants@localhost")
    commit = git("rev-parse", f"{commit or git(*identity, 'stash', 'create') or 'HEAD'}^{{commit}}")
    folder = ROOT / "build" / "mutants" / git("rev-parse", f"{commit}^{{tree}}")[:12]
    folder.mkdir(parents=True, exist_ok=True)
    trees = [folder / f"tree-{number}" for number in range(jobs)]
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
        git("clone", "-q", "--shared", "--no-checkout", str(ROOT), str(tree))
        git("checkout", "-q", "--detach", commit, tree=tree)
    chosen = {area: group for area, group in sample(trees[0], size).items() if not areas or area in areas}
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    reached = folder / "reached.jsonl"
    rows = read(reached)
    files = [(name, file) for name in sets for file in test_files(trees[0], name, only)]
    if todo := [each for each in files if each not in {(row["set"], row["tests"]) for row in rows}]:
        say(f"which test reaches which line: {len(todo)} test files")
        for tree in trees:
            for path in (path for pattern in AREAS.values() for path in tree.glob(pattern)):
                path.write_text(add_probes(path.relative_to(tree).as_posix(), path.read_bytes()), "utf-8")
        share_out(todo, trees, lambda tree: lambda task: reach(tree, *task), reached)
        for tree in trees:
            git("checkout", "-q", "-f", "--detach", commit, tree=tree)
        rows = read(reached)
    rows = [row for row in rows if (row["set"], row["tests"]) in files]

    some = hashlib.sha256(only.encode()).hexdigest()[:12]
    results = folder / (f"results-{some}.jsonl" if only else "results.jsonl")
    before = {row["name"]: row for row in read(results)}
    faults = [
        each for group in chosen.values() for each in group if not is_known(before.get(each.name), sets)
    ]
    say(f"{len(faults)} faults")
    share_out(faults, trees, lambda tree: Examiner(tree, sets, rows, before).examine, results)
    done = {row["name"]: row for row in read(results)}
    text = page(chosen, done, sets, trees[0], commit, len(rows) if only else 0)
    say(text)
    if report:
        Path(report).write_text(text, "utf-8")


def is_known(row: Row | None, sets: list[str]) -> bool:
    """A fault was noticed, or none of the sets notices it."""
    return row is not None and (row["noticed"] is not None or {*sets} <= {*row["sets"]})


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def git(*arguments: str, tree: Path | None = None) -> str:
    done = subprocess.run(
        ["git", "-C", tree or ROOT, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def read(file: Path) -> list[Row]:
    """The complete lines of a file of results."""
    lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def share_out(tasks: list, trees: list[Path], work: Work, file: Path) -> None:
    """Let one process per tree take tasks from a common queue and append a row for each to a file."""
    queue, feed = os.pipe()
    os.write(feed, b"".join(index.to_bytes(4, "big") for index in range(len(tasks))))
    os.close(feed)
    counter, began, children = multiprocessing.Value("i", 0), time.monotonic(), []
    for tree in trees:
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            do = work(tree)
            while index := os.read(queue, 4):
                row, message = do(tasks[int.from_bytes(index, "big")])
                with counter.get_lock(), file.open("a", encoding="utf-8") as out:  # a row is many writes
                    out.write(json.dumps(row) + "\n")
                    counter.value += 1
                    done = counter.value
                left = (time.monotonic() - began) / done * (len(tasks) - done) / 60
                say(f"{done:4}/{len(tasks)} {message}, {row['seconds']:.1f} s of CPU; {left:.0f} min left")
            code = 0
        except Exception:  # noqa: BLE001  shown, and the process ends
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(queue)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        codes = [os.waitpid(child, 0)[1] for child in children]
    except KeyboardInterrupt:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        codes = [1]
    if any(codes):
        sys.exit("stopped: the same command goes on from here")


# --- The sample ---


def sample(tree: Path, size: int) -> dict[str, list[Mutant]]:
    """The faults by area: half of them shared out evenly, half by size; in an area every operator in turn."""
    queues: dict[str, list[Mutant]] = {}
    sources: dict[str, bytes] = {}
    for area, pattern in AREAS.items():
        groups: dict[str, list[Mutant]] = defaultdict(list)
        for path in sorted(tree.glob(pattern)):
            file = path.relative_to(tree).as_posix()
            sources[file] = path.read_bytes()
            for mutant in mutants(file, sources[file]) if not file.endswith(LEFT_OUT) else ():
                groups[mutant.operator].append(mutant)
        ranks = [
            pair for group in groups.values() for pair in enumerate(sorted(group, key=lambda each: each.name))
        ]
        queues[area] = [mutant for _, mutant in sorted(ranks, key=lambda pair: (pair[0], pair[1].name))]
    least, total = max(size // (2 * len(queues)), 1), sum(map(len, queues.values()))
    spare = max(size - least * len(queues), 0)
    shares = {area: least + spare * len(queue) / total for area, queue in queues.items()}
    counts = {area: int(share) for area, share in shares.items()}
    by_rest = sorted(shares, key=lambda area: counts[area] - shares[area])
    for area in by_rest[: max(size - sum(counts.values()), 0)]:
        counts[area] += 1
    fit = {
        area: (each for each in queue if each.is_another_program(sources[each.file]))
        for area, queue in queues.items()
    }
    return {area: [each for each, _ in zip(fit[area], range(counts[area]), strict=False)] for area in queues}


def mirror(tree: Path, file: str) -> str | None:
    """The test file beside ``src`` that has a module's name and place."""
    package, _, inside = file.partition("/src/")
    place = Path(inside.partition("/")[2])
    test = Path(package, "tests", "desk" if file.startswith(DESK) else "", place.parent, f"test_{place.name}")
    return test.as_posix() if (tree / test).exists() else None


def test_files(tree: Path, name: str, only: str) -> list[str]:
    """The test files of a set, the largest first so that no process is left alone with one."""
    files = [*tree.glob("packages/*/tests/**/test_*.py"), *tree.glob("tests/**/test_*.py")]
    files = [each for each in files if not SETS[name] or f"mark.{name}" in each.read_text("utf-8")]
    names = [
        each.relative_to(tree).as_posix() for each in sorted(files, key=lambda each: -each.stat().st_size)
    ]
    return [each for each in names if not only or any(part in each for part in only.split())]


# --- Tests in a forked process ---


class Watch:
    """A plugin that runs only the wanted tests, and notes what each costs and which failed first."""

    def __init__(self, wanted: dict[str, int] | None, notes: Path, forget: Callable[[], None] | None) -> None:
        self.wanted, self.notes, self.forget = wanted, notes, forget
        self.found: Row = {"costs": {}, "failed": None}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.wanted is not None:
            wanted = self.wanted
            items[:] = sorted(
                (each for each in items if each.nodeid in wanted), key=lambda each: wanted[each.nodeid]
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        if self.forget is not None:
            self.forget()
        result = yield
        self.found["costs"][item.nodeid] = round(sum(os.times()[:4]) - before, 3)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.found["failed"] = self.found["failed"] or report.nodeid

    def pytest_sessionfinish(self) -> None:
        self.notes.write_text(json.dumps(self.found), "utf-8")


def run_tests(tree: Path, files: Iterable[str], options: Iterable[str], expected: float,
              wanted: dict[str, int] | None = None, probes: Path | None = None) -> Row:  # fmt: skip
    """Run tests in a forked process with limits on time and memory: their costs, and the first that failed.

    ``failed`` is a test, "import" or "time", or None.
    """
    scratch = tree.with_name(f"{tree.name}-scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            enter(tree, scratch, int(30 + 5 * expected), probes)
            watch = Watch(
                wanted, scratch / "notes", importlib.import_module("mutant_probes").forget if probes else None
            )
            options = [
                "-q",
                "-p",
                "no:cacheprovider",
                "--hypothesis-seed=0",
                f"--basetemp={scratch}/tests",
                *options,
            ]
            code = int(pytest.main([*options, *([] if probes else ["-x"]), *files], plugins=[watch]))
            package = sys.modules.get("dewmark")
            if package is not None and not str(package.__file__).startswith(f"{tree}/"):
                code = 71
        except BaseException:  # noqa: BLE001  the child must end here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    late, deadline = False, time.monotonic() + 120 + 15 * expected
    try:
        while not (ended := os.wait4(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline and not late:
                late = True
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what the tests left running
    code, notes = os.waitstatus_to_exitcode(ended[1]), scratch / "notes"
    if code in (70, 71):
        raise RuntimeError(f"the tests did not run in {tree}; their output is in {scratch}/output")
    found: Row = json.loads(notes.read_text("utf-8")) if notes.exists() else {"costs": {}, "failed": None}
    failed = None if code in (0, 5) else found["failed"] or ("import" if code > 0 else "time")
    return {**found, "failed": "time" if late else failed, "seconds": ended[2].ru_utime + ended[2].ru_stime}


def enter(tree: Path, scratch: Path, seconds: int, probes: Path | None) -> None:
    """Make this process one that works in a tree: its folder, output, limits and imports."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # a busy machine does not change it
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    folders = [str(each) for each in sorted((tree / "packages").glob("*/src"))]
    folders += [str(probes.parent)] if probes else []
    own = {str(each) for each in (ROOT, *ROOT.glob("packages/*"), *ROOT.glob("packages/*/src"))}
    sys.path[:] = folders + [each for each in sys.path if str(Path(each).resolve()) not in own]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    os.environ |= {"PYTHONPATH": ":".join(folders), "TMPDIR": str(scratch), "MUTANT_PROBES": str(probes),
                   "HYPOTHESIS_STORAGE_DIRECTORY": f"{scratch}/hypothesis"}  # fmt: skip
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # only a changed module is compiled again


# --- Which test reaches which line ---

PROBES = """
import os
_seen, _notes = set(), os.open(os.environ["MUTANT_PROBES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
forget = _seen.clear
def reached(place):
    if place not in _seen:
        _seen.add(place)
        os.write(_notes, f"{place}\\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\\n".encode())
"""


def add_probes(file: str, source: bytes) -> str:
    """A module that notes each statement of its functions when it is reached."""
    tree = ast.parse(source)

    def visit(node: ast.AST, inside: bool) -> None:
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)
        for field in ("body", "orelse", "finalbody") if inside else ():
            if isinstance(body := getattr(node, field, None), list):
                calls = (ast.parse(f"mutant_reached('{file}:{each.lineno}')").body[0] for each in body)
                is_text = [
                    isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in body
                ]
                pairs = zip(body, calls, is_text, strict=True)
                setattr(
                    node,
                    field,
                    [part for each, call, text in pairs for part in ([] if text else [call]) + [each]],
                )

    visit(tree, False)
    head = [isinstance(each, ast.Expr) or getattr(each, "module", "") == "__future__" for each in tree.body]
    place = head.index(False) if False in head else len(head)
    tree.body.insert(place, ast.parse("from mutant_probes import reached as mutant_reached").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def reach(tree: Path, name: str, file: str) -> tuple[Row, str]:
    """Run one test file with probes: what its tests cost, and which of them reach a line."""
    probes = tree.with_name(f"{tree.name}-probes") / "reached.tsv"
    shutil.rmtree(probes.parent, ignore_errors=True)
    probes.parent.mkdir()
    probes.with_name("mutant_probes.py").write_text(PROBES, "utf-8")
    done = run_tests(tree, [file], SETS[name], 600, probes=probes)
    places = {test: place for place, test in enumerate(done["costs"])}
    lines: dict[str, set[int] | None] = {}
    for row in set(probes.read_text("utf-8").splitlines()) if probes.exists() else ():
        line, _, test = row.partition("\t")
        test, _, phase = test.rpartition(" ")
        if phase != "(call)":
            # What a fixture does, or the import of the test file, other tests of the file may rely on.
            lines[line] = None
        elif (known := lines.setdefault(line, set())) is not None and test in places:
            known.add(places[test])
    row = {"set": name, "tests": file, "seconds": done["seconds"], "costs": done["costs"]}
    return {**row, **by_group(lines)}, f"{file}: {len(done['costs'])} tests"


def by_group(lines: dict[str, set[int] | None]) -> Row:
    """The same with each group of tests written once: ``lines`` has by module and line a place in ``groups``.

    A test is its place among the file's ``costs``; the group None is all tests of the file.
    """
    groups: dict[tuple[int, ...] | None, int] = {}
    modules: dict[str, dict[str, int]] = defaultdict(dict)
    for place, tests in sorted(lines.items()):
        module, _, line = place.rpartition(":")
        group = None if tests is None else tuple(sorted(tests))
        modules[module][line] = groups.setdefault(group, len(groups))
    return {"groups": list(groups), "lines": modules}


# --- One fault ---


class Examiner:
    """One process's tree, what the probes told, and what is learned about tests that fail without a fault."""

    def __init__(self, tree: Path, sets: list[str], rows: list[Row], before: dict[str, Row]) -> None:
        self.tree, self.before = tree, before
        self.costs: dict[str, dict[str, float]] = {name: {} for name in sets}
        for row in rows:
            self.costs[row["set"]] |= row["costs"]
        # The first test of a file pays for what its tests share; whichever test runs alone pays it again.
        self.opening = {row["tests"]: next(iter(row["costs"].values()), 0.0) for row in rows}
        self.rows = rows
        self.sound: set[frozenset[str]] = set()
        self.unsound: set[str] = set()

    def reaching(self, mutant: Mutant, name: str) -> list[str]:
        """The tests that reach a fault, the fastest first; outside of functions those that reach its file."""
        reaching: set[str] = set()
        for row in (row for row in self.rows if row["set"] == name and mutant.file in row["lines"]):
            lines, tests = row["lines"][mutant.file], list(row["costs"])
            groups = {lines.get(str(mutant.statement))} if mutant.statement else {*lines.values()}
            for places in (row["groups"][group] for group in groups - {None}):
                reaching.update(tests if places is None else (tests[place] for place in places))
        costs = self.costs[name]
        return sorted(reaching, key=lambda test: (self.opening[test.partition("::")[0]] + costs[test], test))

    def examine(self, mutant: Mutant) -> tuple[Row, str]:
        """The set of tests that notices a fault, or None, and what it cost to know."""
        row: Row = {"name": mutant.name, "noticed": None, "by": None, "seconds": 0.0, "ran": 0, "left": 0}
        row |= {"sets": [], **self.before.get(mutant.name, {})}
        own = mirror(self.tree, mutant.file)
        reaching = {name: self.reaching(mutant, name) for name in self.costs}
        module = [test for test in self.costs["fast"] if own and test.startswith(f"{own}::")]
        module.sort(key=lambda test: test not in reaching["fast"])
        for stage, tests in {"module": module, **reaching}.items():
            if stage in row["sets"]:
                continue
            name, spent, chosen = "fast" if stage == "module" else stage, 0.0, []
            opened: set[str] = set()
            for test in tests if stage == "module" else [test for test in tests if test not in module]:
                file = test.partition("::")[0]
                price = self.costs[name][test] + (0.0 if file in opened else self.opening[file])
                if stage == "module" or spent + price <= BUDGET:
                    chosen.append(test)
                    opened.add(file)
                    spent += price
                else:
                    row["left"] += 1
            row["sets"] = [*row["sets"], stage]
            row["by"] = self.failing(mutant, chosen, name, row)
            if row["by"] is not None:
                row["noticed"] = stage
                break
        verdict = f"noticed by {row['noticed']}" if row["noticed"] else "NOT noticed"
        return row, f"{mutant.file.partition('/src/')[2]}:{mutant.line} {mutant.operator}: {verdict}"

    def failing(self, mutant: Mutant, tests: list[str], name: str, row: Row) -> str | None:
        """The first of the tests that a fault fails, and that passes without it."""
        while tests := [test for test in tests if test not in self.unsound]:
            found = self.run(tests, name, row, mutant)
            if found is None:
                row["ran"] += len(tests)
                return None
            suspects = [found] if found in tests else tests
            if frozenset(suspects) in self.sound:
                return found
            if (without := self.run(suspects, name, row)) is None:
                self.sound.add(frozenset(suspects))
                return found
            self.unsound.update({without} & {*suspects} or suspects)
        return None

    def run(self, tests: list[str], name: str, row: Row, mutant: Mutant | None = None) -> str | None:
        """The first test that fails, the files in the order of their costs."""
        files: Counter[str] = Counter()
        for test in tests:
            files[test.partition("::")[0]] += self.costs[name][test]
        order = sorted(files, key=lambda file: (files[file], file))
        tests = sorted(tests, key=lambda test: order.index(test.partition("::")[0]))
        wanted = {test: place for place, test in enumerate(tests)}
        expected = files.total() + sum(self.opening[file] for file in order)
        with planted(self.tree, mutant):
            done = run_tests(self.tree, order, SETS[name], expected, wanted)
        row["seconds"] = round(row["seconds"] + done["seconds"], 1)
        return done["failed"]


@contextlib.contextmanager
def planted(tree: Path, mutant: Mutant | None) -> Iterator[None]:
    """A tree with a fault, which is taken back at the end."""
    if mutant is None:
        yield
        return
    path = tree / mutant.file
    source, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_bytes(mutant.apply(source))
        compiled.unlink(missing_ok=True)  # a module of the same second and size would pass for the same
        yield
    finally:
        path.write_bytes(source)
        compiled.unlink(missing_ok=True)


# --- The report ---

HEAD = """# Mutants

`make mutants` plants small faults, one at a time, and runs the tests: a fixed sample of changed operators,
numbers, conditions, arguments and slices and of dropped statements, in the modules that mark, detect, judge
and serve. A fault meets the test file that mirrors its module, then those tests of the fast set that reach
its line: the fastest first, at most {budget:.0f} seconds of them{more}. A fault that nothing notices is not
always a gap: some change no result.

The tool wrote this page about commit {commit}. It planted {count} faults; the tests took {minutes:.0f} CPU
minutes.{notes}

| area | faults | noticed by the module's tests | {names} | by none | noticed |
| --- | --: | --: | {dashes} | --: | --: |
"""


MISSED = """
## Noticed by none

| place | change | old | new | tests |
| --- | --- | --- | --- | --: |
"""


def page(
    chosen: dict[str, list[Mutant]], rows: dict[str, Row], sets: list[str], tree: Path, commit: str, some: int
) -> str:
    """The report."""
    known = {area: [each for each in group if each.name in rows] for area, group in chosen.items()}
    faults = [
        each for group in known.values() for each in sorted(group, key=lambda each: (each.file, each.start))
    ]
    missing = sum(map(len, chosen.values())) - len(faults)
    notes = f" {missing} faults have not been planted yet." if missing else ""
    notes += f" Of the test files, only {some} ran, so that other tests may notice more." if some else ""
    text = HEAD.format(
        budget=BUDGET, count=len(faults), commit=git("rev-parse", "--short", commit), notes=notes,
        minutes=sum(rows[each.name]["seconds"] for each in faults) / 60,
        dashes=" | ".join("--:" for _ in sets),
        names=" | ".join(f"by the {name} set" for name in sets),
        more="".join(f"; then those of the {name} set" for name in sets[1:]),
    )  # fmt: skip
    for area, group in {**known, "all": faults}.items():
        counts = Counter(rows[each.name]["noticed"] for each in group)
        cells = [area, len(group), *(counts[name] for name in ("module", *sets, None))]
        share = f"{1 - counts[None] / len(group):.0%}" if group else ""
        text += f"| {' | '.join(map(str, [*cells, share]))} |\n"
    missed = [each for each in faults if rows[each.name]["noticed"] is None]
    if missed:
        text += MISSED
    for each in missed:
        source, row = (tree / each.file).read_bytes(), rows[each.name]
        begin = max(source.rfind(b"\n", 0, each.start) + 1, each.start - 40)
        end = min(source.index(b"\n", each.end), each.end + 30)
        ends = (source[begin:end], source[begin : each.start] + each.new.encode() + source[each.end : end])
        old, new = (" ".join(each.decode(errors="ignore").split()).replace("|", "\\|") for each in ends)
        ran = f"{row['ran']} of {row['ran'] + row['left']}" if row["left"] else row["ran"]
        place = f"{each.file.partition('/src/')[2]}:{each.line}"
        text += f"| {place} | {each.operator} | `` {old} `` | `` {new} `` | {ran} |\n"
    alone = sorted({each.file.partition("/src/")[2] for each in faults if mirror(tree, each.file) is None})
    if alone:
        named = f"Without a test file of their own: {', '.join(f'`{each}`' for each in alone)}."
        text += f"\n{textwrap.fill(named, 118, break_long_words=False, break_on_hyphens=False)}\n"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=300, help="faults of the whole sample")
    parser.add_argument("--areas", nargs="*", choices=list(AREAS), default=[], help="only these parts of it")
    parser.add_argument(
        "--also", nargs="*", choices=list(SETS)[1:], default=[], help="sets after the fast one"
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds of tests beyond the module's own"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--commit", default="", help="the sources and tests of another commit")
    parser.add_argument("--only", default="", help="only test files with one of these words in their path")
    parser.add_argument("--report", default="", help="the page to write")
    given = parser.parse_args()
    BUDGET, sets = given.budget, ["fast", *given.also]
    main(given.size, given.areas, sets, given.jobs, given.commit, given.only, given.report)
