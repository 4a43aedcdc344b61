"""Profile: statistics per task and per agent, under NeMo Gym's names, and tasks to review."""

from rollforge.steps.profile.gym_files import write_gym_files
from rollforge.steps.profile.profile_files import write_profile
from rollforge.steps.profile.profile_tables import Profile, ProfileOptions, profile_index, profile_run

__all__ = ["Profile", "ProfileOptions", "profile_index", "profile_run", "write_gym_files", "write_profile"]
