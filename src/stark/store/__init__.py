"""The record of runs in one SQLite file per folder. Only this package imports sqlite3."""
