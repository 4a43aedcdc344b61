"""Settings shared by all tests: a busy machine must not fail a property for being slow."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
