"""Presets: command lines and environment variables of widely used agent programs. The programs are not included; install them
first.

A preset breaks when its program changes its flags; `make agents` installs the versions that these were tried with. A prompt may
begin with a dash: it follows `--`, or is joined to its flag in one argument.
"""

from __future__ import annotations

from rollforge.agents.program import Preset, Program


class ClaudeCode(Program):
    """Claude Code, over Anthropic's Messages."""

    name = "claude-code"
    preset = Preset(
        words=(
            *("claude", "--print", "--model", "{model}", "--permission-mode", "bypassPermissions"),
            *("--output-format", "text", "--", "{prompt}"),
        ),
        environment={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "IS_SANDBOX": "1",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
        },
        hint="install it: npm install -g @anthropic-ai/claude-code (its licence is proprietary)",
    )


_CODEX_CONFIG = """model = "{model}"
model_provider = "rollforge"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.rollforge]
name = "rollforge"
base_url = "{base_url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""


class Codex(Program):
    """Codex CLI, over the Responses API. It ignores OPENAI_BASE_URL, so a config file names the provider."""

    name = "codex"
    preset = Preset(
        words=("codex", "exec", "--skip-git-repo-check", "--", "{prompt}"),
        home_files={".codex/config.toml": _CODEX_CONFIG},
        hint="install it: npm install -g @openai/codex",
    )


_OPENCODE_CONFIG = """{
  "$schema": "https://opencode.ai/config.json",
  "autoupdate": false,
  "share": "disabled",
  "model": "rollforge/{model}",
  "small_model": "rollforge/{model}",
  "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
  "provider": {
    "rollforge": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "rollforge",
      "options": {"baseURL": "{base_url}", "apiKey": "{key}"},
      "models": {"{model}": {"name": "{model}", "tool_call": true}}
    }
  }
}
"""


class OpenCode(Program):
    """opencode, over Chat Completions. It also asks for a title, which becomes an auxiliary sequence.

    The prompt is passed on standard input, because opencode escapes every quote of a prompt in its arguments.
    """

    name = "opencode"
    preset = Preset(
        words=("opencode", "run"),
        reads_prompt=True,
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        home_files={".config/opencode/opencode.json": _OPENCODE_CONFIG},
        hint="install it: npm install -g opencode-ai",
    )


class QwenCode(Program):
    """qwen-code, over Chat Completions."""

    name = "qwen-code"
    preset = Preset(
        words=("qwen", "--yolo", "--auth-type", "openai", "--prompt={prompt}"),
        home_files={".qwen/settings.json": '{"privacy": {"usageStatisticsEnabled": false}}'},
        hint="install it: npm install -g @qwen-code/qwen-code",
    )


class MiniSweAgent(Program):
    """mini-swe-agent, over Chat Completions."""

    name = "mini-swe-agent"
    preset = Preset(
        words=("mini", "--yolo", "--exit-immediately", "--model", "openai/{model}", "--task={prompt}"),
        environment={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        hint="install it: pip install mini-swe-agent",
    )
