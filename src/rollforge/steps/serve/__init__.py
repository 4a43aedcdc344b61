"""The serve step: a verifier offered over HTTP as a NeMo Gym resources server."""

from rollforge.steps.serve.server import VerifierServer

__all__ = ["VerifierServer"]
