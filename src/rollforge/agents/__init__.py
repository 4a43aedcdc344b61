"""Agents: what turns a task into a rollout. One file per member, one line here."""
