"""All that runs untrusted: the candidate, its build and its profiler."""
