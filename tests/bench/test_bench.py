"""The comparison's parts that need no GPU."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from onnx import TensorProto, helper

import cuvil_onnx
from benchmarks import compare_models, summary
from cuvil_onnx.bench import chart, compare, feeds, process, record, table, timing, variants, worker
from cuvil_onnx.bench.accuracy import largest_difference
from cuvil_onnx.bench.progress import Progress
from cuvil_onnx.errors import CuvilError
from models import zoo

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("got", "want", "absolute", "relative"),
    [
        ([1, 2], [1, 2], 0, 0),
        ([1.5, 2], [1, 2], 0.5, 0.25),
        ([NAN, INF], [NAN, INF], 0, 0),
        ([NAN, 1], [1, 1], INF, INF),
        ([INF, 1], [1, 1], INF, INF),
        ([0.5], [0], 0.5, 0.5),
        ([], [], 0, 0),
    ],
)
def test_largest_difference(got, want, absolute, relative):
    a, b = np.array(got, np.float32), np.array(want, np.float32)
    assert largest_difference({"y": a}, {"y": b}) == (absolute, relative)


def test_another_shape_is_infinitely_different():
    assert largest_difference({"y": np.zeros((1, 2))}, {"y": np.zeros(2)}) == (INF, INF)


def test_timing_counts_and_orders():
    calls = []
    (result,) = timing.measure([lambda: calls.append(1)], budget_s=0.02, least=10)
    assert result.runs >= 10
    assert len(calls) > result.runs  # the warm-up is not counted
    assert result.p50 <= result.p90 <= result.p99


def test_several_take_turns():
    order = []
    results = timing.measure([lambda: order.append("a"), lambda: order.append("b")], budget_s=0.3, least=4)
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert len(turns) >= 6
    assert all(r.runs >= 4 for r in results)


def signature(shape, elem=TensorProto.FLOAT, name="x"):
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info(name, elem, shape)], [])
    return helper.make_model(graph)


def test_made_inputs_follow_the_signature():
    assert feeds.make_feed(signature(["N", 3, "H", "W"]), {})["x"].shape == (1, 3, 224, 224)
    assert feeds.make_feed(signature([-1, 3, "?", "?"]), {"x:2": 48, "x:3": 96})["x"].shape == (1, 3, 48, 96)
    assert feeds.make_feed(signature(["N", "S"], TensorProto.INT64, "attention_mask"), {"S": 7})[
        "attention_mask"
    ].tolist() == [[1] * 7]
    ids = feeds.make_feed(signature(["N", "S"], TensorProto.INT64), {})["x"]
    assert ids.shape == (1, 128)
    assert set(np.unique(ids)) <= {0, 1}


def test_inputs_that_cannot_be_made_say_so():
    with pytest.raises(feeds.InputError, match="holds strings"):
        feeds.make_feed(signature(["N"], TensorProto.STRING), {})
    with pytest.raises(feeds.InputError, match="'Q'"):
        feeds.make_feed(signature(["N"]), {"Q": 3})


def test_the_fastest_candidate_of_a_key_stays():
    rows = [
        compare.Row(key, label, worker.Result(p50=p50))
        for key, label, p50 in (("a", "slow", 2.0), ("b", "only", 3.0), ("a", "fast", 1.0))
    ]
    assert [row.label for row in compare._fastest(rows)] == ["fast", "only"]


def test_variants_of_a_gpu_cover_nhwc_only_for_convolutions():
    stock = [("converted", "s.onnx")]
    with_conv = variants.on_gpu("g.onnx", stock, "o.onnx", has_conv=True, precision="fp16")
    without = variants.on_gpu("g.onnx", stock, "o.onnx", has_conv=False, precision="fp16")
    assert [v.key for v in with_conv] == ["stock_default", *["stock_best"] * 4, "cuvil_run", "cuvil"]
    assert len(without) == len(with_conv) - 2
    replaced = {v.instead_of for v in with_conv if v.instead_of}
    assert replaced == {v.label for v in with_conv if v.providers[0][1].get("enable_cuda_graph")}
    assert all(v.ours == v.key.startswith("cuvil") for v in with_conv)
    fp32 = variants.on_gpu("g.onnx", stock, "o.onnx", has_conv=True, precision="fp32")
    assert [v.key for v in fp32] == [*(v.key for v in with_conv), "cuvil_tf32"]  # stock ORT uses TF32, too
    assert fp32[-1].ours and fp32[-1].providers[0][1] == {"use_tf32": "1"}


def test_stock_processes_see_their_own_path_and_no_provider(monkeypatch):
    monkeypatch.setenv("CUVIL_STOCK_PYTHONPATH", "/stock/ort")
    code = "import os; print(os.environ['PYTHONPATH'].split(':')[0], os.environ.get('CUVIL_REGISTER'))"
    assert process.run_python(["-c", code], stock=True).stdout.split() == ["/stock/ort", "0"]
    assert process.run_python(["-c", code], stock=False).stdout.split()[0] != "/stock/ort"


def test_a_process_that_dies_is_an_error_row(tmp_path):
    result = process.run_job("no_such_module_of_ours", {}, tmp_path, stock=True)
    assert "no_such_module_of_ours" in result["error"]


def test_a_missing_provider_is_an_error_row(tmp_path):
    job = worker.Job("m.onnx", str(tmp_path / "f.npz"), "o.npz", [("NoSuchProvider", {})], ["y"])
    np.savez(job.feed, x=np.zeros(1))
    (result,) = worker.run([job])
    assert "NoSuchProvider" in result.error or "driver" in result.error


def test_a_failing_candidate_is_reported_and_the_others_stay(monkeypatch):
    bad = variants.Variant("stock_best", "broken", "missing.onnx", [("CPUExecutionProvider", {})], False, False)
    good = variants.on_cpu
    monkeypatch.setattr(variants, "on_cpu", lambda given, ours: [*good(given, ours), bad])
    model = zoo.get("tiny").build()
    result = compare.compare(
        model,
        cuvil_onnx.optimize(model, verify=False),
        zoo.get("tiny").inputs(1, 0),
        name="tiny",
        budget_s=0.02,
        progress=False,
    )
    assert [row.key for row in result.rows] == ["stock_default", "cuvil"]
    assert len(result.failures) == 1
    assert "missing.onnx" in result.failures[0]
    assert "not measured: broken" in table.render(result)


def test_a_model_that_does_not_run_is_one_error():
    model = zoo.get("tiny").build()
    wrong = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    with pytest.raises(CuvilError, match="does not run on ONNX Runtime's CPU"):
        compare.compare(model, cuvil_onnx.optimize(model, verify=False), wrong, name="tiny", progress=False)


def test_chart_is_valid_svg_and_scales_within_groups():
    bars = [chart.Bar("cuvil", "a < b", 1.0), chart.Bar("stock_best", "b", 2.0)]
    root = ET.fromstring(chart.bar_chart("t & u", [("g", bars)]))
    widths = [float(r.attrib["width"]) for r in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert "a < b" in [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_markdown_table():
    assert table.markdown_table([["a", "b"], ["1", "2"]]) == "| a | b |\n|---|---:|\n| 1 | 2 |"


def test_progress_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    bar = Progress(2, stream=stream)
    bar.step("first")
    bar.step("second")
    bar.finish()
    assert stream.getvalue() == "[1/2] first\n[2/2] second\n"
    silent = io.StringIO()
    Progress(1, enabled=False, stream=silent).step("x")
    assert silent.getvalue() == ""


@pytest.mark.parametrize(
    ("card", "folder"), [("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx_4090"), ("NVIDIA", "gpu")]
)
def test_card_folders(card, folder):
    assert record.card_folder(card) == folder


def test_the_newest_value_of_each_metric_counts(tmp_path):
    for date, value in (("2026-01-02", 2.0), ("2026-01-01", 1.0)):
        entry = {"date": date, "card": "C", "metrics": {"m/x": {"value": value, "unit": "ms"}}}
        (tmp_path / f"{date}.json").write_text(json.dumps(entry))
    (tmp_path / "summary.json").write_text("{}")
    assert record.newest(tmp_path)["m/x"]["value"] == 2.0
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(CuvilError, match=r"bad\.json"):
        record.newest(tmp_path)


def test_a_record_has_everything_that_the_format_asks_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CUVIL_COMMIT", "abc")
    r = record.Record("models", "NVIDIA H200", {"onnxruntime": "1"})
    r.add("model/x/cuvil", 1.23456789, "ms")
    written = json.loads(r.write(tmp_path).read_text())
    assert set(written) == {"name", "date", "commit", "card", "driver", "versions", "command", "metrics"}
    assert written["metrics"] == {"model/x/cuvil": {"value": 1.23457, "unit": "ms"}}
    assert written["commit"] == "abc"
    r.add("model/y/cuvil", 2, "ms")  # a longer run writes its record after each step
    assert len(json.loads(r.write(tmp_path).read_text())["metrics"]) == 2
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_metric_names():
    assert compare_models.metric_name(zoo.get("minilm"), "fp16", 2, zoo.get("minilm").inputs(2, 0)) == (
        "model/minilm_fp16_b2_s32"
    )
    assert compare_models.metric_name(zoo.get("tiny"), "fp32", 1, zoo.get("tiny").inputs(1, 0)) == "model/tiny_fp32_b1"


def test_summary_renders_what_is_recorded():
    entry = {"unit": "ms", "date": "d", "card": "NVIDIA H200"}
    values = {"stock_default": 4.0, "stock_best": 2.0, "cuvil": 1.0, "max_rel_err": 1e-4, "cuvil_p99": 9.0}
    metrics = {f"model/tiny_fp16_b1/{k}": {"value": v, **entry} for k, v in values.items()}
    metrics[f"{summary.POINTWISE}/pct_copy"] = {"value": 93.2, **entry}
    metrics["model/tiny_fp16_b1/cuvil_tf32"] = {"value": 0.5, **entry}
    text = summary.render_table({"h200": metrics})
    assert "| tiny_fp16_b1 | 4.000 | 2.000 | 1.000 | 2.00 | 1.0e-04 |" in text
    assert "| tiny_fp16_b1, TF32 | 4.000 | 2.000 | 0.500 | 4.00 | - |" in text
    assert "93.2 % of the measured copy bandwidth." in text
    assert "NVIDIA H200" in summary.render_chart({"h200": metrics})


def test_the_performance_page_shows_kernels_and_the_mean():
    entry = {"unit": "", "date": "d", "card": "NVIDIA H200"}
    values = {
        "kernel/copy/gb_s": 4200.0,
        "kernel/gelu/f16_8x8/us": 65.25,
        "kernel/gelu/f16_8x8/pct_roof": 96.0,
        "kernel/gelu/f16_8x8/x_torch": 1.5,
        "kernel/add/f16_8x8/us_torch": 3.0,  # ours could not run: no row
        "model/a_fp16_b1/cuvil": 1.0,
        "model/a_fp16_b1/stock_best": 2.0,
        "model/b_fp16_b1/cuvil": 1.0,
        "model/b_fp16_b1/stock_best": 8.0,
        "model/b_fp32_b1/cuvil": 1.0,
        "model/b_fp32_b1/stock_best": 100.0,
    }
    text = summary.render_performance({"h200": {name: {"value": v, **entry} for name, v in values.items()}})
    assert "| gelu/f16_8x8 | 65.2 | - | - | 96 | - | 1.50 |" in text
    assert "add/f16_8x8" not in text
    assert "Copy 4200 GB/s" in text
    assert "Geometric mean of the fp16 rows: 4.00x" in text


def test_readme_follows_from_the_recorded_results():
    stale = [p.name for p, text in summary.outputs().items() if not p.is_file() or p.read_text() != text]
    assert stale == [], "run python -m benchmarks.summary"


@pytest.mark.parametrize(("graph_model", "measured"), [("given", ["graph"]), ("missing.onnx", ["eager"])])
def test_a_variant_in_place_of_another_is_measured_when_that_one_fails(monkeypatch, graph_model, measured):
    cpu = [("CPUExecutionProvider", {})]

    def planned(given, stock, optimized, **_):
        path = given if graph_model == "given" else graph_model
        graph = variants.Variant("stock_best", "graph", path, cpu, False, False)
        return [graph, variants.Variant("stock_best", "eager", given, cpu, False, False, instead_of="graph")]

    monkeypatch.setattr(variants, "on_gpu", planned)
    monkeypatch.setattr(compare._Work, "prepare", lambda self, model, precision: [])
    model, feed = zoo.get("tiny").build(), zoo.get("tiny").inputs(1, 0)
    optimized = cuvil_onnx.optimize(model, verify=False)
    result = compare.compare(
        model, optimized, feed, name="tiny", gpu="a card", budget_s=0.02, count_kernels=False, progress=False
    )
    assert [row.label for row in result.rows] == measured
