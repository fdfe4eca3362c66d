"""Hardware facts, shared memory and the lock on a GPU."""
