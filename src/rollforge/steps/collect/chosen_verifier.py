"""The verifier that the options of `collect` name."""

from __future__ import annotations

from rollforge.errors import UsageError
from rollforge.steps.collect.collect_options import KNOWN_PARAMETERS, CollectOptions
from rollforge.verifiers.base import Verifier, load_verifier, option_names


def chosen_verifier(options: CollectOptions) -> Verifier | None:
    """Load the verifier; refuse a verifier option that was passed as a request parameter (`-S`)."""
    if options.verifier is None:
        return None
    verifier = load_verifier(options.verifier, options.verifier_options, options.verify_mode)
    for name in option_names(verifier.function):
        if name in options.overrides and name not in KNOWN_PARAMETERS:
            raise UsageError(
                f"-S {name}=… would go to the model server: it is an option of the verifier {verifier.name}",
                hint=f"give --verifier-set {name}=… instead",
            )
    return verifier
