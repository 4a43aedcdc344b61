"""HTTP proxy for a server, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

Servers on this machine are always contacted directly. Credentials in `~/.netrc` are not used.
"""

from __future__ import annotations

import ipaddress
import urllib.request

from yarl import URL


def proxy_for(url: str) -> str | None:
    """The proxy's URL for a server, from the environment; None to connect directly."""
    target = URL(url)
    host = target.host or ""
    if _is_local(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    return proxy or None


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
