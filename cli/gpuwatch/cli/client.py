"""Talks to a service's admin listener, and turns what goes wrong into one plain line and an exit status."""

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self
from urllib.parse import urlsplit

import typer

from gpuwatch.cli.errors import CommandFailed, NotReachable, WrongUsage

if TYPE_CHECKING:
    import httpx

    from gpuwatch.storage.discovery import Found
    from gpuwatch.storage.reader import Reader

TIMEOUT_S: Final = 10.0

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="ADMIN_URL", help="The service's admin address; default: the one that runs here."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the token; default: found with the service.")
]
DataDirectory = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The service's data directory; default: $GPUWATCH_DATA_DIR, else the user's."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine output on stdout.")]


def find_service(url: str | None, token_file: Path | None, data_dir: Path | None) -> "Found | None":
    """Find the service meant; ``None`` when there is none. Raises `WrongUsage` for a token file that has no token."""
    from gpuwatch.storage.datadir import read_token  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage.discovery import find  # noqa: PLC0415 - the same

    found = find(url, data_dir, environ=os.environ)
    if found is None or token_file is None:
        return found
    try:
        token = read_token(token_file)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"--token-file {token_file}: {error}") from None
    if token is None:
        raise WrongUsage(f"--token-file {token_file}: there is no token in it")
    return replace(found, token=token)


def reach(url: str | None, token_file: Path | None, data_dir: Path | None) -> "Admin":
    """Give a connection to the service meant. Raises `NotReachable` when none runs."""
    found = find_service(url, token_file, data_dir)
    if found is None:
        where = f"on {data_dir}" if data_dir else "here"
        raise NotReachable(f"no service runs {where}; start one with `gpuwatch serve`, or name it with --url")
    return Admin(found.admin_url, found.token)


def open_database(data_dir: Path | None) -> "Reader":
    """Give the database of the data directory named, of the service that runs here, or of the default directory."""
    from gpuwatch.storage.datadir import DataDir  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage.discovery import find  # noqa: PLC0415 - the same
    from gpuwatch.storage.reader import Reader  # noqa: PLC0415 - the same

    if data_dir is not None:
        return Reader(DataDir(data_dir).database)
    environ = {k: v for k, v in os.environ.items() if k != "GPUWATCH_ADMIN_URL"}  # an address has no database
    found = find(environ=environ)
    if found is not None and found.info is not None:
        return Reader(found.info.db)
    return Reader(DataDir.default(os.environ).database)


def actor() -> str:
    """Say who turns a knob: the user's name at this host's."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this uid, as in many containers
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Admin:
    """A service's admin listener. A context manager.

    Every call raises `NotReachable` when nothing answers and `CommandFailed` with the service's own words when it
    refuses. ``transport`` replaces the network.
    """

    def __init__(self, url: str, token: str | None, *, transport: "httpx.BaseTransport | None" = None) -> None:
        import httpx  # noqa: PLC0415 - keeps --help light

        headers = {"X-Gpuwatch-Actor": actor().encode("ascii", "replace").decode()}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._url = url.rstrip("/")
        self._has_token = token is not None
        if not _is_address(self._url):
            raise WrongUsage(f"{url!r} is no address; write it like http://127.0.0.1:8001")
        self._client = httpx.Client(
            base_url=self._url, headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON has no narrower type
        """GET a path below ``/admin``."""
        return self._call("GET", path, None)

    def patch(self, path: str, body: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON has no narrower type
        """PATCH a path below ``/admin``."""
        return self._call("PATCH", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:  # noqa: ANN401 - as above
        import httpx  # noqa: PLC0415 - keeps --help light

        try:
            response = self._client.request(method, f"/admin{path}", json=body)
        except httpx.TransportError as error:
            raise NotReachable(f"no service answers at {self._url} ({error or type(error).__name__})") from None
        except httpx.DecodingError as error:
            raise CommandFailed(f"{self._url}: {error}") from None
        if not response.is_success:
            raise CommandFailed(self._refusal(response))
        try:
            return response.json()
        except ValueError:
            raise CommandFailed(f"{self._url} does not speak as gpuwatch does; is it the admin address?") from None

    def _refusal(self, response: "httpx.Response") -> str:
        if response.status_code == 401:  # noqa: PLR2004 - RFC 9110
            why = "the token is not the service's" if self._has_token else "it wants a token: --token-file"
            return f"{self._url} refuses us: {why}"
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, Mapping):
            return f"{self._url} answers {response.status_code}; is it the admin address?"
        bad = problem.get("problems")
        if isinstance(bad, Mapping) and bad:
            return "nothing was changed\n" + "\n".join(f"  {key}: {what}" for key, what in bad.items())
        said = problem.get("detail") or problem.get("title")
        return str(said) if said else f"{self._url} answers {response.status_code}"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, or a port that is none
        return False
