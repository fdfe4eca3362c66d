"""The state of runs in progress, built from their events; and the time left. Pure."""
