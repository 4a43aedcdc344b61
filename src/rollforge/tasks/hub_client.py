"""Reads the Hub over plain HTTPS: lists and downloads a dataset's files at a commit, cached on disk by commit.

`HF_ENDPOINT` names another server, `HF_TOKEN` (or the file that `hf auth login` writes) the token, which is sent only to that
server. Files of a commit never change, so cached copies are never requested again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from rollforge.errors import DataError, IncompleteError, UsageError
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.atomic import write_atomically
from rollforge.store.reading import UNREADABLE, read_json, reason_of
from rollforge.tasks.hub import HubFile, HubInfo
from rollforge.text_safety.redaction import SECRETS

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

T = TypeVar("T")
ENDPOINT = "https://huggingface.co"
TRIES = 5
WAIT_S = 1.0
"""Pause before the second try in seconds; doubled for each further try."""
LONGEST_WAIT_S = 30.0
CONNECT_S = 30.0
READ_S = 120.0
LARGEST_INFO = 64 << 20
BLOCK = 1 << 20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class HubUnreachable(IncompleteError):
    """The Hub did not answer as expected; the same command can be repeated later."""


def endpoint() -> str:
    """The Hub's address."""
    address = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(f"HF_ENDPOINT={address} is no web address", hint=f"such as {ENDPOINT}")
    return address


def read_token() -> str | None:
    """The token from the environment, or from the file of the Hub's own tools."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name, "").strip():
            SECRETS.learn(token)
            return token
    home = Path(os.environ.get("HF_HOME") or _cache_home() / "huggingface").expanduser()
    path = Path(os.environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if token:
        SECRETS.learn(token)
    return token or None


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


class HubClient:
    """Client of one Hub server; results for a commit are cached in the user's cache folder."""

    def __init__(self) -> None:
        self._endpoint = endpoint()
        self._host = hashlib.sha256(self._endpoint.encode()).hexdigest()[:8]

    def info(self, repo: str, revision: str) -> HubInfo:
        """The dataset at a revision; a commit that was read before needs no network."""
        info_file = self._folder(repo, revision) / "info.json"
        if len(revision) == 40 and info_file.is_file():
            return read_json(info_file, HubInfo, hint="remove this file: it is a copy of the Hub's answer")
        info = _wait_for(self._ask_info(repo, revision))
        path = self._folder(repo, info.commit) / "info.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(info))
        return info

    def fetch(self, repo: str, commit: str, file: HubFile) -> Path:
        """The local copy of a file, downloaded if missing."""
        name = PurePosixPath(file.path)
        if name.is_absolute() or ".." in name.parts or "\\" in file.path or "\0" in file.path:
            raise DataError(
                f"{repo}: the file name {file.path!r} leads out of the dataset",
                hint="do not use this dataset, and tell the Hub",
            )
        path = self._folder(repo, commit) / "files" / name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            _wait_for(self._download(repo, commit, file, path))
        return path

    def _folder(self, repo: str, commit: str) -> Path:
        owner, _, name = repo.partition("/")
        return _cache_home() / "rollforge" / "hub" / self._host / owner / name / commit.replace("/", "--")

    async def _ask_info(self, repo: str, revision: str) -> HubInfo:
        url = f"{self._endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}?blobs=true"
        async with _session() as session:
            body = await self._tried(lambda: self._read(session, url, repo, revision), repo)
        try:
            answer = decode_json(body, _Answer)
        except UNREADABLE as error:
            raise HubUnreachable(f"{self._endpoint}: not an answer of the Hub: {reason_of(error)}") from error
        files = [
            HubFile(one.rfilename, one.size, one.lfs.sha256 if one.lfs else None) for one in answer.siblings
        ]
        configs = answer.cardData.get("configs") if isinstance(answer.cardData, dict) else None
        return HubInfo(
            repo,
            answer.sha,
            files,
            [one for one in configs if isinstance(one, dict)] if isinstance(configs, list) else [],
        )

    async def _read(self, session: aiohttp.ClientSession, url: str, repo: str, revision: str) -> bytes:
        async with session.get(url, headers=_headers()) as answer:
            await self._refuse_status(answer, repo, revision)
            body = bytearray()
            async for block in answer.content.iter_chunked(BLOCK):
                body += block
                if len(body) > LARGEST_INFO:
                    raise HubUnreachable(f"{self._endpoint}: an answer of more than {LARGEST_INFO:,} bytes")
            return bytes(body)

    async def _download(self, repo: str, commit: str, file: HubFile, path: Path) -> None:
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        url = f"{self._endpoint}/datasets/{repo}/resolve/{commit}/{quote(file.path)}"
        logger.info("downloading %s of %s at %s", file.path, repo, commit)
        try:
            async with _session() as session:
                await self._tried(lambda: self._append(session, url, repo, commit, file, partial), repo)
            _check_copy(partial, repo, file)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    async def _append(
        self, session: aiohttp.ClientSession, url: str, repo: str, commit: str, file: HubFile, partial: Path
    ) -> None:
        """Download the rest of a file, continuing after an interrupted try."""
        have = partial.stat().st_size if partial.exists() else 0
        headers = _headers() | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        async with session.get(url, headers=headers) as answer:
            await self._refuse_status(answer, repo, commit)
            is_rest = answer.status == 206
            size = have if is_rest else 0
            with partial.open("ab" if is_rest else "wb") as target:
                async for block in answer.content.iter_chunked(BLOCK):
                    size += len(block)
                    if file.size is not None and size > file.size:
                        raise HubUnreachable(
                            f"{repo}: {file.path} is longer than the Hub says ({file.size:,} bytes)"
                        )
                    target.write(block)

    async def _refuse_status(self, answer: aiohttp.ClientResponse, repo: str, revision: str) -> None:
        if answer.status < 300:
            return
        if answer.status in _PASSING:
            answer.raise_for_status()
        code, text = answer.headers.get("X-Error-Code", ""), answer.headers.get("X-Error-Message", "")
        if code == "RevisionNotFound" or (answer.status == 404 and code != "RepoNotFound"):
            raise RevisionMissing(
                f"{repo} has no revision {revision!r} on {self._endpoint}",
                hint=text or "check the name after @",
            )
        if code == "GatedRepo":
            raise UsageError(
                f"{repo} is gated", hint="ask for access on its page, and set HF_TOKEN to a token of yours"
            )
        if answer.status in (401, 403, 404):
            raise UsageError(
                f"{repo}: no such dataset on {self._endpoint}, or it is private",
                hint="check the name; set HF_TOKEN to a token that may read it",
            )
        raise HubUnreachable(f"{self._endpoint} answered {answer.status} for {repo}", hint=text or None)

    async def _tried(self, work: Any, repo: str) -> Any:
        """Retry a few times with growing pauses after errors of connection or server."""
        import aiohttp

        for attempt in range(1, TRIES + 1):
            try:
                return await work()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if attempt == TRIES:
                    raise HubUnreachable(
                        f"{self._endpoint}: {repo} could not be read: {error or type(error).__name__}",
                        hint="try again later; a dataset that was read before needs no network when its commit is named",
                    ) from error
                if attempt == 1:
                    logger.warning("%s: %s; trying again", self._endpoint, error or type(error).__name__)
                await asyncio.sleep(min(LONGEST_WAIT_S, WAIT_S * 2 ** (attempt - 1)))
        raise AssertionError("unreachable")


class RevisionMissing(UsageError):
    """The dataset has no such revision."""


class _Lfs(msgspec.Struct):
    sha256: str | None = None


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _Answer(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []
    cardData: Any = None


def _check_copy(path: Path, repo: str, file: HubFile) -> None:
    if file.size is not None and path.stat().st_size != file.size:
        raise HubUnreachable(
            f"{repo}: {file.path} arrived with {path.stat().st_size:,} of {file.size:,} bytes",
            hint="try again",
        )
    if file.sha256 is not None:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != file.sha256:
            raise DataError(
                f"{repo}: {file.path} is not what the Hub says (sha256 {digest[:12]}…)", hint="try again"
            )


def _headers() -> dict[str, str]:
    token = read_token()
    return {"User-Agent": "rollforge", **({"Authorization": f"Bearer {token}"} if token else {})}


def _session() -> aiohttp.ClientSession:
    import aiohttp

    # aiohttp drops Authorization when a redirect leads to another host: a storage server never sees the token.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
    return aiohttp.ClientSession(timeout=timeout, trust_env=True)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion, even if an event loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
