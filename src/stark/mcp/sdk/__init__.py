"""The server itself. Only this folder imports the SDK."""
