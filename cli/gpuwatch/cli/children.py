"""Child processes of the demo: started on a leash, ended in every case.

Rules: a child has a session of its own, so that Ctrl-C in the terminal reaches only the parent, which then ends its
children in order; it runs on a leash (`leash`), so that it ends when the parent is killed; what it prints goes to a
file, never onto the console's screen.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

KILL_WAIT_S: Final = 5.0
LAST_LINES: Final = 12


class Child:
    """One module of ours in a process of its own; ``grace_s`` is how long it may take to end when asked.

    A context manager: leaving it ends the child.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        output: Path,
        errors: Path,
        environment: Mapping[str, str],
        folder: Path,
        grace_s: float,
    ) -> None:
        self._grace_s = grace_s
        self._errors = errors
        with output.open("wb") as out, errors.open("ab") as err:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", "gpuwatch.cli.leash", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, ``None`` while it lives; negative for the signal that ended it."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Send SIGTERM; a child that has ended already is no error."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; ``None`` when it still lives after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> int:
        """Ask, wait for the grace, then kill. Safe to call again."""
        if self.status is None:
            self.ask_to_end()
            if self.wait(self._grace_s) is None:
                self._process.kill()
                self.wait(KILL_WAIT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        status = self.status
        return -1 if status is None else status

    def last_words(self) -> str:
        """Give the last lines that the child wrote on stderr."""
        lines = self._errors.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])
