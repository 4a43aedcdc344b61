"""The three APIs with which programs call models: Chat Completions, Responses, Anthropic's Messages.

Requests become Responses-shaped params, Responses objects become answers in the caller's API, whole or as server-sent events.
"""
