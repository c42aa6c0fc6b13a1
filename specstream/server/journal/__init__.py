"""What outlives a server's process: where sessions are written down, what is written, how it is read.

Users import `SqliteJournal` and `PostgresJournal` from `specstream.server`.
"""
