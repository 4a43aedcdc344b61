"""A verifier as a trainer's reward function: verdicts, isolation and time limits are the same as in `collect`.

trl               `reward("math")` for TRL's GRPOTrainer and RLOOTrainer
verl              `compute_score` for verl's custom reward function
openrlhf          `reward_func` for OpenRLHF's --reward.remote_url
score_settings    verl's `reward_kwargs` as a record
scoring           the judge behind them, in a thread of its own; what happens without a verdict
trainer_rows      a trainer's rows and answers as a task and a response
dataset_verifier  verifier, options and fingerprint out of a prepared dataset
adapter_files     files that name an adapter, for trainers that are configured by path
"""

from rollforge.rewards.adapter_files import WRITABLE, adapter_path, write_adapter
from rollforge.rewards.dataset_verifier import DatasetVerifier, read_dataset
from rollforge.rewards.openrlhf import make_reward_func, reward_func
from rollforge.rewards.scoring import Judgement, Scorer, Unjudged, UnjudgedPolicy
from rollforge.rewards.trl import Reward, reward
from rollforge.rewards.verl import compute_score, compute_score_async

__all__ = [
    "WRITABLE",
    "DatasetVerifier",
    "Judgement",
    "Reward",
    "Scorer",
    "Unjudged",
    "UnjudgedPolicy",
    "adapter_path",
    "compute_score",
    "compute_score_async",
    "make_reward_func",
    "read_dataset",
    "reward",
    "reward_func",
    "write_adapter",
]
