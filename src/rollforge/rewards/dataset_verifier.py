"""The verifier of a prepared dataset: name, options and fingerprint, from its manifest."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Literal

import msgspec

from rollforge.errors import DataError, UsageError
from rollforge.records import JsonFields
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE, read_whole
from rollforge.verifiers.base import Mode, load_verifier

logger = logging.getLogger(__name__)

OnChange = Literal["refuse", "warn"]
RECORDED = "recorded"


class _Source(msgspec.Struct, kw_only=True):
    """The verifier part of a run's entry in the manifest."""

    run: str = ""
    models: list[str] = []
    verifiers: list[str] = []
    verifier_options: JsonFields = {}
    fingerprints: list[str] = []


class _Manifest(msgspec.Struct, kw_only=True):
    sources: list[_Source] = []


class DatasetVerifier(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier that judged a dataset's rollouts."""

    verifier: str
    options: JsonFields
    mode: Mode | None
    models: list[str]
    """Names of the models that made the rollouts."""
    fingerprints: list[str]


def read_dataset(folder: str | Path, *, on_change: OnChange = "refuse") -> DatasetVerifier:
    """The verifier in a dataset's manifest, loaded once to check that it is unchanged."""
    path = Path(folder)
    file = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = decode_json(read_whole(file), _Manifest)
    except OSError as error:
        raise UsageError(
            f"{file}: no such manifest", hint="give the folder of a dataset made by rollforge prepare"
        ) from error
    except UNREADABLE as error:
        raise DataError(
            f"{file}: not a manifest of rollforge prepare: {error}",
            hint="give the folder that prepare wrote",
        ) from error
    sources = [source for source in manifest.sources if source.verifiers]
    verifiers = sorted({(name, _encoded(source)) for source in sources for name in source.verifiers})
    if not verifiers:
        raise UsageError(
            f"{file} names no verifier",
            hint="the rollouts were judged elsewhere; name one: reward('math'), or prepare the dataset again",
        )
    if len(verifiers) > 1:
        names = ", ".join(dict.fromkeys(name for name, _ in verifiers))
        raise UsageError(
            f"{file}: the rollouts were judged in several ways ({names})", hint="name one: reward(NAME)"
        )
    name = _located(verifiers[0][0], file.parent)
    options = sources[0].verifier_options
    if options.get("sandbox") == "off":
        raise UsageError(
            f"{file}: its verifier {name} ran programs without a sandbox, which only you can allow",
            hint=f"reward({name!r}, options={{'sandbox': 'off'}})",
        )
    fingerprints = sorted({print_ for source in sources for print_ in source.fingerprints})
    mode = _mode(name, options, fingerprints, file, on_change)
    models = list(dict.fromkeys(model for source in manifest.sources for model in source.models))
    return DatasetVerifier(
        verifier=name, options=options, mode=mode, models=models, fingerprints=fingerprints
    )


def _encoded(source: _Source) -> bytes:
    return msgspec.json.encode(source.verifier_options, order="sorted")


def _located(name: str, near: Path) -> str:
    """A verifier in a file, found from the working directory or from a folder above the dataset.

    Raises:
        UsageError: the file came with the dataset, which may be a stranger's.
    """
    path, colon, attribute = name.partition(":")
    if not path.endswith(".py"):
        return name
    near = near.resolve()
    for folder in (Path(), *near.parents):
        file = folder / path
        if not file.is_file():
            continue
        if file.resolve().is_relative_to(near):
            raise UsageError(
                f"the verifier {name!r} came with the dataset {near}, and code of a dataset is not run",
                hint=f"read it; then name it: reward({name!r})",
            )
        return name if folder == Path() else f"{file}{colon}{attribute}"
    return name


def _mode(
    name: str, options: JsonFields, fingerprints: list[str], file: Path, on_change: OnChange
) -> Mode | None:
    """The mode whose fingerprint the verdicts have; a different verifier is refused or causes a warning."""
    try:
        loaded = load_verifier(name, options)
    except UsageError as error:
        raise UsageError(
            f"the verifier {name!r} of {file} cannot be loaded: {error}",
            hint="a function of a notebook has no name to find it by: pass it to reward(FUNCTION)",
        ) from error
    if not fingerprints or loaded.fingerprint in fingerprints:
        return loaded.mode
    if loaded.mode is not None and load_verifier(name, options, "fast").fingerprint in fingerprints:
        return "fast"
    text = (
        f"the verifier {name} has changed since {file.parent} was prepared: its fingerprint is {loaded.fingerprint}, "
        f"the rollouts were judged by {', '.join(fingerprints)}"
    )
    if on_change == "refuse":
        run = shlex.quote(str(file.parent))
        raise UsageError(
            text,
            hint="restore that version, judge the run again and prepare anew, or accept it: "
            f"reward.from_dataset({run!r}, on_change='warn')",
        )
    logger.warning("%s", text)
    return loaded.mode
