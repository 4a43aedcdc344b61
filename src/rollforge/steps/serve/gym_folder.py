"""Writes a folder with which NeMo Gym 0.7 starts one of our verifiers as a resources server.

NeMo Gym starts `resources_servers/NAME/app.py` itself with a host and a port, and refuses ports that are in use. The written
`app.py` starts `rollforge serve-verifier` on that port.
"""

from __future__ import annotations

import re
from pathlib import Path

from rollforge.errors import UsageError
from rollforge.verifiers.base import Verifier

_APP = '''"""Starts rollforge's verifier {verifier} as a NeMo Gym resources server, on the host and port that NeMo Gym assigns."""

import os
import sys

from nemo_gym.base_resources_server import SimpleResourcesServer

COMMAND = {command!r}

if __name__ == "__main__":
    config = SimpleResourcesServer.load_config_from_global_config()
    address = ["--host", str(config.host), "--port", str(config.port)]
    os.execv(sys.executable, [sys.executable, *COMMAND, *address])
'''

_CONFIG = """{name}:
  resources_servers:
    {name}:
      entrypoint: app.py
      domain: other
      verified: false
      description: rollforge's verifier {verifier}
{name}_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: {name}
      model_server:
        type: responses_api_models
        name: policy_model
"""

_README = """# {name}

`{verifier}` of rollforge as a NeMo Gym resources server. Put this folder into `resources_servers/` of NeMo Gym, then:

    ng_run "+config_paths=[resources_servers/{name}/configs/{name}.yaml,responses_api_models/openai_model/configs/openai_model.yaml]"

Rows need: {needs}. A rollout that the verifier cannot judge has `mask_sample: true`, `failure_kind` and `failure_reason`.
"""


def write_gym_folder(folder: Path, verifier: Verifier, words: list[str]) -> list[Path]:
    """Write app.py, its requirements, a configuration and a README; existing files are refused, not overwritten.

    Args:
        words: The arguments after `serve-verifier` that choose the verifier and its options.
    """
    name = re.sub(r"\W+", "_", folder.name) or "rollforge_verifier"
    fields = {
        "name": name,
        "verifier": verifier.name,
        "needs": ", ".join(verifier.needs) or "nothing",
        "command": ["-m", "rollforge", "serve-verifier", *words],
    }
    texts = {
        folder / "app.py": _APP.format(**fields),
        folder / "requirements.txt": "-e nemo-gym[dev] @ ../../\nrollforge\n",
        folder / "configs" / f"{name}.yaml": _CONFIG.format(**fields),
        folder / "README.md": _README.format(**fields),
    }
    existing = next((path for path in texts if path.exists()), None)
    if existing is not None:
        raise UsageError(f"{existing} exists already", hint="name another folder, or delete it first")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)
