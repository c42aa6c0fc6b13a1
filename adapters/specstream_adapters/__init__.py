"""The adapters that ship with specstream; found through entry points, never imported by it."""
