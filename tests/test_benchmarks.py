"""The benchmark runs, measures what it says, and records and draws what it measured."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import against  # noqa: E402
import attention as benchmark  # noqa: E402
import calls  # noqa: E402
import machines  # noqa: E402
import measuring  # noqa: E402
import sweep  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def tiny(monkeypatch):
    """Every case and curve at a few tokens, children answered without a new process."""
    monkeypatch.setattr(benchmark, "CASES", [case._replace(n=64 * 136) for case in benchmark.CASES])
    monkeypatch.setattr(sweep, "LENGTHS", [64 * n for n in (32, 48, 64)])
    answer = {"resident": 3 * measuring.MIB, "traced": measuring.MIB}
    for module in (benchmark, sweep):
        monkeypatch.setattr(module, "in_child", lambda *arguments: answer)
    monkeypatch.setattr(benchmark, "import_seconds", lambda *a, **k: 0.01)


class TestMeasuring:
    def test_functions_are_called_in_turn(self):
        order = []
        times = measuring.in_turn([lambda: order.append("a"), lambda: order.append("b")], 3)
        assert order == ["a", "b"] * 4  # one round warms up
        assert [len(column) for column in times] == [3, 3]

    def test_a_ratio_is_the_median_of_the_rounds(self, monkeypatch):
        monkeypatch.setattr(measuring, "in_turn", lambda *a: ([1.0, 6.0, 3.0], [2.0, 2.0, 2.0]))
        row = measuring.compare(None, None, 3)
        assert row == {
            "ratio": 1.5, "quartiles": [1.0, 2.25], "seconds": 3.0, "reference_seconds": 2.0,
            "rounds": 3,
        }  # fmt: skip

    def test_a_slower_function_has_a_larger_ratio(self):
        row = measuring.compare(lambda: time.sleep(0.02), lambda: time.sleep(0.002), 3)
        assert row["ratio"] > 2
        assert row["quartiles"][0] <= row["ratio"] <= row["quartiles"][1]

    def test_the_device_is_waited_for(self):
        waited = []
        measuring.in_turn([lambda: None], 2, lambda: waited.append(1))
        assert len(waited) == 3

    @pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
    def test_peak_memory_sees_what_was_freed_again(self):
        def hold_and_free():
            return float(np.ones(2**23).sum())  # 64 MiB

        used, result = measuring.peak_memory(hold_and_free)
        assert result == 2**23
        assert 60 * measuring.MIB < used < 100 * measuring.MIB

    def test_import_time_is_beyond_what_was_there(self):
        assert 0 < measuring.import_seconds("json.tool", after="json", repeats=1) < 5

    def test_a_child_that_fails_says_why(self, tmp_path):
        script = tmp_path / "bad.py"
        script.write_text("raise ValueError('seventeen')")
        with pytest.raises(RuntimeError, match="seventeen"):
            measuring.in_child(script)

    def test_a_commit_is_named_and_marked_when_files_differ(self, tmp_path):
        assert measuring.commit(tmp_path) is None
        git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
        (tmp_path / "file").write_text("one")
        for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "One"]):
            subprocess.run(git + command, check=True)
        clean = measuring.commit(tmp_path)
        assert len(clean) >= 7
        (tmp_path / "file").write_text("two")
        assert measuring.commit(tmp_path) == clean + "+"


class TestMachines:
    def test_the_machine_is_described(self):
        described = machines.describe()
        assert described["numpy"] == np.__version__
        assert described["gpu"] is None
        assert described["cores"] >= 1
        assert described["blas"]
        assert any("OpenMP" in line for line in described["torch_build"])
        assert machines.describe() == described  # the second run finds its own record

    def test_the_name_of_a_record_says_the_machine(self):
        described = machines.describe()
        name = machines.file_name(described)
        assert name.endswith(f"-{described['cores']}-cores-{described['digest']}")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert "h200" in machines.file_name(described | {"gpu": "NVIDIA H200"})

    @pytest.mark.parametrize("field", [*machines.IDENTITY, "host"])
    def test_two_machines_have_two_names(self, field):
        one = {"cpu": "AMD EPYC", "family": "25/1/1", "cores": 2, "simd": ["avx2"],
               "memory_gib": 23.5, "system": "Linux x86_64", "gpu": None}  # fmt: skip
        hosts = [["17", "vm", 1]] * 2
        other = dict(one)
        if field == "host":
            hosts[1] = ["18", "vm", 1]
        else:
            other[field] = "another"
        names = {
            machines.file_name(m | {"digest": machines.digest(m, host)})
            for m, host in zip((one, other), hosts, strict=True)
        }
        assert len(names) == 2

    def test_a_newer_version_or_day_is_the_same_machine(self):
        described = machines.describe()
        newer = described | {"torch": "9.0", "numpy": "9.0", "date": "2040-01-01"}
        assert machines.digest(newer, ["17"]) == machines.digest(described, ["17"])


class TestCalls:
    def test_documents_are_16_and_uneven(self):
        lengths = np.bincount(calls.documents(1360).query_ids)
        assert lengths.tolist() == list(range(10, 170, 10))

    @pytest.mark.parametrize("case", benchmark.CASES, ids=lambda case: case.name)
    def test_both_sides_of_a_ratio_compute_the_same(self, case):
        ours, reference = (make(320, "cpu")() for make in (case.ours, case.reference))
        ours = ours[0] if isinstance(ours, tuple) else ours
        np.testing.assert_allclose(np.asarray(ours), np.asarray(reference), atol=1e-5)

    def test_only_torch_runs_on_a_gpu(self):
        rows = calls.available([*benchmark.CASES, *sweep.CURVES], "cuda")
        assert all("NumPy" not in row.name and "blockwise" not in row.name for row in rows)
        assert len(rows) == 6
        assert calls.available(benchmark.CASES, "cpu") == list(benchmark.CASES)


class TestReport:
    def test_everything_is_measured_printed_and_recorded(self, tiny, tmp_path, capsys):
        out = tmp_path / "deep" / "result.json"
        benchmark.main(["--quick", "--out", str(out)])
        report = json.loads(out.read_text())
        assert [row["name"] for row in report["ratios"]] == [c.name for c in benchmark.CASES]
        assert all(row["ratio"] > 0 and row["device"] == "cpu" for row in report["ratios"])
        assert report["memory"]["bytes"] == measuring.MIB
        assert report["machine"]["torch"] == torch.__version__
        assert len(report["sweep"]["seconds"]) == len(sweep.CURVES)
        printed = capsys.readouterr()
        assert all(case.name in printed.out for case in benchmark.CASES)
        assert "rounds" in printed.err

    def test_a_record_replaces_that_of_its_machine_and_no_other(self, monkeypatch, tmp_path):
        folder = tmp_path / "benchmarks" / "results"
        here = machines.describe()
        monkeypatch.setattr(benchmark, "ROOT", tmp_path)
        for run, machine in enumerate([here, here, here | {"digest": "0" * 8}]):
            report = {"machine": machine, "run": run}
            monkeypatch.setattr(benchmark, "measure", lambda *options, report=report: report)
            benchmark.main([])
        runs = {json.loads(path.read_text())["run"] for path in folder.iterdir()}
        assert runs == {1, 2}

    def test_quick_alone_records_nothing(self, tiny, monkeypatch, tmp_path):
        monkeypatch.setattr(benchmark, "ROOT", tmp_path)
        benchmark.main(["--quick"])
        assert not list(tmp_path.rglob("*"))

    def test_curves_stop_where_they_are_said_to(self, tiny, monkeypatch):
        curves = [sweep.CURVES[0]._replace(largest=64 * 48), sweep.CURVES[3]]
        monkeypatch.setattr(sweep, "CURVES", curves)
        swept = sweep.sweep("cpu", 1, 64)
        first, second = swept["seconds"].values()
        assert [y is None for y in first] == [False, False, True]
        assert all(y > 0 for y in second)

    def test_no_gpu_no_gpu_rows(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(SystemExit, match="no GPU"):
            benchmark.main(["--quick", "--device", "cuda"])

    def test_a_fresh_process_measures_one_curve(self):
        command = [sys.executable, str(sweep.SCRIPT), "--child", "blockwise NumPy", "256"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        assert 0 < answer["traced"] < 32 * measuring.MIB

    def test_operands_and_results_do_not_count(self, monkeypatch, capsys):
        """A call that writes its 4 MiB result and holds 1 MiB beside it needs 1 MiB."""

        def make(n, device):
            def call():
                beside, result = np.ones(2**17), np.ones(2**19)
                return result, beside[:0]

            return call

        monkeypatch.setattr(sweep, "CURVES", [sweep.Curve("a NumPy call", make, 8)])
        sweep.child("a NumPy call", 8, "cpu")
        traced = json.loads(capsys.readouterr().out)["traced"]
        assert abs(traced - measuring.MIB) < 0.1 * measuring.MIB


class Stub:
    """A worker that answers at once and notes that it was asked."""

    def __init__(self, name, seconds, order, total=1.0):
        self.name, self.seconds, self.order, self.total = name, seconds, order, total

    def ask(self, prepare=None, run=None):
        self.order.append((self.name, run))
        return {"seconds": self.seconds, "sum": self.total}


@pytest.fixture(scope="module")
def other_checkout(tmp_path_factory):
    """A checkout whose plain function rests before it works, and whose blockwise one is wrong."""
    checkout = tmp_path_factory.mktemp("other")
    shutil.copytree(ROOT / "attn", checkout / "attn")
    with (checkout / "attn" / "__init__.py").open("a") as package:
        package.write(
            "\nimport time\nplain, blockwise = scaled_dot_product_attention, blockwise_attention\n"
            "def scaled_dot_product_attention(*a, **k): time.sleep(0.05); return plain(*a, **k)\n"
            "def blockwise_attention(*a, **k): return (2 * blockwise(*a, **k)[0],)\n"
        )
    return checkout


def index(name):
    return next(i for i, call in enumerate(against.CALLS) if call.name == name)


class TestAgainst:
    def test_the_first_one_changes_from_round_to_round(self):
        order = []
        new, old = Stub("new", 0.03, order), Stub("old", 0.01, order)
        row = against.compare(new, old, 0, 8, 0)
        assert row["ratio"] == pytest.approx(3)
        assert row["rounds"] == against.FEWEST
        assert [name for name, _ in order[2:8]] == ["new", "old", "old", "new", "new", "old"]

    def test_short_calls_are_repeated_as_often_in_both(self):
        order = []
        against.compare(Stub("new", 0.001, order), Stub("old", 0.002, order), 0, 8, 0)
        assert {run for _, run in order[2:]} == {20}

    def test_results_that_differ_are_not_compared(self):
        new, old = Stub("new", 1, []), Stub("old", 1, [], total=1.1)
        with pytest.raises(RuntimeError, match="one result from both"):
            against.compare(new, old, 0, 8, 0)

    def test_what_is_slower_is_marked(self):
        row = {"name": "a", "n": 8, "quartiles": [1, 1], "seconds": 1, "reference_seconds": 1,
               "rounds": 3}  # fmt: skip
        assert "SLOWER" in against.line(row | {"ratio": 1.04})
        assert "SLOWER" not in against.line(row | {"ratio": 1.02})

    def test_each_worker_has_the_attn_of_its_checkout(self, other_checkout):
        with against.Worker(ROOT, "cpu") as here, against.Worker(other_checkout, "cpu") as there:
            row = against.compare(there, here, index("plain NumPy"), 64, 0)
            assert row["ratio"] > 2
            with pytest.raises(RuntimeError, match="one result from both"):
                against.compare(there, here, index("blockwise NumPy"), 64, 0)
            with pytest.raises(RuntimeError, match="a worker ended"):
                there.ask(prepare=[len(against.CALLS), 8])
        assert here.process.returncode == 0  # nobody had to end it

    def test_a_folder_without_attn_is_refused(self, tmp_path):
        with pytest.raises(SystemExit, match="--against"):
            benchmark.main(["--against", str(tmp_path)])

    def test_every_call_is_compared_within_the_time(self, monkeypatch, tmp_path, capsys):
        shares = []

        def compare(new, old, call, n, share):
            shares.append((call, n, share))
            time.sleep(0.01)
            return {"ratio": 1.0, "quartiles": [1, 1], "seconds": 1, "reference_seconds": 1,
                    "rounds": 3}  # fmt: skip

        monkeypatch.setattr(against, "compare", compare)
        monkeypatch.setattr(against.Worker, "__init__", lambda *a: None)
        monkeypatch.setattr(against.Worker, "close", lambda *a: None)
        out = tmp_path / "compared.json"
        benchmark.main(["--against", str(ROOT), "--minutes", "0.1", "--out", str(out)])
        report = json.loads(out.read_text())
        assert [row["name"] for row in report["ratios"]] == [call.name for call in against.CALLS]
        assert [(call, n) for call, n, _ in shares] == list(
            enumerate(call.n for call in against.CALLS)
        )
        assert shares[0][2] == pytest.approx(6 / len(shares), rel=0.1)
        assert shares[-1][2] > 4  # what the others left
        assert report["against"]["after"] == report["commit"]
        assert f"{len(shares)} of {len(shares)}" in capsys.readouterr().err

    @pytest.mark.parametrize("call", against.CALLS, ids=lambda call: f"{call.name}, {call.n}")
    def test_every_call_can_be_prepared_and_run(self, call):
        answers = []
        questions = [{"prepare": [against.CALLS.index(call), 320]}, {"run": 2}]
        against.work("cpu", map(json.dumps, questions), answers.append)
        assert answers[0]["sum"] > 0
        assert all(answer["seconds"] > 0 for answer in answers)


# --- What was recorded, and the page that shows it ------------------------------------------------

RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))

# Made before these fields were: what is not known is null.
EARLIER = {"amd-epyc-2-cores-a6d6773c": {"family", "simd", "blas", "torch_build", "commit"}}


def missing(record, name):
    """What a record lacks: fields, its name, cases."""
    machine = record["machine"]
    wanted = machines.describe()
    yield from wanted.keys() - machine.keys()
    yield from {"commit", "threads", "ratios", "sweep"} - record.keys()
    known = machine | {"commit": record.get("commit")}
    empty = {field for field, value in known.items() if value is None and field != "gpu"}
    yield from empty - EARLIER.get(name, set())
    if not name.startswith(machines.file_name(machine)):
        yield "name"
    device = "cuda" if machine["gpu"] else "cpu"
    cases = calls.available(benchmark.CASES, device)
    if [(row["name"], row["n"]) for row in record["ratios"]] != [(c.name, c.n) for c in cases]:
        yield "ratios"
    curves = {curve.name for curve in calls.available(sweep.CURVES, device)}
    if any(record["sweep"][what].keys() != curves for what in ("seconds", "bytes")):
        yield "curves"
    if record["sweep"]["n"] != list(sweep.LENGTHS) or record["quick"]:
        yield "lengths"


class TestRecords:
    @pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
    def test_a_record_is_whole_and_named_by_its_machine(self, path):
        assert list(missing(json.loads(path.read_text()), path.stem)) == []

    @pytest.mark.parametrize(
        ("lacks", "spoil"),
        [
            ("simd", lambda r: r["machine"].update(simd=None)),
            ("blas", lambda r: r["machine"].pop("blas")),
            ("commit", lambda r: r.update(commit=None)),
            ("name", lambda r: r["machine"].update(digest="0" * 8)),
            ("ratios", lambda r: r["ratios"].pop()),
            ("ratios", lambda r: r["ratios"][0].update(n=8)),
            ("curves", lambda r: r["sweep"]["bytes"].popitem()),
            ("lengths", lambda r: r["sweep"].update(n=[1, 2])),
        ],
    )
    def test_what_a_record_lacks_is_seen(self, lacks, spoil):
        record = json.loads(RECORDS[0].read_text()) | {"commit": "0c1d2e3"}
        record["machine"] = machines.describe()
        name = machines.file_name(record["machine"])
        assert list(missing(record, name)) == []
        spoil(record)
        assert set(missing(record, name)) == {lacks}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A function that runs the cells on what was recorded, on copies of the records."""
    (tmp_path / "book").mkdir()
    results = tmp_path / "benchmarks" / "results"
    shutil.copytree(ROOT / "benchmarks" / "results", results)
    monkeypatch.chdir(tmp_path / "book")
    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))
    cells = json.loads((ROOT / "book" / "cost.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    imports = next(s for s in sources if s.startswith("import json"))
    first = next(i for i, s in enumerate(sources) if "benchmarks/results" in s)
    last = next(i for i, s in enumerate(sources) if s.startswith("said ="))

    def run(*changes, gpu=None):
        if changes:
            record = json.loads(RECORDS[0].read_text())
            record["machine"].update(cpu="Second", gpu=gpu)
            change, *arguments = changes
            change(record, *arguments)
            (results / "second-2-cores-00000000.json").write_text(json.dumps(record))
        names = {}
        with pyplot.rc_context():
            for source in [imports, *sources[first : last + 1]]:
                exec(source, names)

    return run


def slower(record, pair, factor):
    row = next(row for row in record["ratios"] if row["name"] == pair)
    row["ratio"] *= factor
    row["quartiles"] = [factor * q for q in row["quartiles"]]


def spread(record, pair, factor):
    row = next(row for row in record["ratios"] if row["name"] == pair)
    row["quartiles"] = [row["ratio"] / factor, row["ratio"] * factor]


def longer(record, curve, factor):
    _at_the_end(record["sweep"]["seconds"][curve], factor)


def larger(record, curve, factor):
    _at_the_end(record["sweep"]["bytes"][curve], factor)


def _at_the_end(values, factor):
    values[max(i for i, x in enumerate(values) if x is not None)] *= factor


def on_gpu(record):
    record["ratios"] = [row for row in record["ratios"] if row["name"].startswith("fused")]
    for what in ("seconds", "bytes"):
        rows = record["sweep"][what]
        record["sweep"][what] = {name: rows[name] for name in rows if "torch" in name}


class TestPage:
    def test_no_page_names_a_record(self):
        for path in CHAPTERS:
            text = path.read_text()
            assert [record.stem for record in RECORDS if record.stem in text] == []

    def test_every_machine_is_shown(self, page, capsys):
        page()
        alone = capsys.readouterr().out
        page(slower, "blockwise / SDPA", 1.5)
        shown = capsys.readouterr().out
        assert f"machines: {len(RECORDS)} with the CPU alone" in alone
        assert f"machines: {len(RECORDS) + 1} with the CPU alone" in shown
        assert "Second, 2 cores" in shown
        ratio = json.loads(RECORDS[0].read_text())["ratios"][0]["ratio"]
        assert f" {1.5 * ratio:.2f}" in shown
        assert f" {1.5 * ratio:.2f}" not in alone

    def test_a_gpu_is_shown_apart(self, page, capsys):
        page(on_gpu, gpu="NVIDIA H200")
        shown = capsys.readouterr().out
        assert f"machines: {len(RECORDS)} with the CPU alone, 1 with a GPU" in shown
        assert "NVIDIA H200" in shown

    @pytest.mark.parametrize(
        ("change", "name", "factor"),
        [
            (slower, "blockwise / SDPA", 0.5),
            (slower, "blockwise / SDPA", 2),
            (slower, "blockwise causal / SDPA causal", 0.5),
            (slower, "blockwise causal / SDPA causal", 2),
            (slower, "blockwise / plain NumPy", 4),
            (slower, "blockwise causal / plain NumPy causal", 8),
            (slower, "fused window 256 / SDPA dense mask", 8),
            (slower, "fused 16 documents / SDPA dense mask", 4),
            (slower, "fused causal / SDPA causal", 0.8),
            (slower, "fused causal / SDPA causal", 1.2),
            (spread, "fused causal / SDPA causal", 2),
            (longer, "plain NumPy", 0.1),
            (longer, "blockwise NumPy", 0.5),
            (longer, "plain torch", 0.5),
            (longer, "fused torch", 0.5),
            (longer, "fused torch, window 256", 2),
            (larger, "plain NumPy", 0.01),
            (larger, "plain torch", 0.01),
            (larger, "blockwise NumPy", 100),
            (larger, "fused torch", 100),
        ],
    )
    def test_what_the_text_says_is_held_against_every_record(self, page, change, name, factor):
        with pytest.raises(AssertionError):
            page(change, name, factor)
