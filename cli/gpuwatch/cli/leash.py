"""Runs a module as a child that cannot outlive its parent: ``python -m gpuwatch.cli.leash MODULE [ARGUMENT…]``.

Rules: standard input is a pipe whose other end only the parent holds; end of file on it means that the parent has ended
or let go, however it died. The child then gets SIGTERM, and SIGKILL when it still lives after `GRACE_S`. A pipe, not
``PR_SET_PDEATHSIG``: it works wherever there are pipes, has no race with a parent that is already gone, and does not
hang on the one thread that started the child.
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

GRACE_S: Final = 15.0


def _signal_self(number: int) -> None:
    os.kill(os.getpid(), number)


def watch(
    read_end: int,
    *,
    end: Callable[[int], None] = _signal_self,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Block until ``read_end`` is at its end, then end this process: asked first, forced after `GRACE_S`."""
    while os.read(read_end, 1024):
        pass
    end(signal.SIGTERM)
    sleep(GRACE_S)
    end(signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Run the module named first as ``__main__`` with the rest as its arguments."""
    module, *rest = arguments
    held = os.dup(0)
    threading.Thread(target=watch, args=(held,), name="leash", daemon=True).start()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
