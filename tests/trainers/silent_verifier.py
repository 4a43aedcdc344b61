"""A verifier that cannot judge anything."""


def verify(task: object, response: object) -> None:
    """Say so."""
