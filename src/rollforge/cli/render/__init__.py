"""Human-readable output: one file per verb that prints, and the tables, numbers and consoles they share."""
