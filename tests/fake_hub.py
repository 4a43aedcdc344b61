"""A small Hugging Face Hub on loopback: datasets with revisions, ranged downloads by way of a storage server, pushes.

It speaks as much as `huggingface_hub`, `datasets` and rollforge ask for, and remembers every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_test-token-of-nobody"


@dataclass
class Request:
    """One request as it came."""

    server: str
    method: str
    path: str
    authorization: str | None


@dataclass
class Dataset:
    """A dataset: its commits and where its branches are."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main", *, keep: bool = False) -> str:
        before = self.commits.get(self.branches.get(branch, ""), {}) if keep else {}
        whole = {**before, **files}
        text = repr((len(self.commits), sorted((name, data) for name, data in whole.items())))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = whole
        self.branches[branch] = sha
        return sha

    def sha(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class FakeHub:
    """`with FakeHub() as hub: hub.add(...)`; `hub.url` is its HF_ENDPOINT."""

    def __init__(self, *, large: int = 1 << 30) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.requests: list[Request] = []
        self.failures_left = 0
        """The next so many answers are 503."""
        self.cut_downloads = 0
        """The next so many downloads end in the middle."""
        self.large = large
        """Files of at least so many bytes come from the storage server, by redirect."""
        self._servers = [self._server("hub", _HubHandler), self._server("storage", _StorageHandler)]

    def _server(self, name: str, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
        kind = type(handler.__name__, (handler,), {"hub": self, "server_name_here": name})
        return ThreadingHTTPServer(("127.0.0.1", 0), kind)

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    @property
    def storage_url(self) -> str:
        # Another name for the same address: clients must take it for another host.
        return f"http://localhost:{self._servers[1].server_address[1]}"

    def add(self, repo: str, files: dict[str, bytes], *, branch: str = "main", private: bool = False) -> str:
        """Commit files to a dataset and return the commit."""
        dataset = self.datasets.setdefault(repo, Dataset(private=private))
        return dataset.commit(files, branch)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    server_name_here = ""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def note(self) -> None:
        self.hub.requests.append(
            Request(self.server_name_here, self.command, self.path, self.headers.get("Authorization"))
        )

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: object, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def send_file(self, data: bytes, commit: str) -> None:
        facts = {"ETag": f'"{blob_id(data)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            part = data[start : end + 1]
            self.answer(206, part, Content_Range=f"bytes {start}-{end}/{len(data)}", **facts)
        elif self.hub.cut_downloads and self.command == "GET":
            self.hub.cut_downloads -= 1
            self.answer(200, data[: len(data) // 2], Content_Length=str(len(data)), **facts)
            self.close_connection = True
        else:
            self.answer(200, data, **facts)


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _StorageHandler(_Handler):
    def do_GET(self) -> None:
        self.note()
        repo, commit, name = unquote(self.path).removeprefix("/").split("::")
        self.send_file(self.hub.datasets[repo].commits[commit][name], commit)

    do_HEAD = do_GET


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        self.note()
        if self.hub.failures_left:
            self.hub.failures_left -= 1
            self.answer(503)
            return
        path = urlsplit(self.path).path
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(match[1], unquote(match[2] or "main"))
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            self._tree(match[1], unquote(match[2]), unquote(match[3] or ""))
        elif match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], unquote(match[2]), unquote(match[3]))
        else:
            self.answer(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.note()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/preupload/(.+)", path):
            files = json.loads(body)["files"]
            modes = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]
            self.answer_json({"files": modes})
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/commit/(.+)", path):
            self._commit(match[1], unquote(match[2]), body)
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/(.+)", path):
            self._paths(match[1], unquote(match[2]), body)
        else:
            self.answer(404)

    def _found(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and its files; answers with the Hub's error when there is none."""
        dataset = self.hub.datasets.get(repo)
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if dataset is None or (dataset.private and not is_known):
            self.answer(401 if not is_known else 404, X_Error_Code="RepoNotFound")
            return None
        sha = dataset.sha(revision)
        if sha is None:
            self.answer(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
            return None
        return sha, dataset.commits[sha]

    def _info(self, repo: str, revision: str) -> None:
        found = self._found(repo, revision)
        if found is None:
            return
        sha, files = found
        siblings: list[dict[str, Any]] = []
        for name, data in files.items():
            entry: dict[str, Any] = {"rfilename": name}
            if "blobs" in parse_qs(urlsplit(self.path).query):
                entry |= {"size": len(data), "blobId": blob_id(data)}
                if len(data) >= self.hub.large:
                    digest = hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        card = files.get("README.md", b"").decode()
        head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
        private = self.hub.datasets[repo].private
        value = {"id": repo, "sha": sha, "private": private, "siblings": siblings, "tags": []}
        self.answer_json(value | ({"cardData": yaml.safe_load(head[1])} if head else {}))

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}

    def _tree(self, repo: str, revision: str, folder: str) -> None:
        found = self._found(repo, revision)
        if found is None:
            return
        inside = {n: d for n, d in found[1].items() if not folder or n.startswith(f"{folder}/")}
        folders = {n.rpartition("/")[0] for n in inside if "/" in n}
        entries = [self._entry(name, data) for name, data in inside.items()]
        entries += [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders]
        self.answer_json(entries)

    def _paths(self, repo: str, revision: str, body: bytes) -> None:
        found = self._found(repo, revision)
        if found is None:
            return
        text = body.decode()
        asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text)["paths"]
        self.answer_json([self._entry(name, found[1][name]) for name in asked if name in found[1]])

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        found = self._found(repo, revision)
        if found is None:
            return
        sha, files = found
        if name not in files:
            self.answer(404, X_Error_Code="EntryNotFound")
        elif len(files[name]) >= self.hub.large:
            self.answer(302, Location=f"{self.hub.storage_url}/{repo}::{sha}::{name}", X_Repo_Commit=sha)
        else:
            self.send_file(files[name], sha)

    def _create(self, body: dict[str, Any]) -> None:
        repo = f"{body.get('organization') or 'nobody'}/{body['name'].rpartition('/')[2]}"
        if repo in self.hub.datasets:
            self.answer_json({"error": "exists", "url": f"{self.hub.url}/datasets/{repo}"}, 409)
            return
        self.hub.datasets[repo] = Dataset(
            private=body.get("visibility") == "private" or bool(body.get("private"))
        )
        self.hub.datasets[repo].commit({".gitattributes": b""})
        self.answer_json({"url": f"{self.hub.url}/datasets/{repo}", "name": repo, "id": repo})

    def _commit(self, repo: str, branch: str, body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        sha = self.hub.datasets[repo].commit(files, branch, keep=True)
        url = f"{self.hub.url}/datasets/{repo}/commit/{sha}"
        self.answer_json({"success": True, "commitOid": sha, "commitUrl": url})
