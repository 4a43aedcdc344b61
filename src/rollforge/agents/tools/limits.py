"""Limits on what a tool may return."""

MAX_RESULT_BYTES = 16 << 20
"""Most bytes of one tool result or MCP message. A longer one fails the call: no model reads that much."""
