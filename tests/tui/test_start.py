"""The console is a light install: it starts without torch, a web framework or an HTTP client."""

import subprocess
import sys


def test_the_console_loads_nothing_heavy() -> None:
    heavy = ("torch", "fastapi", "pydantic", "httpx", "sqlite_utils")
    code = f"import sys, gpuwatch.tui.app; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own text
    assert done.stdout.split() == []
