"""Chat models: real providers, recorded replies and the playbook."""
