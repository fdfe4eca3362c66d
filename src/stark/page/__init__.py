"""A run as a JSON document, and the page that draws it."""
