"""``optimize`` compares its result with the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import cuvil_onnx
from cuvil_onnx.errors import OptionError, VerificationError
from cuvil_onnx.passes.base import Pass
from cuvil_onnx.pipeline import FOLD
from cuvil_onnx.rewrite.rule import Exactness
from tests.api_testing import X, expected, made, run


@pytest.fixture
def damaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folding pass that clears a weight instead."""

    def damage(ctx: Any, trace: Any) -> int:
        for value in ctx.model.graph.initializers.values():
            if value.name == "w":
                value.const_value = ir.Tensor(np.zeros((8, 4), np.float32), name="w")
        return 1

    monkeypatch.setattr("cuvil_onnx.pipeline.FOLD", Pass(FOLD.name, Exactness.EXACT, damage))


@pytest.mark.usefixtures("damaging")
def test_a_wrong_result_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"output 'y'.*first at 'a'"):
        cuvil_onnx.optimize(made(), tmp_path / "out.onnx", level="basic", only=["constant_folding"], verify=True)
    assert not list(tmp_path.iterdir())
    assert cuvil_onnx.optimize(made(), level="basic", only=["constant_folding"], verify=False).report.verification == ""


@pytest.mark.usefixtures("damaging")
def test_a_defective_step_is_left_out_unless_verification_was_demanded() -> None:
    result = cuvil_onnx.optimize(made(), level="basic", skip=["dead_code"])
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)
    assert "constant_folding was left out" in result.report.trace.warnings[0]


def test_given_inputs_are_used() -> None:
    result = cuvil_onnx.optimize(made(), verify=True, inputs=[{"x": X}, {"x": X[:1]}])
    assert "2 input sets" in result.report.verification
    with pytest.raises(OptionError, match="'x'"):
        cuvil_onnx.optimize(made(), verify=True, inputs={"z": X})


@pytest.mark.parametrize("verify", [None, True])
@pytest.mark.parametrize(
    "inputs",
    [{"q": X}, {"x": X[:, :5]}, {"x": X.astype(np.float64)}, {"x": X, "z": X}, [{"x": X}, {"x": X[0]}], [], "x", [X]],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, verify: bool | None) -> None:
    with pytest.raises(OptionError, match="inputs"):
        cuvil_onnx.optimize(made(), inputs=inputs, verify=verify)


def test_a_model_that_cannot_be_run_can_only_be_optimized_unverified() -> None:
    graph = onnx.parser.parse_graph("g (float[4] x) => (float[4] y) { y = my.own.Thing(x) }")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    with pytest.raises(VerificationError, match="cannot verify"):
        cuvil_onnx.optimize(model, verify=True)


@pytest.mark.parametrize("dims", [[2**62], [2**62, 2**62], ["batch", 2**40]])
def test_sizes_that_no_machine_can_hold_are_not_tried(dims: list[int | str]) -> None:
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "an input has more than" in cuvil_onnx.optimize(model).report.verification
    with pytest.raises(VerificationError, match=r"cannot verify: an input has more than .* elements"):
        cuvil_onnx.optimize(model, verify=True)
