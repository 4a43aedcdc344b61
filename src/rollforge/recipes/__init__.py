"""Recipes: which rollouts to train on, and how they are combined. One file per member, one line here."""

from rollforge.registry import Registry

RECIPES = Registry(
    "recipes",
    {
        "dpo": "rollforge.recipes.dpo:select",
        "grpo": "rollforge.recipes.grpo:select",
        "kto": "rollforge.recipes.kto:select",
        "ppo": "rollforge.recipes.ppo:select",
        "rm": "rollforge.recipes.rm:select",
        "sft": "rollforge.recipes.sft:select",
    },
)
