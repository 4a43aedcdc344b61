"""The tested releases of the verifiers library, and what else a fingerprint needs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

PIN_V0, PIN_V1 = "0.3.1", "0.4.0"
OWN_PACKAGE = "then the environment's own package (prime env install OWNER/NAME)"
INSTALL_V0 = f"pip install verifiers=={PIN_V0}, {OWN_PACKAGE}"
INSTALL_V1 = f"pip install verifiers=={PIN_V1}, {OWN_PACKAGE}"


def source_digest(module: ModuleType) -> str | None:
    """Digest of the module's source: an edited reward function may produce other verdicts."""
    if module.__file__ is None:
        return None
    path = Path(module.__file__)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
