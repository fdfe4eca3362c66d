"""Something to look at. Views read what is stored or told; they never run the system."""
