"""Access control of the viewer: a token is required, Host must be this machine, and other sites' pages are refused.

A page of another site can send requests to a server on loopback. So every request needs the token (as a cookie after the
first visit), a Host that is this machine, and must not come from another site; writes also need a header that no form
can send.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from rollforge.errors import RollforgeError
from rollforge.runtime.web_guard import is_same_secret

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
WRITE_HEADER = "X-Rollforge"
LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$", re.IGNORECASE)
"""Loopback names, with any port, since ssh -L and editors forward other ports."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """The access rules as aiohttp middleware."""

    def __init__(
        self, token: str, *, port: int, is_loopback: bool = True, proxy_hosts: Collection[str] = ()
    ) -> None:
        self._token = token
        self._is_loopback = is_loopback
        self._proxy_hosts = {name.lower() for name in proxy_hosts}
        """Names of the proxies that pass on requests with their own Host, such as a JupyterHub."""
        self._cookie = f"rollforge-{port}-{secrets.token_hex(4)}"
        """Cookie name with the port, because cookies are shared between ports of a host, and two viewers must not collide."""

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse forbidden requests; set security headers on the others."""
        response: web.StreamResponse | None = self._refusal(request)
        if response is None and request.query.get("token") is not None:
            response = self._log_in(request)
        if response is None and not self._is_known(request.cookies.get(self._cookie)):
            response = web.Response(
                status=401, text="open the address that rollforge view printed: it carries the token\n"
            )
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
            except RollforgeError as error:  # a file of the run is damaged
                response = web.Response(status=400, text=f"{error}\n")
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        host = request.headers.get("Host", "")
        if self._is_loopback and not LOOPBACK.match(host) and not self._is_proxy(host):
            return web.Response(
                status=400,
                text="this server answers to localhost, 127.0.0.1 and [::1] only; behind a proxy of another name, "
                "such as a JupyterHub, start it with --proxy-host NAME\n",
            )
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
            return web.Response(status=403, text="requests from other sites are refused\n")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return web.Response(status=403, text="requests from other sites are refused\n")
        if request.method not in ("GET", "HEAD"):
            is_json = request.content_type == "application/json"
            if request.method != "POST" or not is_json or WRITE_HEADER not in request.headers:
                return web.Response(
                    status=403, text=f"writes are POST with JSON and the header {WRITE_HEADER}\n"
                )
        return None

    def _is_proxy(self, host: str) -> bool:
        return host.lower().partition(":")[0] in self._proxy_hosts

    def _is_known(self, token: str | None) -> bool:
        return token is not None and is_same_secret(token, self._token)

    def _log_in(self, request: web.Request) -> web.Response | None:
        """Turn a token in the address into a cookie, and redirect to the address without it."""
        if not self._is_known(request.query.get("token")):
            return web.Response(status=401, text="the token is wrong\n")
        response = web.Response(status=302, headers={"Location": "./"})
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict", path="/")
        return response
