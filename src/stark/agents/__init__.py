"""The agents: what they are shown, what they are told, and how their answers become an attempt."""
