"""Plant faults in attn, one at a time, and see whether a test notices: `make mutants`.

The libraries are imported once; each fault gets a forked process of its own, into which an import
hook serves the changed source. No file is touched. Tests go by what they reach: a first pass runs
every test once and writes down the lines of attn that it comes by, so that a fault meets only the
tests that run its statement, those of the file's own name first, the quick before the slow.

A fault is killed when a test is red, when a test takes many times as long as it should, or when
the process dies. It is unreached when no test that is run here comes by its statement, and it has
survived when all that do stay green: it is then either known to change nothing (equivalents.toml
says why), or wants a test. Left out, and named in the table: tests of the book's pages and tools,
tests that start a process, tests that call torch.compile.
"""

import argparse
import contextlib
import doctest
import functools
import hashlib
import importlib.util
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from pathlib import Path

from faults import code_lines, faults, sample

HERE = Path(__file__).parent
NO_SPINE = {"plotting", "diagrams", "palette", "cells", "matrices"}  # what only draws
NO_TEST_OF_ATTN = {
    "test_benchmarks", "test_browser", "test_diagrams", "test_import", "test_mutation",
    "test_notebooks", "test_palette", "test_plotting", "test_practice", "test_repository",
    "test_site",
}  # fmt: skip
# Files whose tests have another name: a word of the file's path, and the words to look for.
ALSO = {
    "operands": "attention", "arguments": "checks", "checks": "arguments", "algebra": "masks",
    "layout": "masks spans", "rule": "masks", "rules": "masks", "kernels": "fused",
    "strips": "fused", "pairs": "fused", "unseen": "fused", "flex": "fused", "heads": "layer",
    "tiles": "blockwise", "online": "blockwise", "judge": "check", "arrays": "attention",
}  # fmt: skip
LIBRARIES = "numpy torch pytest hypothesis onnx torch.distributed torch.nn.attention.flex_attention"
OPTIONS = [
    "-x", "-q", "--rootdir=.", "-p", "no:cacheprovider",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
]  # fmt: skip
PATIENCE = 20, 10  # a test may take so many seconds, and so many times its own time, more
LOADING = 120  # seconds that importing and collecting one test file may take
MEMORY = 8 << 30  # bytes a fault may ask for, above what the libraries hold


# --- In a forked process: one run of pytest -------------------------------------------------------


class Hook(MetaPathFinder):
    """Serves one module from a given source instead of its file."""

    def __init__(self, name, path, source):
        self.name, self.path, self.source = name, str(path), source

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        folder = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=Loader(self), submodule_search_locations=folder
        )


class Loader(SourceFileLoader):
    def __init__(self, hook):
        super().__init__(hook.name, hook.path)
        self.hook = hook

    def get_code(self, fullname):
        return compile(self.hook.source, self.path, "exec", dont_inherit=True)


class Chosen:
    """A plugin of pytest: runs the chosen tests in the given order and tells how they went."""

    def __init__(self, tell, chosen):
        self.tell, self.order = tell, {test: place for place, test in enumerate(chosen)}

    def pytest_collection_modifyitems(self, items):
        found = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(found, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid):
        self.tell(start=nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.tell(red=report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.tell(red=f"collecting {report.nodeid or 'the tests'}")


def follower(lines):
    """What Python calls for each line of a function: it adds the line's number."""

    def follow(frame, event, arg):
        lines.add(frame.f_lineno)
        return follow

    return follow


class Reach:
    """A plugin of pytest: writes down which lines of the package each test comes by."""

    def __init__(self, root, package):
        files = [path.relative_to(root) for path in modules(root, package)]
        self.lines = {str(file): set() for file in files}
        self.followers = {str(root / file): follower(self.lines[str(file)]) for file in files}
        self.shared, self.tests = {}, {}

    def start(self):
        threading.settrace(self.enter)
        sys.settrace(self.enter)

    def enter(self, frame, event, arg):
        follow = self.followers.get(frame.f_code.co_filename)
        return follow and follow(frame, event, arg)

    def take(self, into):
        for name, lines in self.lines.items():
            if lines:
                into.setdefault(name, set()).update(lines)
                lines.clear()

    def pytest_runtest_logstart(self, nodeid):
        self.take(self.shared)  # collecting, or what a fixture of the file tore down
        self.tests[nodeid] = {"seconds": 0.0, "outcome": "passed", "reach": {}}
        self.began = time.process_time()  # other work on the machine does not count

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":  # a fixture may serve the whole file
            here = {}
            self.take(here)
            for into in (self.shared, self.tests[report.nodeid]["reach"]):
                for name, lines in here.items():
                    into.setdefault(name, set()).update(lines)
        test = self.tests[report.nodeid]
        self.take(test["reach"])
        test["seconds"] = round(time.process_time() - self.began, 4)
        if report.outcome != "passed":
            test["outcome"] = report.outcome
            test["why"] = str(report.longrepr)[-300:]


def pytest_main(tests, *plugins, stop=True):
    import pytest

    return int(pytest.main([*(OPTIONS if stop else OPTIONS[1:]), *tests], plugins=list(plugins)))


def refuse_processes_and_compilers():
    """A test that starts a process would not meet the fault; one that compiles takes minutes."""
    import multiprocessing.process

    import pytest

    def refuse(why):
        def call(*args, **options):
            pytest.skip(f"left out: {why}")

        return call

    subprocess.Popen.__init__ = refuse("starts a process")
    multiprocessing.process.BaseProcess.start = refuse("starts a process")
    if "torch" in sys.modules:
        sys.modules["torch"].compile = refuse("compiles")


def enter_child(root):
    """What every forked process does first: a group of its own, no output, no bytecode written."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(root)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    refuse_processes_and_compilers()


def in_child(root, work):
    """Fork; `work(tell)` runs in the child. Return its id and the pipe that tells."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, out
    os.close(out)
    pipe = os.fdopen(into, "w", buffering=1)
    code = 1
    try:
        enter_child(root)
        work(lambda **event: print(json.dumps(event), file=pipe, flush=True))
        code = 0
    except BaseException as error:
        print(json.dumps({"broken": repr(error)}), file=pipe, flush=True)
    finally:
        os._exit(code)


def measure(root, package, test_file):
    """What one test file reaches, as work for a child."""

    def work(tell):
        reach = Reach(root, package)
        reach.start()
        code = pytest_main([test_file], reach, stop=False)
        sys.settrace(None)
        reach.take(reach.shared)
        tests = {
            name: test | {"reach": {file: packed(lines) for file, lines in test["reach"].items()}}
            for name, test in reach.tests.items()
        }
        shared = {file: packed(lines) for file, lines in reach.shared.items()}
        tell(code=code, shared=shared, tests=tests)

    return work


def attack(root, package, fault, plan, doctests):
    """One fault and the tests that it meets, as work for a child."""

    def work(tell):
        path = root / fault.file
        source = path.read_text(encoding="utf-8")
        name = module_name(fault.file)
        sys.dont_write_bytecode = True
        sys.meta_path.insert(0, Hook(name, path, fault.planted(source)))
        for test_file, chosen in plan:
            tell(start=f"collecting {test_file}")
            code = pytest_main([test_file], Chosen(tell, chosen))
            if code not in (0, 5):  # 5: a name has changed, and none was found
                tell(red=f"pytest {test_file} ended with {code}")
                return
        if doctests:
            tell(start=f"doctests of {name}")
            module = importlib.import_module(name)
            if doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed:
                tell(red=f"doctests of {name}")
                return
        tell(green=True)

    return work


def doctests_pass(root, file):
    def work(tell):
        module = importlib.import_module(module_name(file))
        tested = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        tell(green=tested.attempted > 0 and not tested.failed)

    return work


def packed(lines):
    """Line numbers as the bits of one number in base 16."""
    return hex(sum(1 << line for line in lines))


# --- In the parent: what is run, and what comes of it ---------------------------------------------


def modules(root, package):
    return sorted((root / package).rglob("*.py"))


def module_name(file):
    parts = Path(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def targets(root, package):
    """The files that faults are planted in, with their sources."""
    found = {}
    for path in modules(root, package):
        file = path.relative_to(root)
        if not NO_SPINE & set(file.with_suffix("").parts):
            found[file.as_posix()] = path.read_text(encoding="utf-8")
    return found


def test_files(root):
    paths = sorted((root / "tests").glob("test_*.py"))
    return [f"tests/{path.name}" for path in paths if path.stem not in NO_TEST_OF_ATTN]


def digest(root, package):
    """One word for everything that the first pass depends on."""
    paths = [*modules(root, package), *sorted((root / "tests").rglob("*.py"))]
    parts = [path.name.encode() + path.read_bytes() for path in paths]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def run_children(tasks, jobs, loading, limit, done):
    """Run each (key, root, work) in a child of its own, `jobs` at a time.

    Then comes `done(key, events, ending, seconds of processor time)`. A child has `loading` seconds
    until it tells its first event, and `limit(event)` from any event to the next.
    """
    waiting, running = iter(tasks), {}

    def start():
        task = next(waiting, None)
        if task is not None:
            key, root, work = task
            child, pipe = in_child(root, work)
            running[pipe] = [key, child, b"", [], time.monotonic() + loading]

    def end(pipe, late):
        key, child, _, events, _ = running.pop(pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        os.close(pipe)
        start()
        ending = "late" if late else signal.Signals(status & 127).name if status & 127 else "ended"
        done(key, events, ending, used.ru_utime + used.ru_stime)

    try:
        for _ in range(jobs):
            start()
        while running:
            soonest = min(state[4] for state in running.values())
            ready, _, _ = select.select(list(running), [], [], max(0, soonest - time.monotonic()))
            for pipe in ready:
                state = running[pipe]
                data = os.read(pipe, 1 << 20)
                if not data:
                    end(pipe, late=False)
                    continue
                *lines, state[2] = (state[2] + data).split(b"\n")
                for line in lines:
                    state[3].append(json.loads(line))
                    state[4] = time.monotonic() + limit(state[3][-1])
            for pipe in [pipe for pipe in running if pipe not in ready]:
                if running[pipe][4] < time.monotonic():
                    end(pipe, late=True)
    finally:
        for pipe in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running[pipe][1], signal.SIGKILL)


def first_pass(root, package, jobs, cache, say):
    """What each test reaches; from the cache, if nothing has changed."""
    kept = {"digest": digest(root, package), "files": {}, "doctests": {}}
    if cache.exists() and (old := json.loads(cache.read_text()))["digest"] == kept["digest"]:
        kept = old

    def done(key, events, ending, seconds):
        kind, name = key
        if kind == "doctests":
            kept["doctests"][name] = bool(events and events[-1].get("green"))
        elif not events or "tests" not in events[-1]:
            raise SystemExit(f"{name} could not be run without a fault: {events[-1:]} {ending}")
        else:
            kept["files"][name] = events[-1]
            say(f"first pass: {name}, {len(events[-1]['tests'])} tests, {seconds:.0f} s")
        write(cache, kept)

    tasks = [("files", name, measure(root, package, name)) for name in test_files(root)]
    tasks += [("doctests", file, doctests_pass(root, file)) for file in targets(root, package)]
    tasks = [((kind, name), root, work) for kind, name, work in tasks if name not in kept[kind]]
    run_children(tasks, jobs, 3600, lambda event: 3600, done)
    return kept


def left_out(reach):
    """The tests that no fault meets, under the reason; a red one is no judge of anything."""
    found = {}
    for file in reach["files"].values():
        for name, test in file["tests"].items():
            if test["outcome"] != "passed":
                why = re.search(r"left out: [\w ]+", test["why"])
                found.setdefault(why[0] if why else test["outcome"], []).append(name)
    return found


def kinship(file, test_file):
    """How many words the name of a test file shares with the path of a file of the package."""
    words = set(re.findall(r"[a-z]+", file.removesuffix(".py"))) - {"attn", "init"}
    words |= {also for word in words for also in ALSO.get(word, "").split()}
    return len(words & set(Path(test_file).stem.split("_")[1:]))


def plan_for(fault, reach, budget):
    """The tests that meet a fault, file by file: kin first, then cheap; and their number in all."""
    first, last = fault.reach
    statement = sum(1 << line for line in range(first, last + 1))

    def meets(lines, bits):
        return int(lines.get(fault.file, "0x0"), 16) & bits != 0

    groups = []
    for name, file in reach["files"].items():
        kin = kinship(fault.file, name)
        if fault.on_import:  # every test meets it: asked are those that call a function of the file
            bits, whole_file = -1, kin > 0
        else:  # what ran while the file was collected or in a fixture, all its tests depend on
            bits, whole_file = statement, meets(file["shared"], statement)
        tests = sorted(
            (test["seconds"], test_name)
            for test_name, test in file["tests"].items()
            if test["outcome"] == "passed" and (whole_file or meets(test["reach"], bits))
        )
        if tests:
            groups.append((-kin, sum(seconds for seconds, _ in tests), name, tests))
    plan, spent = [], 0.0
    for _, _, name, tests in sorted(groups):
        chosen = []
        for seconds, test in tests:
            if spent + seconds <= budget:
                chosen.append(test)
                spent += seconds
        if chosen:
            plan.append((name, chosen))
    return plan, sum(len(tests) for *_, tests in groups)


def verdict(events, ending):
    """What became of a fault, and by which test."""
    red = [event["red"] for event in events if "red" in event]
    starts = [event["start"] for event in events if "start" in event]
    at = starts[-1] if starts else "loading"
    if red:
        return "killed", red[0]
    if ending == "late":
        return "timed out", at
    if events and events[-1].get("green"):
        return "survived", None
    if events and "broken" in events[-1]:
        return "killed", f"{at}: {events[-1]['broken']}"
    return "killed", f"{at}: the process ended ({ending})"


def known_equivalents(path):
    """(file, lines as they are, lines with the fault) -> why nothing changes."""
    if not path.exists():
        return {}
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    return {(row["file"], row["was"], row["becomes"]): row["reason"] for row in rows}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
    new.replace(path)


def draw(sources, count, seed):
    """The faults of this run; those that Python would not compile, or reads as before, are none."""
    found = {file: list(faults(file, source)) for file, source in sources.items()}
    weights = {file: len(code_lines(sources[file])) for file, some in found.items() if some}
    return sample(found, weights, min(count, sum(map(len, found.values()))), seed)


def campaign(root, package, drawn, reach, *, budget, jobs, out, meta, again=False, say=print):
    """Plant every fault that has no result yet, and write the results after each."""
    names = ("file", "line", "kind", "was", "becomes", "start", "new")
    keys = [tuple(getattr(fault, name) for name in names) for fault in drawn]
    results = {}
    if out.exists():
        for row in json.loads(out.read_text(encoding="utf-8"))["faults"]:
            if not (again and row["outcome"] in ("survived", "unreached")):
                results[tuple(row[name] for name in names)] = row
    results = {key: results[key] for key in keys if key in results}
    equivalents = known_equivalents(root / "mutation" / "equivalents.toml")
    times = {
        name: test["seconds"]
        for file in reach["files"].values()
        for name, test in file["tests"].items()
    }
    began, before, launched = time.monotonic(), len(results), {}

    def limit(event):
        name = event.get("start", "")
        loading = LOADING if name.startswith("collecting") else 0
        return loading + PATIENCE[0] + PATIENCE[1] * times.get(name, 0)

    def tasks():
        for key, fault in zip(keys, drawn, strict=True):
            if key in results:
                continue
            plan, reaching = plan_for(fault, reach, budget)
            chosen = sum(len(tests) for _, tests in plan)
            launched[key] = chosen, reaching
            yield key, root, attack(root, package, fault, plan, reach["doctests"][fault.file])

    def save():
        rows = [results[key] for key in keys if key in results]
        write(out, {**meta, "left out": left_out(reach), "faults": rows})

    def done(key, events, ending, seconds):
        outcome, by = verdict(events, ending)
        chosen, reaching = launched[key]
        if outcome == "survived" and not reaching:
            outcome = "unreached"
        row = dict(zip(names, key, strict=True))
        row |= {"outcome": outcome, "by": by, "seconds": round(seconds, 1)}
        row |= {"tests": chosen, "reaching": reaching}
        results[key] = row
        save()
        each = (time.monotonic() - began) / (len(results) - before)
        count = Counter(row["outcome"] for row in results.values())
        told = " · ".join(f"{outcome} {count[outcome]}" for outcome in OUTCOMES if count[outcome])
        left = each * (len(keys) - len(results)) / 60
        say(f"[{len(results)}/{len(keys)}] {told} · {each:.1f} s each · {left:.0f} min left")

    run_children(tasks(), jobs, LOADING, limit, done)
    for row in results.values():
        why = equivalents.get((row["file"], row["was"], row["becomes"]))
        if row["outcome"] == "survived" and why:
            row |= {"outcome": "equivalent", "reason": why}
    save()
    return [results[key] for key in keys]


OUTCOMES = ("killed", "timed out", "survived", "unreached", "equivalent")


def table(rows, kept_out):
    """The results per file, the survivors one by one, and what was left out, as text."""
    lines = [f"{'file':36}{'planted':>9}" + "".join(f"{name:>12}" for name in OUTCOMES)]
    files = sorted({row["file"] for row in rows})
    for file in [*files, "all"]:
        count = Counter(row["outcome"] for row in rows if file in ("all", row["file"]))
        numbers = "".join(f"{count[name]:>12}" for name in OUTCOMES)
        lines.append(f"{file:36}{sum(count.values()):>9}{numbers}")
    seconds = sum(row["seconds"] for row in rows) / max(len(rows), 1)
    lines.append(f"\n{seconds:.1f} seconds of processor time for each fault")
    lines.append("\nSurvivors (tests run, of those that reach the statement):")
    for row in rows:
        if row["outcome"] in ("survived", "unreached"):
            asked = f"{row['tests']}/{row['reaching']}"
            lines.append(f"{row['file']}:{row['line']} {row['kind']} ({asked})")
            lines += [f"    - {line}" for line in row["was"].splitlines()]
            lines += [f"    + {line}" for line in row["becomes"].splitlines()]
    lines.append("\nTests that no fault met:")
    lines.append(f"  of pages, figures and tools: {', '.join(sorted(NO_TEST_OF_ATTN))}")
    for why, tests in sorted(kept_out.items()):
        lines.append(f"  {why}: {len(tests)} (named in the file of results)")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=400, help="how many faults to plant")
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn")
    parser.add_argument("--only", metavar="FILE", help="plant in the files with this in their path")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--budget", type=float, default=15, help="seconds of tests for a fault")
    parser.add_argument("--again", action="store_true", help="plant once more what has survived")
    parser.add_argument("--list", action="store_true", help="show the faults, plant none")
    parser.add_argument("--root", type=Path, default=HERE.parent, help=argparse.SUPPRESS)
    parser.add_argument("--package", default="attn", help=argparse.SUPPRESS)
    parser.add_argument("--load", default=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file of results; what it holds is not repeated")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    out = (given.out or root / ".mutants" / "results.json").resolve()
    sources = targets(root, given.package)
    if given.only:
        sources = {file: text for file, text in sources.items() if given.only in file}
    if not sources:
        raise SystemExit(f"no file of {given.package} has {given.only!r} in its path")
    drawn = draw(sources, given.count, given.seed)
    if given.list:
        for fault in drawn:
            print(f"{fault.file}:{fault.line} {fault.kind}\n  - {fault.was}\n  + {fault.becomes}")
        return 0
    prepare(root, given.load)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and takes its children along
    say = functools.partial(print, flush=True)
    reach = first_pass(root, given.package, given.jobs, out.with_suffix(".reach.json"), say)
    meta = {"seed": given.seed, "count": len(drawn), "only": given.only, "budget": given.budget}
    rows = campaign(
        root, given.package, drawn, reach, budget=given.budget, jobs=given.jobs, out=out, meta=meta,
        again=given.again, say=say,
    )  # fmt: skip
    print(table(rows, left_out(reach)))
    return 0


def prepare(root, libraries):
    """Load the libraries once, in one thread, and nothing of the package."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ |= {"MPLBACKEND": "Agg", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in libraries.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):  # looks for libraries by a process, once
        importlib.import_module("threadpoolctl").ThreadpoolController()
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(  # the same examples for every fault, and no time for smaller ones
        "mutants", database=None, derandomize=True, deadline=None,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    settings.load_profile("mutants")
    sys.path.insert(0, str(root))


if __name__ == "__main__":
    sys.exit(main())
