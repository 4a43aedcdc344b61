"""Pushes a prepared dataset to the Hugging Face Hub: only on request, and private by default.

The folder is uploaded unchanged. Its card lists the files of every split for `load_dataset` and the viewer. The commit is
recorded only in the local manifest, since the uploaded one is part of the commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollforge.errors import IncompleteError, RollforgeError, UsageError
from rollforge.statistics.counts import count_of
from rollforge.steps.prepare.dataset_manifest import NAME, DatasetManifest, PushRecord
from rollforge.store import write_atomically
from rollforge.text_safety.redaction import SECRETS

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
INSTALL = "pip install 'rollforge[hub]'"


class PushFailed(IncompleteError):
    """The Hub rejected the upload; the dataset on disk is complete."""


class PushTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Destination of the upload, validated before any work."""

    repo: str
    is_public: bool = False

    @classmethod
    def check(cls, repo: str, *, is_public: bool = False) -> PushTarget:
        """Validate the target; raises `UsageError` for an invalid name, a missing package or token, or an existing dataset of
        other visibility.
        """
        if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
            raise UsageError(f"--push {repo}: not a name on the Hub", hint="write --push ORG/NAME")
        api = _api()
        with _telling(repo):
            _refuse_visible(api, repo, is_public=is_public)
        return cls(repo=repo, is_public=is_public)


def push_dataset(folder: Path, manifest: DatasetManifest, target: PushTarget) -> DatasetManifest:
    """Upload the folder in one commit; returns the local manifest with that commit recorded."""
    api = _api()
    with _telling(target.repo, folder):
        api.create_repo(target.repo, repo_type="dataset", private=not target.is_public, exist_ok=True)
        _refuse_visible(
            api, target.repo, is_public=target.is_public
        )  # check the visibility that the server reports before any row is uploaded
        done = api.upload_folder(
            repo_id=target.repo,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=[path.name for path in sorted(folder.iterdir()) if path.is_file()],
            commit_message=f"{manifest.recipe} data for {manifest.to}: {count_of(sum(manifest.splits.values()), 'row')}",
        )
    manifest.push = PushRecord(
        repo=target.repo, commit=str(done.oid), url=str(done.repo_url), private=not target.is_public
    )
    write_atomically(folder / NAME, manifest.to_json())
    return manifest


def _api() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined,unused-ignore]
    except ImportError as error:
        raise UsageError("--push needs the package huggingface_hub", hint=INSTALL) from error
    disable_progress_bars()
    token = huggingface_hub.get_token()
    if not token:
        raise UsageError("--push needs a token of the Hub", hint="set HF_TOKEN, or log in: hf auth login")
    SECRETS.learn(token)
    return huggingface_hub.HfApi(token=token, library_name="rollforge")


def _refuse_visible(api: Any, repo: str, *, is_public: bool) -> None:
    """Refuse to upload private rows to an existing public dataset, unless the user asked for public."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.dataset_info(repo)
    except RepositoryNotFoundError:
        return
    if not info.private and not is_public:
        raise UsageError(
            f"{repo} exists and everybody can read it",
            hint="add --public if that is meant, or push to another name",
        )
    if info.private and is_public:
        raise UsageError(
            f"{repo} exists and is private", hint="leave --public out, and change its visibility on its page"
        )


@contextmanager
def _telling(repo: str, folder: Path | None = None) -> Iterator[None]:
    """Convert errors of the Hub's client to one-line messages."""
    try:
        yield
    except RollforgeError:
        raise
    except Exception as error:  # the Hub's client may raise anything; the dataset is whole on disk
        hint = (
            f"the dataset is whole in {folder}; the same command pushes again"
            if folder
            else "nothing was done"
        )
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PushFailed(f"the Hub did not take {repo}: {text}", hint=hint) from error
