"""Hook of the docs site: the pages' Markdown is published beside them, where `llms.txt` links to it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def on_post_build(config: Mapping[str, Any]) -> None:
    """Copy every page's source into the built site; MkDocs calls this."""
    source, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in source.rglob("*.md"):
        target = site / page.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
