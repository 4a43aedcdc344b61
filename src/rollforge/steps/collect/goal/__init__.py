"""Collect until there is enough: options, the design made from them, the schedule that follows the rule, and how it ends."""
