"""Steps: records in, records out. Steps do not import each other; they communicate through files."""
