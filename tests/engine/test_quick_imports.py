"""What is left out of the start is left out, and there for whoever asks for it later. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(code: str) -> None:
    """Run `code` after the quick import; what it asserts is asserted."""
    program = f"import sys\nfrom engine.quick_imports import import_transformers\nimport_transformers()\n{code}"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_the_compiler_and_distributed_tensors_are_not_imported() -> None:
    run("""
import engine.runtime
from transformers.models.llama.modeling_llama import LlamaForCausalLM
for name in ("sympy", "torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp"):
    assert name not in sys.modules, name
""")


def test_the_compiler_is_there_when_asked_for() -> None:
    run("""
import torch
assert torch.distributed.is_available()
double = torch.compile(lambda x: x + x, backend="eager")
assert double(torch.ones(2)).tolist() == [2.0, 2.0]
""")


def test_a_model_is_laid_out_without_the_compiler() -> None:
    run("""
import torch
from engine.quick_imports import compiler_left_out
with compiler_left_out(), torch.device("meta"):
    torch.nn.Embedding(4, 4), torch.ones(2) / torch.ones(2)
assert "torch._dynamo" not in sys.modules
""")


def test_what_else_is_asked_of_the_compiler_loads_it() -> None:
    run("""
import torch
from engine.quick_imports import compiler_left_out
with compiler_left_out():
    assert torch.compile(lambda x: x + x, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
    compiler = sys.modules["torch._dynamo"]
assert sys.modules["torch._dynamo"] is compiler
""")


def test_a_compiler_that_is_there_already_stays() -> None:
    program = """
import torch._dynamo
before = torch._dynamo
from engine.quick_imports import import_transformers
import_transformers()
import sys
assert sys.modules["torch._dynamo"] is before
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_models_are_made_and_run() -> None:
    run("""
import torch
import transformers
from transformers import AutoModelForCausalLM
for name in ("LlamaConfig", "Gemma3TextConfig", "Qwen3MoeConfig"):
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=16)
    config = getattr(transformers, name)(**sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        assert model(input_ids=torch.zeros((1, 3), dtype=torch.long)).logits.shape == (1, 3, 64)
""")
