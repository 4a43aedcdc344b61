"""Files that expose an adapter, for trainers configured with a path instead of an object."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rollforge.errors import UsageError
from rollforge.records import JsonFields
from rollforge.rewards.dataset_verifier import DatasetVerifier
from rollforge.rewards.scoring import UnjudgedPolicy
from rollforge.verifiers.base import load_verifier

Adapter = Literal["trl", "verl", "openrlhf", "nemo-rl"]
WRITABLE: tuple[Adapter, ...] = ("trl", "verl", "openrlhf", "nemo-rl")

_TRL = '''"""rollforge's verifier {verifier} as a TRL reward function: reward_funcs=[reward_func]."""

from rollforge.rewards import reward

reward_func = reward({arguments})
'''

_OPENRLHF = '''"""rollforge's verifier {verifier} for OpenRLHF: --reward.remote_url THIS_FILE."""

from rollforge.rewards import make_reward_func

reward_func = make_reward_func({arguments})
'''

_VERL = '''"""rollforge's verifier {verifier} for verl: reward.custom_reward_function.path=THIS_FILE, name=compute_score."""

from functools import partial

from rollforge.rewards import compute_score as score

compute_score = partial(score, {keywords})
'''

_NEMO_RL = """# rollforge's verifier {verifier} as a NeMo-RL environment: a NeMo Gym resources server. Start it first:
#   rollforge serve-verifier {words} --port 8090
# or let NeMo Gym start it: rollforge serve-verifier {words} --write-server resources_servers/{name}
env:
  should_use_nemo_gym: true
  nemo_gym:
    config_paths:
      - resources_servers/{name}/configs/{name}.yaml
      - responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
"""


def adapter_path(adapter: Adapter) -> Path:
    """Path of an adapter file inside the package, for trainers that load a function from a path."""
    return Path(__file__).with_name(f"{adapter}.py")


def write_adapter(
    adapter: Adapter, verifier: str | DatasetVerifier, options: JsonFields, on_unjudged: str | None = None
) -> str:
    """Source text of a file with this verifier for a trainer; invalid options and policies are refused now, not inside the job."""
    if isinstance(verifier, DatasetVerifier):
        name, options, mode = verifier.verifier, verifier.options, verifier.mode
    else:
        name, mode = verifier, None
    loaded = load_verifier(name, options, mode)
    is_none = on_unjudged is not None and UnjudgedPolicy.parse(on_unjudged, label="--on-unjudged ").is_none
    if is_none and adapter != "trl":
        raise UsageError(
            f"--on-unjudged none: {adapter} has no missing reward",
            hint="leave it out to stop, or say a number: --on-unjudged value=0",
        )
    extra = {"mode": mode, "on_unjudged": on_unjudged}
    extra_keywords = {key: value for key, value in extra.items() if value is not None}
    words = [repr(name), *([repr(options)] if options else [])]
    keywords = {"verifier": name, **({"options": options} if options else {}), **extra_keywords}
    fields = {
        "verifier": loaded.name,
        "arguments": ", ".join([*words, *(f"{key}={value!r}" for key, value in extra_keywords.items())]),
        "keywords": ", ".join(f"{key}={value!r}" for key, value in keywords.items()),
    }
    if adapter == "nemo-rl":
        return _nemo_rl(name, options)
    return {"trl": _TRL, "verl": _VERL, "openrlhf": _OPENRLHF}[adapter].format(**fields)


def _nemo_rl(name: str, options: JsonFields) -> str:
    import shlex

    import msgspec

    settings = [
        word
        for key, value in options.items()
        for word in (
            "--verifier-set",
            f"{key}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}",
        )
    ]
    folder = "".join(letter if letter.isalnum() else "_" for letter in Path(name.partition(":")[0]).stem)
    return _NEMO_RL.format(verifier=name, words=shlex.join([name, *settings]), name=f"rollforge_{folder}")
