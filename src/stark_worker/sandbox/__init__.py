"""Locks a process in: Landlock, seccomp, mounts and limits."""
