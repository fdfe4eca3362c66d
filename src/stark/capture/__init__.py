"""A live module becomes a task, and its drop-in takes the module's place."""
