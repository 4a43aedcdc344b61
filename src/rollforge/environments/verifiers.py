"""Environments of the verifiers library: `verifiers:NAME[?key=value&…]`, of version 0 or of version 1.

A module with `load_environment` is of version 0, one that exports a `Taskset` is of version 1. The two versions are in different
releases of the library, which are pinned: 0.3.1 is the last one with version 0, and version 1 changes too often to accept other
releases.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from rollforge.environments.base import Environment, EnvironmentSpec, missing_package
from rollforge.environments.verifiers_release import INSTALL_V0, INSTALL_V1, PIN_V0, PIN_V1, source_digest
from rollforge.errors import UsageError


def open_verifiers(spec: EnvironmentSpec) -> Environment:
    """The environment with this name, of either version."""
    try:
        installed = version("verifiers")
    except PackageNotFoundError as error:
        raise missing_package(
            "verifiers", f"version 1: {INSTALL_V1}; version 0: verifiers=={PIN_V0} instead"
        ) from error
    module = environment_module(spec.name, installed)
    if hasattr(module, "load_environment"):
        from rollforge.environments.verifiers_v0 import VerifiersV0

        _require(installed, PIN_V0, spec.name, "0")
        return VerifiersV0(spec)
    from rollforge.environments.verifiers_v1 import VerifiersV1

    _require(installed, PIN_V1, spec.name, "1")
    return VerifiersV1(spec, source=source_digest(module))


def environment_module(name: str, installed: str) -> ModuleType:
    """The module of an environment: an installed package, or a taskset included in the library."""
    module_name = name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
    bundled = f"verifiers.v1.tasksets.{module_name}"
    try:
        return importlib.import_module(bundled if importlib.util.find_spec(bundled) else module_name)
    except ImportError as error:
        is_old = "legacy" in str(error) and not installed.startswith("0.3.")
        raise UsageError(
            f"--env verifiers:{name}: {error}", hint=INSTALL_V0 if is_old else _installs(installed)
        ) from error


def _installs(installed: str) -> str:
    return (
        f"verifiers {installed} is here; install the environment's own package (prime env install OWNER/NAME)"
    )


def _require(installed: str, pin: str, name: str, generation: str) -> None:
    """Refuse a release of the library that has the other version, or with which this adapter is untested."""
    if installed != pin:
        raise UsageError(
            f"{name} is an environment of version {generation}, which runs with verifiers {pin}; {installed} is installed",
            hint=f"pip install verifiers=={pin}",
        )
