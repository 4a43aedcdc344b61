"""The Python process around the steps: event loop, Ctrl-C, compiled modules, a user's own file, guards of HTTP servers."""
