"""Verifiers: functions from (task, response) to a verdict. One file per member, one line here."""

from rollforge.registry import Registry

VERIFIERS = Registry(
    "verifiers",
    {
        "code": "rollforge.verifiers.code:Code",
        "equivalence_judge": "rollforge.verifiers.equivalence_judge:EquivalenceVerifier",
        "exact": "rollforge.verifiers.exact:Exact",
        "instruction_following": "rollforge.verifiers.instruction_following:InstructionFollowing",
        "json_schema": "rollforge.verifiers.json_schema:JsonSchema",
        "judge": "rollforge.verifiers.judge:RubricJudge",
        "math": "rollforge.verifiers.math:Math",
        "mcqa": "rollforge.verifiers.mcqa:Mcqa",
        "multineedle": "rollforge.verifiers.multineedle:verify",
        "reasoning_gym": "rollforge.verifiers.reasoning_gym:ReasoningGym",
        "regex": "rollforge.verifiers.regex:Regex",
        "script": "rollforge.verifiers.script:Script",
    },
)
