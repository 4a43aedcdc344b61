"""Collects until a goal is reached: options, sampling design, schedule, and ending."""
