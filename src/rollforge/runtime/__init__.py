"""Process-level support: event loop, Ctrl-C, compiled modules, user files, guards of HTTP servers."""
