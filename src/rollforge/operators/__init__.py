"""Operators: transformations of experiences between rollout and buffer. One file per member, one line here."""

from rollforge.registry import Registry

OPERATORS = Registry(
    "operators",
    {
        "balance": "rollforge.operators.balance:Balance",
        "dedupe": "rollforge.operators.dedupe:Dedupe",
        "difficulty_band": "rollforge.operators.difficulty_band:DifficultyBand",
        "group_advantages": "rollforge.operators.group_advantages:GroupAdvantages",
        "length_filter": "rollforge.operators.length_filter:LengthFilter",
        "normalise_rewards": "rollforge.operators.normalise_rewards:NormaliseRewards",
        "reward_filter": "rollforge.operators.reward_filter:RewardFilter",
        "reward_shaping": "rollforge.operators.reward_shaping:RewardShaping",
        "truncation_filter": "rollforge.operators.truncation_filter:TruncationFilter",
        "zero_signal_filter": "rollforge.operators.zero_signal_filter:ZeroSignalFilter",
    },
)
