#!/usr/bin/env bash
# Makes .agents (npm) and .venv-agents (pip): real agents at fixed versions, apart from rollforge's environment. tests/real_agents runs
# them against the simulated model. An agent that does not install here is left out, and its test says so.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-agents
if [ -f "$venv/.ready" ] && [ "$venv/.ready" -nt scripts/agents.sh ]; then
  exit 0
fi
mkdir -p .agents
if command -v npm > /dev/null; then
  for package in @openai/codex@0.169.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4 @anthropic-ai/claude-code@2.1.326; do
    npm install --silent --no-fund --no-audit --prefix .agents "$package" || echo "not installed: $package" >&2
  done
else
  echo "npm is not here: Codex, opencode, qwen-code and Claude Code are not installed" >&2
fi
"${PYTHON:-python3}" -m venv "$venv"
pip="bash scripts/install.sh $venv"
$pip openai-agents==0.24.0 || echo "not installed: openai-agents" >&2
$pip "pydantic-ai-slim[openai,anthropic]==2.66.0" || echo "not installed: pydantic-ai" >&2
$pip langgraph==1.2.22 langchain-openai || echo "not installed: langgraph" >&2
# mini-swe-agent's litellm wants another openai than openai-agents does.
"${PYTHON:-python3}" -m venv "$venv/mini"
bash scripts/install.sh "$venv/mini" mini-swe-agent==2.4.6 mcp || echo "not installed: mini-swe-agent" >&2
touch "$venv/.ready"
