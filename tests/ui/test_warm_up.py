from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_the_first_code_and_the_first_formula_need_is_there_and_was_not_before() -> None:
    script = """
import sys
from ui.warm_up import warm_up
before = {"pygments.lexers.python", "ziamath"} & sys.modules.keys()
warm_up().join()
print(sorted(before), "pygments.lexers.python" in sys.modules, "ziamath" in sys.modules)
"""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[0] == "[] True True"
    assert result.stderr == ""
