"""Runs inside NeMo Gym's environment: serves one of its resources servers on a free port, or names its shipped files.

`serve.py files NAME…` prints {name: folder}; `serve.py serve NAME` prints the port, then serves until stdin closes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock


def folder_of(name: str) -> str:
    spec = importlib.util.find_spec("resources_servers")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(next(iter(spec.submodule_search_locations))) / name)


def serve(name: str) -> None:
    import uvicorn
    from nemo_gym.base_resources_server import SimpleResourcesServer
    from nemo_gym.mcp_auto_exposure import maybe_auto_expose
    from nemo_gym.server_utils import ServerClient

    module = importlib.import_module(f"resources_servers.{name}.app")
    (server_class,) = [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, SimpleResourcesServer)
        and found.__module__ == module.__name__
    ]
    config_class = server_class.model_fields["config"].annotation
    options = {"expose_tools_over_mcp": True} if "mcp" in name else {}
    config = config_class(host="127.0.0.1", port=0, entrypoint="app.py", name=name, **options)
    server = server_class(config=config, server_client=MagicMock(spec=ServerClient))  # asks no other server
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    app = server.setup_webserver()
    maybe_auto_expose(server, app)  # as NeMo Gym does when it starts a server
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "files":
        print(json.dumps({name: folder_of(name) for name in sys.argv[2:]}))
    else:
        serve(sys.argv[2])
