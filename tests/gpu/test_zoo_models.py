"""Every further model of the zoo on a real GPU: placement, capture, and the right answer in fp32 and fp16.

A model whose package is not installed is skipped (CUVIL_MODELS names a folder of files, see ``models.pack``), those
that torch exports where torch is missing. Run with ``-n``: exports and references take their time on the CPU.
"""

from __future__ import annotations

import pytest

from cuvil_onnx.runtime.registration import unavailable_reason
from models import zoo
from tests.gpu.test_models import MODELS
from tests.gpu.whole_models import BOUNDS, Case

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

# Builds of minutes, and models of other tests.
LEFT_OUT = {"dynamo_swin", "dynamo_convnext", "bert_base", *MODELS}
NAMES = [name for name in zoo.all_models() if name not in LEFT_OUT and "smollm" not in name]


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", NAMES)
def test_model(name: str, precision: str) -> None:
    """All nodes in the provider, right before capture, captured, right in replays and at a second batch size."""
    case = Case(name, precision)
    try:
        assert case.elsewhere() == [], str(case.session.placement())
        batch = case.entry.batches[0]
        for seed in (0, 0, 1, 2):  # eager, captured, replayed with other inputs
            case.check(batch, seed)
        assert case.session.captured_graphs == 1, case.session.placement().cuda_graph
        for other in case.entry.batches[1:]:
            for seed in (3, 4, 5):
                case.check(other, seed)
            assert case.session.captured_graphs == 2, case.session.placement().cuda_graph
    finally:
        case.session.close()
