"""The nouns that every room shares: interfaces, records, tree, task, settings, errors."""
