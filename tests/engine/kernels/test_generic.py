"""The kernels of a processor without AVX-512: compiled and run here as if this were one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.kernels.packing import Format, unpack
from engine.model.forward import ForwardPass
from tests.engine import lean_models
from tests.engine.kernels.generic_logits import AT_ONCE, IDS

FAMILY = "qwen3"
SETTINGS = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}


@pytest.mark.slow
@pytest.mark.timeout(400)  # compiling takes half a minute, on a machine with nothing else to do
@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="other processors have no other kernels"
)
def test_an_older_processor_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    command = [sys.executable, "-m", "tests.engine.kernels.generic_logits", FAMILY, str(tmp_path / "logits")]
    environment = {**os.environ, **SETTINGS, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[3])
    found = torch.load(tmp_path / "logits")
    assert found["has_bf16_dot"] is False
    for target in Format:
        single, several = (found["logits"][target.name, at_once] for at_once in AT_ONCE)
        assert torch.equal(single, several)
        exact = exact_logits(target)
        assert (single - exact).norm() < 0.02 * (exact - exact.mean()).norm()


def exact_logits(target: Format) -> torch.Tensor:
    """In float32, with the very weights that the packed ones stand for."""
    model = lean_models.BY_NAME[FAMILY].build()
    packed = lean_models.packed(model, target)
    for name, module in lean_models.matrices(model):
        module.weight.data = unpack(packed[name], torch.float32)
    return ForwardPass(model, torch.device("cpu")).all_logits(IDS, lean_models.new_cache(model))
