"""What happened, in one SQLite file per run folder: the only home of sqlite3."""
