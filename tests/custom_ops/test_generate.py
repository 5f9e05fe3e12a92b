"""What is generated is up to date, and says what the specifications say."""

from __future__ import annotations

from pathlib import Path

import pytest

import custom_ops
from custom_ops import generate


def test_generated_files_are_current() -> None:
    assert generate.main(["--check"]) == 0


def test_check_fails_on_a_stale_file_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert not list(tmp_path.iterdir())
    assert generate.main([]) == 0 and generate.main(["--check"]) == 0


def test_every_op_and_attribute_is_named() -> None:
    code, text = generate.cpp(), generate.markdown()
    for spec in custom_ops.specs().values():
        assert f"X({spec.name})" in code and f"## {spec.name}\n" in text
        for attribute in spec.attributes:
            assert f'{attribute.name}[] = "{attribute.name}"' in code and f"| {attribute.name} |" in text


def test_every_op_has_a_kernel() -> None:
    sources = [p.read_text() for p in (generate.ROOT / "csrc").rglob("*.cc")]
    lines = [line for text in sources for line in text.splitlines() if '"cuvil"' in line or "spec::" in line]
    for name in custom_ops.specs():
        called = any(f'"{name}"' in line or f"spec::{name}::kName" in line for line in lines)
        aliased = any(f"using Spec = spec::{name};" in text and "Spec::kName" in text for text in sources)
        assert called or aliased, f"no kernel for {name}"
