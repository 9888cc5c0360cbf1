"""The benchmark runs, measures what it says, and records and draws what it measured."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import attention as benchmark  # noqa: E402
import calls  # noqa: E402
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

    def test_the_machine_is_described(self):
        described = measuring.machine(None)
        assert described["numpy"] == np.__version__
        assert described["gpu"] is None
        assert described["cores"] >= 1
        name = measuring.file_name(described)
        assert name.endswith(f"-{described['cores']}-cores")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert "h200" in measuring.file_name(described | {"gpu": "NVIDIA H200"})


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
        out, figure = tmp_path / "deep" / "result.json", tmp_path / "figure.png"
        benchmark.main(["--quick", "--out", str(out), "--figure", str(figure)])
        report = json.loads(out.read_text())
        assert [row["name"] for row in report["ratios"]] == [c.name for c in benchmark.CASES]
        assert all(row["ratio"] > 0 and row["device"] == "cpu" for row in report["ratios"])
        assert report["memory"]["bytes"] == measuring.MIB
        assert report["machine"]["torch"] == torch.__version__
        assert len(report["sweep"]["seconds"]) == len(sweep.CURVES)
        printed = capsys.readouterr()
        assert all(case.name in printed.out for case in benchmark.CASES)
        assert "rounds" in printed.err
        assert figure.read_bytes()[:4] == b"\x89PNG"

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
