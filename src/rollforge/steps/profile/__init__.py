"""Profile: statistics per task and per agent, under NeMo Gym's names, and what a person should look at."""

from rollforge.steps.profile.gym_files import write_gym_files
from rollforge.steps.profile.run import Profile, ProfileOptions, profile_index, profile_run
from rollforge.steps.profile.write import write_profile

__all__ = ["Profile", "ProfileOptions", "profile_index", "profile_run", "write_gym_files", "write_profile"]
