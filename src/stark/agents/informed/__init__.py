"""The method ``informed``: lean prompts that hold the rules, all attempts and what is in flight."""
