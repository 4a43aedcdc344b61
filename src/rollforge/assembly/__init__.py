"""Steps assembled into evaluations, reports and monitored collections."""
