"""What crosses the wire between host and worker; no torch."""
