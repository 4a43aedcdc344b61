"""Steps: records in, records out. Steps never import steps; what joins them is records on disk."""
