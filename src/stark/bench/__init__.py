"""Many runs: a grid of tasks, methods, switches and seeds in one store."""
