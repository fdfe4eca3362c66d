"""The least work of a task, and the time it takes at the device's peaks."""
