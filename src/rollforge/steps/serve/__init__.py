"""The serve step: a verifier over HTTP as a NeMo Gym resources server."""

from rollforge.steps.serve.gym_folder import write_gym_folder
from rollforge.steps.serve.verifier_server import VerifierServer

__all__ = ["VerifierServer", "write_gym_folder"]
