"""The benchmarks use the end-to-end fixtures."""

from __future__ import annotations

from tests.end_to_end.conftest import default_model, ember

__all__ = ["default_model", "ember"]
