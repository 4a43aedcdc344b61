"""Conversations: messages, items and turns; reading one shape, writing another."""
