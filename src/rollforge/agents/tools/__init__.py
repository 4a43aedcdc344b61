"""Tools: what a model may call. One file per source of tools; ready toolsets have one line here."""

from rollforge.registry import Registry

TOOLSETS = Registry("toolsets", {"multineedle": "rollforge.verifiers.multineedle:TOOLS"})
