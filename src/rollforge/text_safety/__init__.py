"""Text made safe to show and to store: secrets removed, control characters made visible, HTML escaped."""
