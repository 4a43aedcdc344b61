"""A signed session cookie, set on every answer, as NeMo Gym's servers do.

The server stores no session state, since a verdict depends only on the request; but NeMo Gym's clients expect the cookie.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import uuid

from aiohttp import web

from rollforge.records import from_json, to_json
from rollforge.runtime.web_guard import is_same_secret
from rollforge.store.reading import UNREADABLE

MAX_AGE_S = 14 * 24 * 3600


class Sessions:
    """Signs and verifies cookies; the secret lasts as long as the process."""

    def __init__(self, verifier: str) -> None:
        self.cookie = f"RollforgeVerifier___{re.sub(r'[^A-Za-z0-9_]+', '_', verifier)}"
        self._secret = secrets.token_bytes(32)

    def of(self, request: web.Request) -> str:
        """The request's session, or a new one if its cookie has no valid signature."""
        data, _, signature = request.cookies.get(self.cookie, "").rpartition(".")
        if data and is_same_secret(signature, self._sign(data)):
            try:
                return str(from_json(base64.urlsafe_b64decode(data))["session_id"])
            except (binascii.Error, KeyError, TypeError, *UNREADABLE):
                pass
        return str(uuid.uuid4())

    def send(self, session: str, answer: web.StreamResponse) -> None:
        """Set the cookie on an answer."""
        data = base64.urlsafe_b64encode(to_json({"session_id": session})).decode()
        answer.set_cookie(
            self.cookie,
            f"{data}.{self._sign(data)}",
            max_age=MAX_AGE_S,
            path="/",
            httponly=True,
            samesite="Lax",
        )

    def _sign(self, data: str) -> str:
        return hmac.new(self._secret, data.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
