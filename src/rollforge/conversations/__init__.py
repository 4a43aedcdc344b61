"""Conversations: reading rollouts as chat messages, and writing the messages in another shape.

`reader` reads a rollout line (Responses items or chat rows) as a `Conversation`; `tidy` repairs its ends by stated policies; `shape`
writes its messages with a trainer's key names; `template` renders them with a chat template. Nothing here chooses a rollout or opens
a run.
"""
