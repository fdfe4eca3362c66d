"""All that a person sees on the terminal."""
