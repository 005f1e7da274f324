"""Who may use the admin listener: pure ASGI in front of the app.

Rules: tokens are compared in constant time; the read token may only GET; a ``Host`` that is neither loopback nor listed
is refused, so that no web page can reach the listener through the operator's browser by a name of its own.
"""

import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuwatch.service.http.problems import problem
from gpuwatch.storage.datadir import Tokens

_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:/?#@\s]+))(?::\d{1,5})?")
_READING: Final = frozenset({"GET", "HEAD"})


class AdminGuard:
    """Lets through what has the right ``Host`` and, below ``/admin``, the right token."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens, allowed_hosts: Iterable[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host = host_name(request.headers.get("host", ""))
        if host not in self._hosts and not is_loopback(host):
            detail = f"The host {host[:200]!r} is not served; admin.allowed_hosts lists those that are."
            return problem(421, "Misdirected request", detail)
        # The path as it is routed: one made of the whole URL could be bent by what stands in ``Host``.
        if not request.scope["path"].startswith("/admin"):
            return None
        role = self._role(request.headers.get("authorization", ""))
        if role is None:
            title = "The token is missing or wrong"
            detail = "Send 'Authorization: Bearer TOKEN' with the token in the data directory's admin.token."
            return problem(401, title, detail, {"WWW-Authenticate": "Bearer"})
        if role == "read" and request.method not in _READING:
            return problem(403, "The read token may only read", "Use the admin token for changes.")
        request.scope["gpuwatch.role"] = role
        return None

    def _role(self, header: str) -> str | None:
        scheme, _, token = header.partition(" ")
        given = token.strip().encode()
        # Both are compared always, so that the time tells nothing about which one was close.
        admin = hmac.compare_digest(given, self._tokens.admin.encode())
        read = hmac.compare_digest(given, self._tokens.read.encode())
        if scheme.lower() != "bearer":
            return None
        return "admin" if admin else "read" if read else None


def host_name(header: str) -> str:
    """Give the name or address in a ``Host`` header, without its port; what is neither comes back as it is."""
    found = _HOST.fullmatch(header)
    return (found["address"] or found["name"]).lower() if found else header


def is_loopback(host: str) -> bool:
    """Whether the name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
