"""`rollforge view`: read a million rollouts in the browser, suspicious first, and label them."""

from __future__ import annotations

import os
import webbrowser
from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.converters import PORT, Flag
from rollforge.cli.render.console import print_json, say
from rollforge.cli.signals import until_stopped
from rollforge.errors import Exit, UsageError

EXAMPLE = "rollforge view runs/first"


def view(
    run: Annotated[list[str], Parameter(name="run")],
    /,
    *,
    port: Annotated[int, PORT] = 0,
    host: str = "127.0.0.1",
    token_env: str | None = None,
    token: Annotated[str | None, Parameter(show=False)] = None,
    proxy_host: list[str] | None = None,
    verifier: str | None = None,
    no_browser: Flag = False,
    json: Flag = False,
) -> Exit:
    """View runs in the browser: rollouts, groups, findings and charts, suspicious rollouts first.

    Serves a page on this machine until Ctrl-C. The printed address carries a token; nothing answers without it. On another
    machine, forward the port: ssh -L 8801:127.0.0.1:8801 HOST, and open the address there.

    Parameters
    ----------
    run
        One or more runs; several can be compared in the page.
    port
        Port to serve on; 0 takes a free one.
    host
        Address to serve on. One that other machines can reach needs --token-env.
    token_env
        Name of the environment variable with a token of your own.
    token
        A token of your own.
    proxy_host
        Name of a proxy through which browsers reach this machine, as the JupyterHub in https://NAME/user/me/proxy/8801/;
        repeatable.
    verifier
        Whose verdicts count, when a run has several.
    no_browser
        Do not open a browser.
    json
        Print one JSON object with the address, then serve.
    """
    from rollforge.runtime.event_loop import run_async
    from rollforge.view import ViewOptions, serve

    if token_env is not None and not os.environ.get(token_env):
        raise UsageError(f"the variable {token_env} is not set", hint="set it to a long random text")
    chosen = os.environ[token_env] if token_env is not None else token
    options = ViewOptions(
        runs=tuple(run),
        host=host,
        port=port,
        token=chosen,
        verifier=verifier,
        proxy_hosts=tuple(proxy_host or ()),
    )

    def ready(address: str) -> None:
        if json:
            print_json({"address": address})
        else:
            say(f"open {address}\n(Ctrl-C ends it)")
        if not no_browser and not json:
            webbrowser.open(address)

    run_async(until_stopped(serve(options, ready)))
    return Exit.DONE
